//! The kernel's side, as a trait: tests put something else in its place.

use std::time::Duration;

use chainscope_ebpf::{
    Error,
    memory::{MemoryEvent, MemoryProbe, Reading, Scope, TargetId},
};

/// See [`MemoryProbe`].
pub(super) trait Probe {
    fn watch(&mut self, pid: u32) -> Result<TargetId, Error>;
    fn forget(&mut self, target: TargetId);
    fn poll(&mut self, timeout: Duration) -> Result<Vec<MemoryEvent>, Error>;
    fn read(&mut self, scope: Scope) -> Result<Reading, Error>;
}

impl Probe for MemoryProbe {
    fn watch(&mut self, pid: u32) -> Result<TargetId, Error> {
        Self::watch(self, pid)
    }

    fn forget(&mut self, target: TargetId) {
        Self::forget(self, target);
    }

    fn poll(&mut self, timeout: Duration) -> Result<Vec<MemoryEvent>, Error> {
        Self::poll(self, timeout)
    }

    fn read(&mut self, scope: Scope) -> Result<Reading, Error> {
        Self::read(self, scope)
    }
}
