//! What discovery and pillars say to each other: changes of targets one way, notices of probes the other.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use super::{Assignment, Owner, ProcessFacts};
use crate::Error;

/// A change of one process, as discovery puts it into the inbox of every pillar.
///
/// Changes of one process arrive in the order in which they happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TargetChange {
    /// The process is observed from now on.
    Started(Arc<StartedTarget>),
    /// The options of an observed process changed; its node did not.
    Changed(u32, Arc<Assignment>),
    /// The process goes on, and is observed no more.
    Released(u32),
    /// An observed or held process exited.
    Exited(u32),
    /// The process may become a target: capture, and keep what is captured until it is started or discarded.
    Held(Arc<ProcessFacts>),
    /// A held process is no target: what was kept is dropped.
    Discarded(u32),
    /// Answer to a [`Notice`]: the process is no target, and the kernel must not capture it any more.
    Dismissed(u32),
    /// Answer to a [`Notice`]: nothing changed.
    Unchanged(u32),
    /// A process matches and is not observed. Not repeated for further processes of its owner until one of them is observed.
    Refused(Arc<RefusedTarget>),
    /// What probes must report from now on.
    Watch(Arc<WatchList>),
}

impl TargetChange {
    /// The process that changed, or that a notice was about.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Started(target) => Some(target.facts.pid),
            Self::Held(facts) => Some(facts.pid),
            Self::Refused(target) => Some(target.pid),
            Self::Changed(pid, _)
            | Self::Released(pid)
            | Self::Exited(pid)
            | Self::Discarded(pid)
            | Self::Dismissed(pid)
            | Self::Unchanged(pid) => Some(*pid),
            Self::Watch(_) => None,
        }
    }
}

/// A process that is not observed although it matches.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RefusedTarget {
    pub(crate) pid: u32,
    pub(crate) owner: Owner,
    /// What it would be observed as.
    pub(crate) assignment: Assignment,
    pub(crate) cause: String,
}

/// A process that begins to be observed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StartedTarget {
    pub(crate) facts: ProcessFacts,
    pub(crate) owner: Owner,
    pub(crate) assignment: Assignment,
    pub(crate) cause: StartCause,
    /// It was held: what it did so far is interpreted.
    pub(crate) was_held: bool,
    /// It was held and has exited since.
    pub(crate) has_exited: bool,
}

/// How a target was noticed, in the words of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartCause {
    /// It ran already.
    Found,
    /// A probe reported that it was executed or began to listen.
    Started,
}

impl StartCause {
    /// The `event` of the record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Started => "started",
        }
    }
}

/// What probes report to discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A process began to listen on a watched port.
    Listening { pid: u32, netns: u32, local: SocketAddr },
    /// A process executed a program.
    Executed { pid: u32 },
    /// The kernel captures a socket of a process that is neither a target nor held.
    UnknownSocket { pid: u32 },
    /// Everything that a released or exited process did was taken from the ring, and the kernel has forgotten it.
    Settled { pid: u32 },
    /// The kernel captures a target that it refused before.
    Captured { pid: u32 },
    /// Discovery ends.
    Stop,
}

/// What probes watch for discovery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WatchList {
    /// Ports, in one network namespace or in all.
    pub(crate) ports: BTreeSet<(Option<u32>, u16)>,
    /// File names of executables.
    pub(crate) process_names: BTreeSet<String>,
}

/// Where a pillar receives the changes of targets.
pub(crate) trait Inbox: Send {
    /// Puts a change into the inbox; never waits.
    ///
    /// # Errors
    /// The target cannot be observed at all, because of the agent's data directory: discovery ends with this error.
    fn put(&mut self, change: &TargetChange) -> Result<(), Error>;
}

impl Inbox for crossbeam_channel::Sender<TargetChange> {
    fn put(&mut self, change: &TargetChange) -> Result<(), Error> {
        // A pillar whose thread ended has reported why.
        let _ = self.send(change.clone());
        Ok(())
    }
}
