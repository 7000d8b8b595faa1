//! The logs pillar: knows its targets, and records nothing yet.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::{
    Error,
    config::NodeConfig,
    openmetrics::gauge,
    pillar::{Pillar, PillarStatus},
    status::ActiveSink,
    targets::{Inbox, TargetChange},
};

/// The running logs pillar.
#[derive(Debug, Default)]
pub(crate) struct LogsPillar(Arc<Targets>);

/// Process ids of the targets.
#[derive(Debug, Default)]
struct Targets(Mutex<BTreeSet<u32>>);

impl LogsPillar {
    pub(crate) fn start(_nodes: &[NodeConfig], _sink: ActiveSink) -> Result<Self, Error> {
        Ok(Self::default())
    }

    pub(crate) fn inbox(&self) -> Box<dyn Inbox> {
        Box::new(LogsInbox(Arc::clone(&self.0)))
    }
}

impl Pillar for LogsPillar {
    fn status(&self) -> Arc<dyn PillarStatus> {
        Arc::<Targets>::clone(&self.0)
    }
}

impl PillarStatus for Targets {
    fn register(&self, registry: &mut Registry) {
        gauge(registry, "logs_targets", "Processes whose log is recorded", self.0.lock().len() as u64);
    }
}

struct LogsInbox(Arc<Targets>);

impl Inbox for LogsInbox {
    fn put(&mut self, change: &TargetChange) -> Result<(), Error> {
        let mut targets = self.0.0.lock();
        match change {
            TargetChange::Started(target) if target.assignment.observe.logs.is_some() => {
                targets.insert(target.facts.pid);
            }
            TargetChange::Changed(pid, assignment) if assignment.observe.logs.is_some() => {
                targets.insert(*pid);
            }
            TargetChange::Changed(pid, _) | TargetChange::Released(pid) | TargetChange::Exited(pid) => {
                targets.remove(pid);
            }
            _ => {}
        }
        Ok(())
    }
}
