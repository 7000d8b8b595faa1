//! Follows forks, executions, exits and new mappings of targets.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::abi::{SHARES_MM, Target};
use super::super::notice::{self, Notice, NoticeKind};
use super::super::preexisting::PreexistingPages;
use super::super::process;
use super::super::reading::{MemoryEvent, TargetId};
use super::reclaim::OfRemoved;
use super::{MemoryProbe, Process};

impl MemoryProbe {
    /// Handles the notices of the programs and the mmap events.
    pub(super) fn drain(&mut self) -> Vec<MemoryEvent> {
        let mut notices: Vec<Notice> = Vec::new();
        self.ring.drain(&mut |record| notices.extend(notice::parse(record)));
        let lost = self.globals.get(0).map_or(0, |globals| globals.lost_notices);
        let mut events = std::mem::take(&mut self.pending_events);
        events.extend(notices.into_iter().filter_map(|notice| self.handle(notice)));
        if lost != self.lost_notices {
            self.lost_notices = lost;
            events.extend(self.resync());
        }
        events.extend(self.refresh_mapped());
        events.extend(self.take_late_code());
        events
    }

    fn handle(&mut self, notice: Notice) -> Option<MemoryEvent> {
        let Notice { kind, pid, target, parent } = notice;
        match kind {
            NoticeKind::Forked => self.forked(pid, target, parent?),
            NoticeKind::Executed => self.executed(pid, target),
            NoticeKind::Exited => self.exited(target),
            NoticeKind::Unmapped => self.refresh(target).then_some(MemoryEvent::Mapped { target, pid }),
        }
    }

    fn forked(&mut self, pid: u32, target: TargetId, parent: TargetId) -> Option<MemoryEvent> {
        if self.processes.contains_key(&target) {
            return None;
        }
        let entry = self.targets.get(pid).filter(|entry| entry.id == target.0);
        let Some(origin) = self.processes.get(&parent) else {
            // The parent was removed during the fork.
            if let Some(entry) = entry {
                self.targets.remove(pid);
                self.address_spaces.end(entry.mm);
            }
            self.tree.unwatch(target);
            self.reclaiming.of_removed = OfRemoved::Pending;
            return None;
        };
        let mappings = Arc::clone(&origin.mappings);
        let start_time = process::start_time(&self.proc, pid).unwrap_or(0);
        let mm = entry.map(|entry| entry.mm);
        let child = Process {
            parent: Some(parent),
            copied_from: Some(parent),
            ..Process::new(pid, mm.unwrap_or(0), start_time, Arc::clone(&mappings))
        };
        self.processes.insert(target, child);
        self.share_nodes();
        if let Some(address_space) = mm.and_then(|mm| self.address_spaces.get(mm)) {
            self.tree.set_root(address_space.root, mappings);
        }
        Some(MemoryEvent::Forked { target, parent, pid })
    }

    fn executed(&mut self, pid: u32, target: TargetId) -> Option<MemoryEvent> {
        let mm = self.targets.get(pid).filter(|entry| entry.id == target.0).map(|entry| entry.mm);
        let process = self.processes.get_mut(&target)?;
        if let Some(previous) = self.address_spaces.get(process.mm) {
            process.past_stacks.iter_mut().zip(previous.stacks).for_each(|(sum, stacks)| *sum += stacks);
        }
        process.mm = mm.unwrap_or(0);
        process.copied_from = None;
        process.mappings = Arc::new(Vec::new());
        process.preexisting = PreexistingPages::default();
        process.at_attach.clear();
        process.preexisting_roots = None;
        self.unscanned.remove(&target);
        self.refresh(target);
        Some(MemoryEvent::Executed { target, pid })
    }

    fn exited(&mut self, target: TargetId) -> Option<MemoryEvent> {
        let process = self.processes.get_mut(&target).filter(|process| process.alive)?;
        process.alive = false;
        Some(MemoryEvent::Exited { target, pid: process.pid })
    }

    /// Rebuilds the state of the processes from the map of targets, after notices were lost.
    fn resync(&mut self) -> Vec<MemoryEvent> {
        let mut events = Vec::new();
        let mut entries: Vec<(u32, Target)> =
            self.targets.iter().filter(|(_, entry)| entry.flags & SHARES_MM == 0).collect();
        // A parent before its children.
        entries.sort_unstable_by_key(|(_, entry)| entry.id);
        let alive: HashSet<u32> = entries.iter().map(|(_, entry)| entry.id).collect();
        for (pid, entry) in entries {
            let target = TargetId(entry.id);
            if !self.processes.contains_key(&target) {
                events.extend(self.forked(pid, target, TargetId(entry.parent)));
            }
            if self.processes.get(&target).is_some_and(|process| process.mm != entry.mm) {
                events.extend(self.executed(pid, target));
            }
        }
        let exited: Vec<TargetId> =
            self.processes.keys().filter(|target| !alive.contains(&target.0)).copied().collect();
        events.extend(exited.into_iter().filter_map(|target| self.exited(target)));
        events
    }

    /// Refreshes the mappings of targets that have mapped new code.
    fn refresh_mapped(&mut self) -> Vec<MemoryEvent> {
        let mapped = self.mmap_events.take();
        let concerned = |process: &Process| process.alive && (mapped.lost || mapped.pids.contains(&process.pid));
        let targets: Vec<(TargetId, u32)> = self
            .processes
            .iter()
            .filter(|(_, process)| concerned(process))
            .map(|(target, process)| (*target, process.pid))
            .collect();
        let refreshed = targets.into_iter().filter(|(target, _)| self.refresh(*target));
        refreshed.map(|(target, pid)| MemoryEvent::Mapped { target, pid }).collect()
    }
}
