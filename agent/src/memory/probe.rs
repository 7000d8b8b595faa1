//! The memory probe as a trait, so that tests can replace it.

use std::time::Duration;

use chainscope_ebpf::{
    Error,
    memory::{MemoryEvent, MemoryProbe, Reading, Scope, TargetId},
};

/// The operations of [`MemoryProbe`] that the watcher uses.
pub(super) trait Probe {
    fn watch(&mut self, pid: u32) -> Result<TargetId, Error>;
    fn unwatch(&mut self, target: TargetId);
    fn poll(&mut self, timeout: Duration) -> Result<Vec<MemoryEvent>, Error>;
    fn read(&mut self, scope: Scope) -> Result<Reading, Error>;
}

impl Probe for MemoryProbe {
    fn watch(&mut self, pid: u32) -> Result<TargetId, Error> {
        Self::watch(self, pid)
    }

    fn unwatch(&mut self, target: TargetId) {
        Self::unwatch(self, target);
    }

    fn poll(&mut self, timeout: Duration) -> Result<Vec<MemoryEvent>, Error> {
        Self::poll(self, timeout)
    }

    fn read(&mut self, scope: Scope) -> Result<Reading, Error> {
        Self::read(self, scope)
    }
}
