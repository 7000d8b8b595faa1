//! Keeps keys and tokens in this process: no core dump, no `ptrace` by others of the same user.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Makes this process undumpable and sets its core limit to zero. To be called first in `main`.
///
/// # Errors
/// If the kernel refuses; a program that is going to hold keys should then stop.
pub fn protect_process() -> io::Result<()> {
    let told = |what: &str, cause: rustix::io::Errno| {
        io::Error::new(io::Error::from(cause).kind(), format!("cannot {what}: {cause}"))
    };
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| told("make the process undumpable", e))?;
    let nothing = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, nothing).map_err(|e| told("set the core limit to zero", e))
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
