//! Output for people: seen when it is there, and a closed pipe is no error.

use std::io::{self, IsTerminal as _, Write as _};

/// Whether people are looking.
pub(crate) fn is_interactive() -> bool {
    io::stdout().is_terminal()
}

/// Writes to standard output and flushes, so that a line is seen when it is there.
pub(crate) fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// Writes a line.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    write(format!("{text}\n").as_bytes())
}

/// Whether the reader of standard output has gone, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
