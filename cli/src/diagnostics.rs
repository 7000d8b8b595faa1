//! The log of this program: to standard error, and to daily files for the support bundle.

use std::{
    fs,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};

use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::{EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::terminal;

/// Number of daily log files to keep.
const MAX_LOG_FILES: usize = 7;

/// The directory of the log files in a data directory.
pub(crate) fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("logs")
}

/// Installs the log output. `RUST_LOG` filters standard error, else --verbose and --quiet, else `default`; the files have level
/// `info`.
pub(crate) fn start(data_dir: Option<&Path>, default: &str) -> anyhow::Result<()> {
    let default = match (terminal::is_verbose(), terminal::is_quiet()) {
        (true, _) => "debug",
        (false, true) => "error",
        (false, false) => default,
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let file = data_dir
        .map(|data_dir| -> anyhow::Result<_> {
            fs::create_dir_all(directory(data_dir))?;
            let file = RollingFileAppender::builder()
                .rotation(Rotation::DAILY)
                .filename_prefix("chainscope")
                .filename_suffix("log")
                .max_log_files(MAX_LOG_FILES)
                .build(directory(data_dir))?;
            Ok(file)
        })
        .transpose()?
        .map(|file| {
            tracing_subscriber::fmt::layer().with_ansi(false).with_writer(file).with_filter(EnvFilter::new("info"))
        });
    tracing_subscriber::registry()
        .with(
            tracing_subscriber::fmt::layer()
                .with_ansi(io::stderr().is_terminal())
                .with_writer(io::stderr)
                .with_filter(filter),
        )
        .with(file)
        .init();
    Ok(())
}
