//! Long runs: seconds in `make test`, minutes in `make soak`.

mod kills;
mod memory;
mod streams;
mod tree;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Lock between the tests of this binary: those that measure time or memory run alone.
static RUNNING: RwLock<()> = RwLock::new(());

/// Taken by a test that runs alone; a failed test does not poison it.
fn exclusive() -> RwLockWriteGuard<'static, ()> {
    RUNNING.write().unwrap_or_else(PoisonError::into_inner)
}

/// Taken by a test that may run beside others.
fn shared() -> RwLockReadGuard<'static, ()> {
    RUNNING.read().unwrap_or_else(PoisonError::into_inner)
}
