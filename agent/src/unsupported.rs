//! A host that cannot record: instead of starting again and again, the agent says so to the operator, where a person
//! sees it as a condition.

use chainscope_proto::v1::HostStatus;
use tokio::sync::watch;

use crate::{
    Error,
    agent::{end_operator, start_operator},
    metrics::Monitor,
    operator::{Client, ClusterConfig, Reach, Report, pods::PodMap},
};

/// An agent that only says why it does not record.
#[derive(Debug)]
pub struct Unfit {
    operator: Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>,
    monitor: Monitor,
    /// The client reads from it.
    _reports: watch::Sender<Report>,
}

impl Unfit {
    /// Tells the operator why this host cannot record, until it is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(config: &ClusterConfig, cause: &Error) -> Result<Self, Error> {
        let reach = Reach::default();
        // Whatever configuration comes, this is said of it.
        let status = HostStatus { error: cause.to_string(), ..HostStatus::default() };
        let (reports, reported) = watch::channel(Report { serial: u64::MAX, status });
        // Nobody takes the maps.
        let (maps, _) = crossbeam_channel::unbounded();
        let client = Client::new(config, None, PodMap::default(), maps, reported, reach.clone());
        let operator = Some(start_operator(client)?);
        Ok(Self { operator, monitor: Monitor::unfit(cause.to_string(), reach), _reports: reports })
    }

    /// What probes and metrics are told.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }
}

impl Drop for Unfit {
    fn drop(&mut self) {
        end_operator(&mut self.operator);
    }
}
