//! What the worker does when a process, or the configuration, becomes another.

use std::sync::Arc;

use chainscope_hygiene::EscapedTruncated;

use super::{EXITED, End, Observed, RELEASED, Worker};
use crate::{
    Error,
    clock::Clock,
    memory,
    network::account::HOLDING_FULL,
    network::holding::Held,
    network::interpreter::Target,
    network::reader::Command,
    operator::pods::PodMap,
    targets::identity::ProcessKeys,
    targets::{Assignment, Change, Found, Owner, Plan, matching::ProcessFacts},
};

impl Worker {
    /// The operator said something else.
    pub(super) fn configure(&mut self, serial: u64, map: &Arc<PodMap>) -> Result<(), Error> {
        self.serial = serial;
        let changes = self.roster.replan(|plan| {
            if let Plan::Pods(pods) = plan {
                pods.set(Arc::clone(map));
            }
        });
        for change in changes {
            self.apply(Some(change), "found")?;
        }
        self.ledger.retain(map);
        self.watch();
        // Processes that were of no interest are not known: they are looked for.
        if self.roster.is_incomplete() {
            self.scan()?;
        }
        self.tell_now();
        Ok(())
    }

    pub(super) fn apply(&mut self, change: Option<Change>, event: &'static str) -> Result<(), Error> {
        match change {
            None => {}
            Some(Change::Start(found)) => self.start(*found, event)?,
            Some(Change::Hold(facts)) => {
                let pid = facts.pid;
                tracing::debug!(pid, "held until it is configured");
                self.ends.remove(&pid);
                self.holding.begin(pid);
                let listens = facts.listens.iter().map(|port| (facts.netns, *port)).collect();
                self.send(Command::AddProcess { pid, port: None, listens });
            }
            Some(Change::Update(pid, assignment)) => {
                if assignment.network {
                    self.send(Command::SetPort { pid, port: assignment.p2p_port });
                }
                let assignment = *assignment;
                if let Some(observed) = self.observed.get_mut(&pid)
                    && std::mem::replace(&mut observed.memory, assignment.memory) != assignment.memory
                {
                    let (node, label) = (Arc::clone(&assignment.node), Arc::clone(&assignment.label));
                    self.profile(match assignment.memory {
                        true => memory::Command::Watch { pid, node, label },
                        false => memory::Command::Forget { pid },
                    });
                }
                self.interpreter.update_target(pid, assignment.p2p_port, assignment.store, assignment.identity);
            }
            Some(Change::Release(pid)) => {
                if self.observed.get(&pid).is_some_and(|observed| observed.memory) {
                    self.profile(memory::Command::Forget { pid });
                }
                self.wind_up(Command::ReleaseProcess { pid }, RELEASED);
            }
            Some(Change::Discard(pid)) => {
                self.holding.discard(pid);
                self.wind_up(Command::ReleaseProcess { pid }, RELEASED);
            }
            // The kernel takes every process that listens on a watched port or executes a watched program.
            Some(Change::Dismiss(pid)) if self.interpreter.is_target(pid) => {}
            Some(Change::Dismiss(pid)) => {
                self.holding.discard(pid);
                self.wind_up(Command::ReleaseProcess { pid }, RELEASED);
            }
        }
        Ok(())
    }

    /// The kernel takes every process that listens on a watched port or executes a watched program: also one of which
    /// other things are observed.
    pub(super) fn leave_network(&self, pid: u32) {
        if self.observed.get(&pid).is_some_and(|observed| !observed.network) {
            self.send(Command::ReleaseProcess { pid });
        }
    }

    /// Ends the capture of a process; what it did until then still comes.
    pub(super) fn wind_up(&mut self, command: Command, end: End) {
        if let Command::RemoveProcess { pid } | Command::ReleaseProcess { pid } = command {
            self.ends.insert(pid, end);
        }
        self.send(command);
    }

    fn start(&mut self, found: Found, event: &'static str) -> Result<(), Error> {
        let Found { facts, owner, assignment, was_held, is_gone } = found;
        let pid = facts.pid;
        // The number of a process whose end was not noticed yet.
        self.end(pid, EXITED);
        if !was_held || !assignment.network {
            self.holding.discard(pid);
        }
        let held = self.holding.take(pid);
        self.streams.open_stream(&assignment.node)?;
        if !is_gone {
            self.ends.remove(&pid);
            if assignment.memory {
                let (node, label) = (Arc::clone(&assignment.node), Arc::clone(&assignment.label));
                self.profile(memory::Command::Watch { pid, node, label });
            }
        }
        let exe = EscapedTruncated(&facts.exe.to_string_lossy()).to_string();
        let node = &assignment.node;
        tracing::info!(%node, pid, exe, netns = facts.netns, event, held = was_held, "observing");
        let pod = match owner {
            Owner::Pod(uid) => Some(uid),
            Owner::Entry(_) => None,
        };
        if let Some(uid) = &pod {
            self.ledger.started(uid, pid, Clock::of_ticks(facts.start));
        }
        self.figures.lock().spoil();
        let (network, memory) = (assignment.network, assignment.memory);
        self.observed.insert(pid, Observed { node: Arc::clone(node), pod, network, memory });
        if network {
            let detail = format!("{exe} in network namespace {}", facts.netns);
            self.record(&facts, assignment, is_gone, held, (event, detail));
        } else {
            if is_gone {
                self.end(pid, EXITED);
            }
            self.leave_network(pid);
        }
        Ok(())
    }

    /// Records what a process says and hears, beginning with what was held of it.
    fn record(
        &mut self,
        facts: &ProcessFacts,
        assignment: Assignment,
        is_gone: bool,
        held: Option<Held>,
        (event, detail): (&'static str, String),
    ) {
        let pid = facts.pid;
        if !is_gone {
            let listens = assignment.p2p_port.filter(|port| facts.listens.contains(port));
            self.send(Command::AddProcess {
                pid,
                port: assignment.p2p_port,
                listens: listens.map(|port| (facts.netns, port)).into_iter().collect(),
            });
        }
        let mut keys = ProcessKeys::new(self.proc.clone(), pid, assignment.identity);
        keys.look();
        self.interpreter.start_target(Target {
            node: assignment.node,
            label: assignment.label,
            pid,
            p2p_port: assignment.p2p_port,
            store: assignment.store,
            keys: Box::new(keys),
        });
        if is_gone {
            self.interpreter.tell(pid, event, detail);
        } else {
            self.unsaid.insert(pid, (event, detail));
        }
        let Some(held) = held else { return };
        self.interpreter.add_dropped(pid, HOLDING_FULL, held.dropped_bytes);
        held.replay(&mut |event| self.interpreter.event(event));
        if let Some(account) = &held.settled {
            if let Some(account) = account {
                self.interpreter.account(pid, account.clone());
            }
            self.end(pid, EXITED);
        }
    }

    /// Ends the observation of a process, if it is observed.
    pub(super) fn end(&mut self, pid: u32, end: End) {
        let Some(observed) = self.observed.remove(&pid) else { return };
        // There is nothing to know of a process whose network is not recorded.
        let tally = self.interpreter.end_target(pid, end.by, end.event).unwrap_or_default();
        let mut figures = self.figures.lock();
        figures.ended(&observed.node, &tally);
        figures.spoil();
        drop(figures);
        if let Some(uid) = observed.pod {
            self.ledger.ended(&uid, pid, tally);
        }
    }
}
