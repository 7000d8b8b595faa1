//! Changes of targets: what the kernel captures, what is interpreted and what is held.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Instant};

use chainscope_hygiene::EscapedTruncated;

use super::{EXITED, End, Known, RELEASED, RETRY_INTERVAL, Worker};
use crate::{
    network::{
        account::HOLDING_FULL,
        interpreter::{Target, records},
        reader::Command,
    },
    pillar::RecordSink,
    targets::{
        Assignment, Network, Notice, RefusedTarget, ReuseCheck, StartedTarget, TargetChange, WatchList,
        identity::ProcessKeys,
    },
};

impl<S: RecordSink> Worker<S> {
    pub(super) fn apply(&mut self, change: &TargetChange) {
        if let Some(pid) = change.pid() {
            self.answered(pid);
        }
        match change {
            TargetChange::Started(target) => self.start(target),
            TargetChange::Changed(pid, assignment) => self.change(*pid, assignment),
            TargetChange::Released(pid) => {
                self.without_network.remove(pid);
                self.end_wait(*pid);
                self.stop_capture(Command::ReleaseProcess { pid: *pid }, RELEASED);
            }
            TargetChange::Exited(pid) => {
                self.without_network.remove(pid);
                self.stop_capture(Command::RemoveProcess { pid: *pid }, EXITED);
            }
            TargetChange::Held(facts) => {
                let pid = facts.pid;
                tracing::debug!(pid, "held until it is configured");
                self.ends.remove(&pid);
                self.holding.hold(pid, facts.group());
                let listens = facts.listens.iter().map(|local| (facts.netns, *local)).collect();
                self.send(Command::AddProcess { pid, port: None, listens });
            }
            TargetChange::Discarded(pid) => {
                self.holding.discard(*pid);
                self.stop_capture(Command::ReleaseProcess { pid: *pid }, RELEASED);
            }
            // The kernel captures every process that listens on a watched port or executes a watched program.
            TargetChange::Dismissed(pid) if self.interpreter.is_target(*pid) => {}
            TargetChange::Dismissed(pid) => {
                self.holding.discard(*pid);
                self.stop_capture(Command::ReleaseProcess { pid: *pid }, RELEASED);
            }
            TargetChange::Refused(refused) => self.refused_by_discovery(refused),
            TargetChange::Unchanged(pid) => self.holding.drop_provisional(*pid),
            TargetChange::Watch(list) => self.watch(list),
        }
    }

    fn change(&mut self, pid: u32, assignment: &Assignment) {
        let Some(Network { store }) = assignment.observe.network else { return };
        if let Some(known) = self.targets.get_mut(&pid) {
            known.p2p_port = assignment.p2p_port;
        }
        self.send(Command::SetPort { pid, port: assignment.p2p_port });
        self.interpreter.update_target(pid, assignment.p2p_port, store, assignment.identity.clone());
        if !self.interpreter.is_reading_identity(pid) {
            self.end_wait(pid);
        }
    }

    /// Brings what the kernel watches up to date.
    fn watch(&mut self, list: &WatchList) {
        let before = std::mem::replace(&mut self.watched, list.clone());
        for (netns, port) in list.ports.difference(&before.ports) {
            self.send(Command::WatchPort { netns: *netns, port: *port });
        }
        for (netns, port) in before.ports.difference(&list.ports) {
            self.send(Command::UnwatchPort { netns: *netns, port: *port });
        }
        for name in list.process_names.difference(&before.process_names) {
            self.send(Command::WatchProgram(name.clone()));
        }
        for name in before.process_names.difference(&list.process_names) {
            self.send(Command::UnwatchProgram(name.clone()));
        }
    }

    /// The kernel captures every process that listens on a watched port or executes a watched program, also one of which
    /// only other things are observed.
    pub(super) fn release_without_network(&self, pid: u32) {
        if self.without_network.contains(&pid) {
            self.send(Command::ReleaseProcess { pid });
        }
    }

    /// Ends the capture of a process; what it did until then still arrives.
    fn stop_capture(&mut self, command: Command, end: End) {
        if let Command::RemoveProcess { pid } | Command::ReleaseProcess { pid } = command {
            self.ends.insert(pid, end);
        }
        self.send(command);
    }

    fn start(&mut self, target: &StartedTarget) {
        let StartedTarget { facts, owner, assignment, was_held, has_exited, .. } = target;
        let pid = facts.pid;
        // The number of a process whose exit was not noticed yet.
        self.end_wait(pid);
        self.end(pid, EXITED);
        let Some(network) = assignment.observe.network else {
            self.holding.discard(pid);
            if !has_exited {
                self.ends.remove(&pid);
                self.without_network.insert(pid);
                self.release_without_network(pid);
            }
            return;
        };
        self.without_network.remove(&pid);
        if !was_held && !self.holding.is_provisional(pid) {
            self.holding.discard(pid);
        }
        if !has_exited {
            self.ends.remove(&pid);
        }
        let known = Known {
            node: Arc::clone(&assignment.node),
            pod: owner.pod().map(str::to_owned),
            netns: facts.netns,
            p2p_port: assignment.p2p_port,
            listens: facts.listens.clone(),
            reuse: ReuseCheck::new(&self.proc, pid, facts.start),
        };
        self.targets.insert(pid, known);
        self.record(target, network);
        if let Some(live) = self.live(pid) {
            self.figures.started(pid, live);
        }
    }

    /// Records what a process sends and receives, beginning with what was held of it. Until the first read of its identity
    /// returns, events are held.
    fn record(&mut self, target: &StartedTarget, network: Network) {
        let StartedTarget { facts, assignment, cause, has_exited, .. } = target;
        let pid = facts.pid;
        if !has_exited {
            self.send(add_process(pid, facts.netns, assignment.p2p_port, &facts.listens));
        }
        let (node, source) = (Arc::clone(&assignment.node), assignment.identity.clone());
        let mut keys = ProcessKeys::new(self.channels.identity_reader.clone(), node, facts, source);
        keys.reload();
        self.interpreter.start_target(Target {
            node: Arc::clone(&assignment.node),
            label: Arc::clone(&assignment.label),
            pid,
            p2p_port: assignment.p2p_port,
            store: network.store,
            keys: Box::new(keys),
        });
        let exe = EscapedTruncated(&facts.exe.to_string_lossy()).to_string();
        let detail = format!("{exe} in network namespace {}", facts.netns);
        if *has_exited {
            self.interpreter.report(pid, cause.name(), detail);
        } else {
            self.unannounced.insert(pid, (cause.name(), detail));
        }
        if self.interpreter.is_reading_identity(pid) {
            if !self.holding.has(pid) || self.holding.is_provisional(pid) {
                self.holding.hold(pid, facts.group());
            }
            self.holding.set_target(pid);
            self.awaiting_identity.insert(pid);
        } else {
            self.replay(pid);
        }
    }

    /// The kernel does not capture a process: a target is tried again.
    pub(super) fn capture_refused(&mut self, pid: u32, cause: &str) {
        let Some(known) = self.targets.get(&pid) else { return };
        if let Some(uid) = &known.pod {
            self.figures.refused(uid, cause);
        }
        if self.refused.insert(pid, cause.to_owned()).as_deref() != Some(cause) {
            self.interpreter.report(pid, "not captured", cause.to_owned());
        }
    }

    /// Discovery does not observe a process that matches.
    fn refused_by_discovery(&mut self, refused: &RefusedTarget) {
        let RefusedTarget { pid, owner, assignment, cause } = refused;
        if let Some(uid) = owner.pod() {
            self.figures.refused(uid, cause);
        }
        // Its node has a stream if another process of it is observed.
        if self.interpreter.nodes().contains(&assignment.node) {
            let time = self.interpreter.clock.now();
            let event = records::target_event(time, &assignment.label, "not captured", *pid, cause.clone());
            self.interpreter.push(&assignment.node, event);
        }
    }

    /// The kernel captures a process.
    pub(super) fn captured(&mut self, pid: u32) {
        if self.refused.remove(&pid).is_none() {
            return;
        }
        if let Some(uid) = self.targets.get(&pid).and_then(|known| known.pod.as_ref()) {
            self.figures.captured(uid);
        }
        // At most one for each target that was refused.
        let _ = self.channels.notices.send(Notice::Captured { pid });
    }

    /// Adds the targets again that the kernel refused: others may have left its tables.
    pub(super) fn retry_refused(&mut self) {
        if self.retried.is_some_and(|retried| retried.elapsed() < RETRY_INTERVAL) {
            return;
        }
        self.retried = Some(Instant::now());
        for pid in self.refused.keys() {
            let Some(known) = self.targets.get(pid) else { continue };
            // To add a process revokes the end of its capture.
            if !self.ends.contains_key(pid) && !known.reuse.is_reused() {
                self.send(add_process(*pid, known.netns, known.p2p_port, &known.listens));
            }
        }
    }

    /// Interprets the held events of a target without waiting for its identity any longer.
    pub(super) fn end_wait(&mut self, pid: u32) {
        if self.awaiting_identity.remove(&pid) {
            self.replay(pid);
        }
    }

    /// Interprets what was held of a target.
    pub(super) fn replay(&mut self, pid: u32) {
        let Some(held) = self.holding.take(pid) else { return };
        self.interpreter.add_dropped(pid, HOLDING_FULL, held.dropped_bytes);
        held.replay(&mut |event| self.interpreter.event(event));
        if let Some(account) = &held.settled {
            if let Some(account) = account {
                self.interpreter.account(pid, account.clone());
            }
            self.end(pid, EXITED);
        }
    }

    /// Ends the recording of a process, if it is recorded.
    pub(super) fn end(&mut self, pid: u32, end: End) {
        let Some(known) = self.targets.remove(&pid) else { return };
        self.unannounced.remove(&pid);
        self.refused.remove(&pid);
        let tally = self.interpreter.end_target(pid, end.by, end.event).unwrap_or_default();
        self.figures.ended(pid, &known.node, known.pod, tally);
    }
}

/// Has the kernel capture a target with these listening sockets.
fn add_process(pid: u32, netns: u32, port: Option<u16>, listens: &BTreeSet<SocketAddr>) -> Command {
    let of_port = listens.iter().filter(|local| port == Some(local.port()));
    Command::AddProcess { pid, port, listens: of_port.map(|local| (netns, *local)).collect() }
}
