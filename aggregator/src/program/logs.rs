//! Logging: to standard error, the audit log to its own file if requested.

use std::{fs::OpenOptions, io, io::IsTerminal as _, path::Path};

use anyhow::Context as _;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer as _, filter::filter_fn, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// Lines of the audit log that may wait for the disk.
const MAX_BUFFERED_LINES: usize = 65_536;

/// Installs the subscriber. The audit log is written until the returned guard is dropped.
pub(crate) fn start(audit: Option<&Path>) -> anyhow::Result<Option<WorkerGuard>> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let has_own = audit.is_some();
    let own = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_filter(filter)
        // The client of Kubernetes logs responses that it cannot parse, and they quote the reviewed token.
        .with_filter(filter_fn(move |meta| {
            !(meta.target().starts_with("kube") || has_own && meta.target() == "audit")
        }));
    let (layer, guard) = match audit {
        None => (None, None),
        Some(path) => {
            let (writer, guard) = open(path)?;
            let layer = tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_writer(writer)
                .with_filter(filter_fn(|meta| meta.target() == "audit"));
            (Some(layer), Some(guard))
        }
    };
    tracing_subscriber::registry().with(own).with(layer).init();
    Ok(guard)
}

fn open(path: &Path) -> anyhow::Result<(NonBlocking, WorkerGuard)> {
    // Not lossy: an audit log is complete. Requests wait for a slow disk.
    let builder = NonBlockingBuilder::default().lossy(false).buffered_lines_limit(MAX_BUFFERED_LINES);
    if path == Path::new("-") {
        return Ok(builder.finish(io::stdout()));
    }
    let file = OpenOptions::new().create(true).append(true).open(path);
    Ok(builder.finish(file.with_context(|| format!("cannot open the audit log {}", path.display()))?))
}
