//! The client of the operator's catalog stream.

use std::{sync::Arc, time::Duration};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::{
    VERSIONS,
    v1::{CatalogRequest, CatalogUpdate, configuration_client::ConfigurationClient},
};
use chainscope_tls::{Remote, Token};
use prost::Message as _;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status, Streaming};

use super::{Catalog, CatalogConfig, persisted::UpdateError};
use crate::clock::now_ns;

/// Shortest time before a new attempt; it doubles with each.
const BACKOFF: Duration = Duration::from_millis(250);
/// Longest time before a new attempt.
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// Maximum time until the first update.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes of an update, all its parts together.
const MAX_UPDATE_BYTES: usize = 64 << 20;

/// Why the stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Link(#[from] chainscope_tls::Error),
    #[error("the operator: {}", EscapedTruncated(.0.message()))]
    Status(Box<Status>),
    #[error(transparent)]
    Update(#[from] UpdateError),
    #[error("the parts of the operator's update differ in generation, or exceed {MAX_UPDATE_BYTES} bytes")]
    Parts,
    #[error("the operator sent no snapshot within {SNAPSHOT_TIMEOUT:?}")]
    Timeout,
    #[error("the operator ended the stream")]
    End,
    #[error("the thread that applies updates panicked")]
    Panicked,
}

impl From<Status> for StreamError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// Applies the updates of the operator until `stop`.
pub(crate) async fn follow(
    catalog: Arc<Catalog>,
    config: CatalogConfig,
    remote: Remote,
    build: String,
    stop: CancellationToken,
) {
    let mut backoff = BACKOFF;
    loop {
        let mut is_connected = false;
        let ended = tokio::select! {
            ended = subscribe(&catalog, &config, &remote, &build, &mut is_connected) => ended,
            () = stop.cancelled() => return,
        };
        catalog.set_connected(false);
        if is_connected {
            backoff = BACKOFF;
        }
        match ended {
            // Expected, for example when the token expires.
            Err(reason) if is_connected => tracing::info!(%reason, "the catalog stream ended"),
            Err(reason) => {
                warn_limited!(%reason, operator = config.operator, known = catalog.is_known(), "the catalog stream cannot be opened");
            }
            Ok(never) => match never {},
        }
        tokio::select! {
            () = sleep(backoff) => {}
            () = stop.cancelled() => return,
        }
        backoff = backoff.saturating_mul(2).min(MAX_BACKOFF);
    }
}

async fn subscribe(
    catalog: &Arc<Catalog>,
    config: &CatalogConfig,
    remote: &Remote,
    build: &str,
    is_connected: &mut bool,
) -> Result<std::convert::Infallible, StreamError> {
    let channel = remote.connect().await?;
    let (least_version, greatest_version) = VERSIONS;
    let mut request = Request::new(CatalogRequest { least_version, greatest_version, build: build.to_owned() });
    if let Some(file) = &config.token_file {
        Token::read(file)?.authorize(request.metadata_mut());
    }
    let mut client = ConfigurationClient::new(channel).max_decoding_message_size(MAX_UPDATE_BYTES);
    let first = async {
        let mut updates = client.catalog(request).await?.into_inner();
        let first = receive(&mut updates).await?;
        Ok::<_, StreamError>((updates, first))
    };
    let (mut updates, first) = timeout(SNAPSHOT_TIMEOUT, first).await.unwrap_or(Err(StreamError::Timeout))?;
    // Changes refer to the snapshot of the same stream.
    if !first.snapshot {
        return Err(UpdateError::NoSnapshot.into());
    }
    let mut next = first;
    loop {
        let (nodes, generation, snapshot) = (next.nodes.len(), next.generation, next.snapshot);
        apply(catalog, next).await?;
        *is_connected = true;
        catalog.set_connected(true);
        tracing::debug!(nodes, generation, snapshot, "the catalog was updated");
        next = receive(&mut updates).await?;
    }
}

/// Receives the next update with all its parts.
async fn receive(updates: &mut Streaming<CatalogUpdate>) -> Result<CatalogUpdate, StreamError> {
    let mut update = updates.message().await?.ok_or(StreamError::End)?;
    let mut bytes = update.encoded_len();
    while update.more {
        let part = updates.message().await?.ok_or(StreamError::End)?;
        bytes = bytes.saturating_add(part.encoded_len());
        if bytes > MAX_UPDATE_BYTES || part.generation != update.generation || part.snapshot != update.snapshot {
            return Err(StreamError::Parts);
        }
        update.nodes.extend(part.nodes);
        update.removed.extend(part.removed);
        update.more = part.more;
    }
    Ok(update)
}

/// Applies an update on a thread that may block.
async fn apply(catalog: &Arc<Catalog>, update: CatalogUpdate) -> Result<(), StreamError> {
    let catalog = Arc::clone(catalog);
    let applied = tokio::task::spawn_blocking(move || catalog.apply(update, now_ns())).await;
    Ok(applied.map_err(|_| StreamError::Panicked)??)
}
