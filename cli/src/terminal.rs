//! Standard output: flushed after every write; a closed pipe is not an error.

use std::io::{self, IsTerminal as _, Write as _};

/// Whether standard output is a terminal.
pub(crate) fn is_interactive() -> bool {
    io::stdout().is_terminal()
}

/// Whether output is coloured: on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
pub(crate) fn has_colours() -> bool {
    is_interactive() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes to standard output and flushes.
pub(crate) fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// Writes a line to standard output and flushes.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    write(format!("{text}\n").as_bytes())
}

/// Whether the error is a write to a closed pipe, such as `chainscope … | head`.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
