//! Loads programs though signals come meanwhile.

use aya::programs::ProgramError;
use rustix::io::Errno;

/// As libbpf does (`PROG_LOAD_ATTEMPTS`), and some more: a large program is checked for up to a second.
const ATTEMPTS: u32 = 10;

/// The kernel gives up checking a program with EAGAIN when its thread gets a signal, whatever that is about.
pub(crate) fn in_spite_of_signals(mut load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    for _ in 1..ATTEMPTS {
        match load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {}
            result => return result,
        }
    }
    load()
}
