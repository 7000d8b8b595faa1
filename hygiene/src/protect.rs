//! Keeps keys and tokens out of core dumps and away from `ptrace` by other processes of the same user.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Makes this process undumpable (`PR_SET_DUMPABLE`) and sets `RLIMIT_CORE` to 0. Call it first in `main`.
///
/// # Errors
/// If the kernel refuses; a program that holds keys should then exit.
pub fn protect_process() -> io::Result<()> {
    let context = |what: &str, cause: rustix::io::Errno| {
        io::Error::new(io::Error::from(cause).kind(), format!("cannot {what}: {cause}"))
    };
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| context("make the process undumpable", e))?;
    let zero = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, zero).map_err(|e| context("set the core limit to zero", e))
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn a_protected_process_leaves_no_core() {
        protect_process().unwrap();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        assert_eq!(getrlimit(Resource::Core), Rlimit { current: Some(0), maximum: Some(0) });
    }
}
