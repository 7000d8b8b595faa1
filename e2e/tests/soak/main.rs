//! Long runs: seconds in `make test`, minutes in `make soak`.

mod kills;
mod memory;
mod streams;
mod tree;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Orders the tests of this binary: those that measure time or memory run alone.
static RUNNING: RwLock<()> = RwLock::new(());

/// Held by a test that runs alone. A test that failed does not fail the others.
fn exclusive() -> RwLockWriteGuard<'static, ()> {
    RUNNING.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that others of its kind may run beside.
fn shared() -> RwLockReadGuard<'static, ()> {
    RUNNING.read().unwrap_or_else(PoisonError::into_inner)
}
