//! The subscription at the operator.

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

use super::{Catalog, CatalogConfig, UpdateError};
use crate::clock::now_ns;

/// Pause before the first new try; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// How long the operator may take for its first word.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest update, in bytes, all its parts together: a snapshot of many nodes.
const LARGEST: usize = 64 << 20;

/// Why the subscription ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Link(#[from] chainscope_tls::Error),
    #[error("the operator: {}", EscapedTruncated(.0.message()))]
    Status(Box<Status>),
    #[error(transparent)]
    Update(#[from] UpdateError),
    #[error("the operator's update has parts that do not belong together, or is larger than {LARGEST} bytes")]
    Parts,
    #[error("the operator says nothing")]
    Silent,
    #[error("the operator ended the stream")]
    End,
    #[error("a thread of this program ended")]
    Thread,
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// Follows the operator until `stop`.
pub(crate) async fn follow(
    catalog: Arc<Catalog>,
    config: CatalogConfig,
    remote: Remote,
    build: String,
    stop: CancellationToken,
) {
    let mut pause = PAUSE;
    loop {
        let mut has_heard = false;
        let ended = tokio::select! {
            ended = subscribe(&catalog, &config, &remote, &build, &mut has_heard) => ended,
            () = stop.cancelled() => return,
        };
        catalog.set_connected(false);
        if has_heard {
            pause = PAUSE;
        }
        match ended {
            // As when its token expired: nothing to tell.
            Err(reason) if has_heard => tracing::info!(%reason, "the catalog's stream ended"),
            Err(reason) => {
                warn_limited!(%reason, operator = config.operator, known = catalog.is_known(), "the catalog cannot be followed");
            }
            Ok(never) => match never {},
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

async fn subscribe(
    catalog: &Arc<Catalog>,
    config: &CatalogConfig,
    remote: &Remote,
    build: &str,
    has_heard: &mut bool,
) -> Result<std::convert::Infallible, Ended> {
    let channel = remote.connect().await?;
    let (least_version, greatest_version) = VERSIONS;
    let mut request = Request::new(CatalogRequest { least_version, greatest_version, build: build.to_owned() });
    if let Some(file) = &config.token_file {
        Token::read(file)?.authorize(request.metadata_mut());
    }
    let mut client = ConfigurationClient::new(channel).max_decoding_message_size(LARGEST);
    let first = async {
        let mut updates = client.catalog(request).await?.into_inner();
        let first = whole(&mut updates).await?;
        Ok::<_, Ended>((updates, first))
    };
    let (mut updates, first) = timeout(PATIENCE, first).await.unwrap_or(Err(Ended::Silent))?;
    // Changes make sense only after a whole of the same stream.
    if !first.snapshot {
        return Err(UpdateError::NoSnapshot.into());
    }
    let mut next = first;
    loop {
        let (nodes, generation, snapshot) = (next.nodes.len(), next.generation, next.snapshot);
        apply(catalog, next).await?;
        *has_heard = true;
        catalog.set_connected(true);
        tracing::debug!(nodes, generation, snapshot, "the catalog was updated");
        next = whole(&mut updates).await?;
    }
}

/// The next update, with all its parts.
async fn whole(updates: &mut Streaming<CatalogUpdate>) -> Result<CatalogUpdate, Ended> {
    let mut whole = updates.message().await?.ok_or(Ended::End)?;
    let mut bytes = whole.encoded_len();
    while whole.more {
        let part = updates.message().await?.ok_or(Ended::End)?;
        bytes = bytes.saturating_add(part.encoded_len());
        if bytes > LARGEST || part.generation != whole.generation || part.snapshot != whole.snapshot {
            return Err(Ended::Parts);
        }
        whole.nodes.extend(part.nodes);
        whole.removed.extend(part.removed);
        whole.more = part.more;
    }
    Ok(whole)
}

/// Takes an update over, on a thread that may wait for the disk.
async fn apply(catalog: &Arc<Catalog>, update: CatalogUpdate) -> Result<(), Ended> {
    let catalog = Arc::clone(catalog);
    let applied = tokio::task::spawn_blocking(move || catalog.apply(update, now_ns())).await;
    Ok(applied.map_err(|_| Ended::Thread)??)
}
