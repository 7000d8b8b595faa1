//! Reads the code of targets. A target whose files or address space do not answer gets its unwind tables later, and delays
//! others only until a deadline.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::super::address_spaces::UnwindMapping;
use super::super::code_files::{CodeReading, Next, container_of};
use super::super::foreign::Answer;
use super::super::reading::{MemoryEvent, ModuleId, TargetId};
use super::MemoryProbe;

/// Maximum time that a read of the memory of a process is waited for.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);

/// Code of a target.
pub(super) enum Code {
    /// All mappings, by address.
    Whole(Vec<UnwindMapping>),
    /// The first ones: the others follow later.
    Late(Vec<UnwindMapping>),
    /// The process has exited.
    Gone,
}

impl MemoryProbe {
    /// Reads the executable mappings of a process, with their unwind tables.
    pub(super) fn read_code(&mut self, target: TargetId, pid: u32) -> Code {
        let Some(reading) = CodeReading::start(&self.calls, &self.proc, pid, &self.modules.known_files()) else {
            let maps = self.proc.join(format!("{pid}/maps"));
            self.modules.refuse(maps, "not read yet: too many reads of other processes do not return".to_owned());
            self.outdated_code.insert(target);
            return Code::Late(Vec::new());
        };
        let code = self.continue_reading(target, pid, reading);
        if let Some(reading) = self.code_readings.get(&target) {
            let file = reading.current();
            self.modules.refuse(file, "not read yet: its file system or the process does not answer".to_owned());
        }
        code
    }

    fn continue_reading(&mut self, target: TargetId, pid: u32, mut reading: CodeReading) -> Code {
        let mut in_use = self.modules_in_use();
        in_use.extend(reading.resolved.iter().filter_map(|mapping| mapping.module));
        loop {
            match reading.next() {
                Next::Mapping(read) => {
                    let (mapping, is_current) = self.modules.resolve(pid, *read, &in_use);
                    if !is_current {
                        self.outdated_code.insert(target);
                    }
                    in_use.extend(mapping.module);
                    reading.resolved.push(mapping);
                }
                Next::End => return Code::Whole(reading.resolved),
                Next::Failed => return Code::Gone,
                Next::Late => {
                    let first = reading.resolved.clone();
                    self.code_readings.insert(target, reading);
                    return Code::Late(first);
                }
            }
        }
    }

    /// Modules that running processes map.
    fn modules_in_use(&self) -> HashSet<ModuleId> {
        let alive = self.processes.values().filter(|process| process.alive);
        let mapped = alive.flat_map(|process| process.mappings.iter());
        let read = self.code_readings.values().flat_map(|reading| &reading.resolved);
        mapped.chain(read).filter_map(|mapping| mapping.module).collect()
    }

    /// Takes the code that was late, and reads the code that was mapped meanwhile.
    pub(super) fn take_late_code(&mut self) -> Vec<MemoryEvent> {
        let mut changed = Vec::new();
        let late: Vec<TargetId> = self.code_readings.keys().copied().collect();
        for target in late {
            let Some(reading) = self.code_readings.remove(&target) else { continue };
            let Some(pid) = self.pid_of_running(target) else { continue };
            let Code::Whole(mappings) = self.continue_reading(target, pid, reading) else { continue };
            // What is outdated is read again below.
            if !self.outdated_code.contains(&target) && self.set_code(target, mappings) {
                changed.push(MemoryEvent::Mapped { target, pid });
            }
            if self.unscanned.remove(&target) {
                self.scan_preexisting(target);
            }
        }
        let read: Vec<TargetId> =
            self.outdated_code.iter().filter(|target| !self.code_readings.contains_key(target)).copied().collect();
        for target in read {
            self.outdated_code.remove(&target);
            let Some(pid) = self.pid_of_running(target) else { continue };
            if self.refresh(target) {
                changed.push(MemoryEvent::Mapped { target, pid });
            }
        }
        changed
    }

    fn pid_of_running(&self, target: TargetId) -> Option<u32> {
        self.processes.get(&target).filter(|process| process.alive).map(|process| process.pid)
    }

    /// Reads the mappings of a target again; returns whether they have changed.
    pub(super) fn refresh(&mut self, target: TargetId) -> bool {
        let Some(pid) = self.processes.get(&target).map(|process| process.pid) else { return false };
        if self.code_readings.contains_key(&target) {
            self.outdated_code.insert(target);
            return false;
        }
        match self.read_code(target, pid) {
            Code::Whole(mappings) => self.set_code(target, mappings),
            // After an execution, the first mappings are better than none.
            Code::Late(first) if self.processes.get(&target).is_some_and(|process| process.mappings.is_empty()) => {
                self.set_code(target, first)
            }
            Code::Late(_) | Code::Gone => false,
        }
    }

    /// Sets the mappings of a target; returns whether they have changed.
    fn set_code(&mut self, target: TargetId, mappings: Vec<UnwindMapping>) -> bool {
        let Some(process) = self.processes.get_mut(&target) else { return false };
        let mm = process.mm;
        let is_published = self.address_spaces.get(mm).is_some_and(|entry| entry.mappings != 0);
        if is_published && *process.mappings == mappings {
            self.address_spaces.confirm_unmapped(mm);
            return false;
        }
        // The nodes below a root belong to the files that were mapped when they were created: another file at the same
        // address needs another root.
        let is_root_valid = process.mappings.iter().all(|mapping| mappings.contains(mapping));
        let mappings = Arc::new(mappings);
        process.mappings = Arc::clone(&mappings);
        let root = if is_root_valid {
            if let Some(entry) = self.address_spaces.get(mm) {
                self.tree.set_root(entry.root, Arc::clone(&mappings));
            }
            None
        } else {
            self.new_root(target, &mappings).and_then(|root| self.with_overflow(root)).ok()
        };
        self.publish(mm, &mappings, root).is_ok()
    }

    /// Runs a call that reads the memory of a process; `None` if it does not return in time.
    pub(super) fn call_of<T: Send + 'static>(&self, pid: u32, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match self.calls.call(&container_of(&self.proc, pid), SCAN_TIMEOUT, call) {
            Answer::Ready(value) => Some(value),
            Answer::Late(_) | Answer::Refused => None,
        }
    }
}
