//! Free space of the file system.

use std::path::Path;

use rustix::fs::statvfs;

use crate::Error;

/// Bytes that an unprivileged process can still write where `dir` is.
pub(crate) fn free_bytes(dir: &Path) -> Result<u64, Error> {
    let stat = statvfs(dir).map_err(|error| Error::io(dir)(error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
