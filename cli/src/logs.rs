//! Own logs: to standard error for people, and to a file of the day for the support bundle.

use std::{
    fs,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};

use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::{EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// Days of logs that are kept.
const KEPT: usize = 7;

/// Where a data folder's logs are.
pub(crate) fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("logs")
}

/// Begins to log. `RUST_LOG` sets what standard error shows; the file has everything from `info` on.
pub(crate) fn start(data_dir: Option<&Path>, default: &str) -> anyhow::Result<()> {
    let shown = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let file = data_dir
        .map(|data_dir| -> anyhow::Result<_> {
            fs::create_dir_all(folder(data_dir))?;
            let file = RollingFileAppender::builder()
                .rotation(Rotation::DAILY)
                .filename_prefix("chainscope")
                .filename_suffix("log")
                .max_log_files(KEPT)
                .build(folder(data_dir))?;
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
                .with_filter(shown),
        )
        .with(file)
        .init();
    Ok(())
}
