//! The client of the config stream: one stream at a time, and another after a pause when it ends.

use std::{path::PathBuf, sync::Arc, time::Duration};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::v1::{
    HostHello, HostReport, HostStatus, HostUpdate, configuration_client::ConfigurationClient, host_report,
};
use chainscope_tls::{Remote, Token};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use super::{Reach, kept, report::is_significant_change};
use crate::{
    config::ClusterConfig,
    folder::Folder,
    targets::pod_map::{Parts, PodMap, UpdateError, VERSIONS},
};

/// How long an operator may take to send the first configuration: its own caches may still be filling.
const FIRST_UPDATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Least time between two statuses, and the time after which one is sent although nothing changed.
const STATUS_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Shortest and longest pause before another stream.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// The status of this host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// Number of the pod map that it describes.
    pub(crate) serial: u64,
    pub(crate) status: HostStatus,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Tls(#[from] chainscope_tls::Error),
    #[error("the operator ended the call: {:?}: {}", .0.code(), EscapedTruncated(.0.message()))]
    Refused(Box<Status>),
    #[error("the operator ended the stream")]
    Ended,
    #[error("the operator sent no configuration within {0:?}")]
    Silent(Duration),
    #[error(transparent)]
    Update(#[from] UpdateError),
}

impl From<Status> for StreamError {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// The client's state.
pub(crate) struct Client {
    operator: Remote,
    token_file: Option<PathBuf>,
    /// Where the configuration is kept; none: it is not kept.
    folder: Option<Folder>,
    map: PodMap,
    /// Counts the pod maps handed on, over all streams.
    serial: u64,
    maps: crossbeam_channel::Sender<(u64, Arc<PodMap>)>,
    reports: watch::Receiver<Report>,
    reach: Reach,
}

impl Client {
    /// `map` is the configuration that was kept, and has been handed on with serial 0.
    pub(crate) fn new(
        config: &ClusterConfig,
        folder: Option<Folder>,
        map: PodMap,
        maps: crossbeam_channel::Sender<(u64, Arc<PodMap>)>,
        reports: watch::Receiver<Report>,
        reach: Reach,
    ) -> Self {
        let (operator, token_file) = (config.operator.clone(), config.token_file.clone());
        Self { operator, token_file, folder, map, serial: 0, maps, reports, reach }
    }

    /// Keeps the configuration up to date; never returns.
    pub(crate) async fn run(mut self) {
        let mut pause = BACKOFF.0;
        loop {
            let result = self.stream(&mut pause).await;
            self.reach.set_connected(false);
            if let Err(error) = result {
                warn_limited!(%error, "the stream to the operator will be opened again; the last configuration holds");
            }
            // With jitter, so that many agents do not reconnect at once.
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    async fn stream(&mut self, pause: &mut Duration) -> Result<(), StreamError> {
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        let channel = self.operator.connect().await?;
        let (requests, outgoing) = mpsc::channel(2);
        let mut request = Request::new(ReceiverStream::new(outgoing));
        if let Some(token) = &token {
            token.authorize(request.metadata_mut());
        }
        let hello = HostHello {
            least_version: VERSIONS.0,
            greatest_version: VERSIONS.1,
            build: concat!("chainscope ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        requests.send(report(host_report::Report::Hello(hello))).await.map_err(|_| StreamError::Ended)?;
        let mut client = ConfigurationClient::new(channel);
        let opened = async {
            let (mut updates, mut parts) = (client.host(request).await?.into_inner(), Parts::default());
            loop {
                let part = updates.message().await?.ok_or(StreamError::Ended)?;
                if let Some(first) = parts.add(part)? {
                    return Ok::<_, StreamError>((updates, first));
                }
            }
        };
        let (updates, first) =
            timeout(FIRST_UPDATE_TIMEOUT, opened).await.map_err(|_| StreamError::Silent(FIRST_UPDATE_TIMEOUT))??;
        self.take(first, true)?;
        tracing::info!(generation = self.map.generation, pods = self.map.pods.len(), "configured by the operator");
        self.reach.set_connected(true);
        *pause = BACKOFF.0;
        self.follow(updates, requests).await
    }

    async fn follow(
        &mut self,
        mut updates: Streaming<HostUpdate>,
        requests: mpsc::Sender<HostReport>,
    ) -> Result<(), StreamError> {
        let since = self.serial;
        let mut parts = Parts::default();
        let mut sent: Option<(Instant, HostStatus)> = None;
        let mut tick = interval(STATUS_INTERVAL.0);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                part = updates.message() => {
                    if let Some(update) = parts.add(part?.ok_or(StreamError::Ended)?)? {
                        self.take(update, false)?;
                    }
                }
                _ = tick.tick() => {
                    let Report { serial, status } = self.reports.borrow().clone();
                    let is_due = match &sent {
                        Some((at, last)) => at.elapsed() >= STATUS_INTERVAL.1 || is_significant_change(last, &status),
                        None => true,
                    };
                    // Generations of an earlier stream have another meaning in this one.
                    if serial < since || !is_due {
                        continue;
                    }
                    match requests.try_send(report(host_report::Report::Status(status.clone()))) {
                        Ok(()) => sent = Some((Instant::now(), status)),
                        // The operator is slow: the next status replaces this one.
                        Err(mpsc::error::TrySendError::Full(_)) => {}
                        Err(mpsc::error::TrySendError::Closed(_)) => return Err(StreamError::Ended),
                    }
                }
            }
        }
    }

    /// Applies an update, keeps it on disk, and sends the pods to discovery.
    fn take(&mut self, update: HostUpdate, is_first: bool) -> Result<(), StreamError> {
        self.map.apply(update, is_first)?;
        self.serial += 1;
        if let Some(Err(error)) = self.folder.as_ref().map(|folder| kept::write(folder, &self.map)) {
            warn_limited!(%error, "the configuration cannot be kept: after a restart the operator is needed");
        }
        self.reach.set_configured();
        // Only a discovery thread that ended does not receive; its end is noticed elsewhere.
        let _ = self.maps.send((self.serial, Arc::new(self.map.clone())));
        Ok(())
    }
}

fn report(report: host_report::Report) -> HostReport {
    HostReport { report: Some(report) }
}
