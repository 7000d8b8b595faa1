//! Standard output, flushed after every write, and notes on standard error.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::OnceLock,
    time::Duration,
};

use clap::ColorChoice;
use ratatui::crossterm;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};

/// What the command line says about output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) color: ColorChoice,
    pub(crate) is_verbose: bool,
    pub(crate) is_quiet: bool,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

fn settings() -> Settings {
    SETTINGS.get().copied().unwrap_or(Settings { color: ColorChoice::Auto, is_verbose: false, is_quiet: false })
}

/// Applies the command line; the first call counts.
pub(crate) fn configure(settings: Settings) {
    SETTINGS.get_or_init(|| settings);
}

/// Whether standard output is a terminal.
pub(crate) fn is_interactive() -> bool {
    io::stdout().is_terminal()
}

/// Whether standard output is coloured: as --color says, else on a terminal unless `NO_COLOR` is set (<https://no-color.org>).
pub(crate) fn has_colours() -> bool {
    match settings().color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => is_interactive() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}

/// Whether --verbose is given.
pub(crate) fn is_verbose() -> bool {
    settings().is_verbose
}

/// Whether --quiet is given.
pub(crate) fn is_quiet() -> bool {
    settings().is_quiet
}

/// Waits for keys, at most for this long, which is less than a second. Whether the terminal was closed: crossterm would try to read
/// it for ever.
pub(crate) fn is_closed(wait: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut polled = PollFd::new(&stdin, PollFlags::IN);
    let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
    match rustix::event::poll(std::slice::from_mut(&mut polled), Some(&timeout)) {
        // Signals are looked at by the caller.
        Ok(_) | Err(Errno::INTR) => Ok(polled.revents().intersects(PollFlags::HUP | PollFlags::ERR)),
        Err(error) => Err(error.into()),
    }
}

/// Columns of the output: `COLUMNS`, else those of the terminal; `None`: no limit.
pub(crate) fn columns() -> Option<usize> {
    let variable = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let size = || is_interactive().then(|| crossterm::terminal::size().ok()).flatten();
    variable.or_else(|| size().map(|(columns, _)| usize::from(columns))).filter(|columns| *columns > 0)
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

/// Writes a line to standard error, unless --quiet is given.
pub(crate) fn note(text: &str) {
    if !is_quiet() {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// Replaces the line of progress on standard error, if that is a terminal and --quiet is not given; empty text removes it.
pub(crate) fn progress(text: &str) {
    if !is_quiet() && io::stderr().is_terminal() {
        // To the start of the line, which is erased.
        let _ = write!(io::stderr(), "\r\x1b[K{text}");
        let _ = io::stderr().flush();
    }
}

/// Writes a line to standard error if --verbose is given.
pub(crate) fn detail(text: &str) {
    if is_verbose() {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// Whether the error is a write to a closed pipe, such as `chainscope … | head`.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
