//! A host on which nothing can be recorded: instead of restarting in a loop, the agent reports the cause to the operator,
//! which shows it as a condition.

use chainscope_proto::v1::HostStatus;
use tokio::sync::watch;

use crate::{
    Error,
    config::ClusterConfig,
    metrics::Monitor,
    operator::{Client, Reach, Report},
    targets::pod_map::PodMap,
    thread::AsyncThread,
};

/// An agent that only reports why it does not record. Dropping it ends the connection to the operator.
#[derive(Debug)]
pub struct Unsupported {
    _operator: AsyncThread,
    monitor: Monitor,
    /// The client reads from it.
    _reports: watch::Sender<Report>,
}

impl Unsupported {
    /// Reports to the operator why this host cannot record, until the value is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(config: &ClusterConfig, cause: &Error) -> Result<Self, Error> {
        let reach = Reach::default();
        // The cause holds for every configuration.
        let status = HostStatus { error: cause.to_string(), ..HostStatus::default() };
        let (reports, reported) = watch::channel(Report { serial: u64::MAX, status });
        // The maps have no receiver.
        let (maps, _) = crossbeam_channel::bounded(0);
        let client = Client::new(config, None, PodMap::default(), maps, reported, reach.clone());
        let operator = AsyncThread::spawn("chainscope-operator", move || client.run())?;
        Ok(Self { _operator: operator, monitor: Monitor::unsupported(cause.to_string(), reach), _reports: reports })
    }

    /// Health and metrics of this agent.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }
}
