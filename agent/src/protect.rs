//! Keeps the keys in this process: no core dump, no `ptrace` by others of the same user.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use crate::Error;

/// Makes this process undumpable and sets its core limit to zero. To be called first in `main`.
///
/// # Errors
/// [`Error::Unfit`] if the kernel refuses; a program that is going to hold keys should then stop.
pub fn protect_process() -> Result<(), Error> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|cause| Error::Unfit(format!("cannot make the process undumpable: {cause}")))?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(|cause| Error::Unfit(format!("cannot set the core limit to zero: {cause}")))
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn a_protected_process_leaves_no_core() {
        protect_process().unwrap();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
    }
}
