//! The two kinds of clients: agents, which receive the pods of their host, and the aggregator, which receives the catalog.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_proto::v1::{
    CatalogNode, CatalogUpdate, HostReport, HostUpdate, ObservedPod, host_report, observed_pod,
};
use tonic::Status;

use super::{delta::Part, metrics::Metrics, reports::AgentStream, subscription::Subscriber, validate::validate};
use crate::desired::Desired;

/// Maximum size of an identity; an Octez identity has a few hundred bytes.
const MAX_IDENTITY_BYTES: usize = 64 << 10;

/// An agent, which receives the pods of its host.
pub(super) struct HostSubscriber {
    pub(super) host: String,
    pub(super) version: u32,
    pub(super) stream: AgentStream,
    pub(super) metrics: Metrics,
}

impl Subscriber for HostSubscriber {
    type Item = ObservedPod;
    type Update = HostUpdate;
    type Report = HostReport;
    const NAME: &'static str = "agent";

    fn desired<'a>(&self, desired: &'a Desired) -> Option<&'a BTreeMap<String, Arc<ObservedPod>>> {
        desired.hosts.get(&self.host).map(AsRef::as_ref)
    }

    fn to_update(&self, part: Part<ObservedPod>) -> HostUpdate {
        let Part { generation, snapshot, more, changed, removed } = part;
        let pods = changed.iter().map(|pod| without_oversized_identity(pod)).collect();
        HostUpdate { version: self.version, generation, snapshot, pods, removed, more }
    }

    fn on_report(&mut self, report: HostReport, desired: &Desired) -> Result<(), Status> {
        match report.report {
            Some(host_report::Report::Status(status)) => {
                let (status, ignored) = validate(status, desired.hosts.get(&self.host).map(AsRef::as_ref));
                self.metrics.status(ignored);
                self.stream.report(status);
                Ok(())
            }
            Some(host_report::Report::Hello(_)) => Err(Status::invalid_argument("a second hello")),
            // A message kind of a newer agent.
            None => Ok(()),
        }
    }
}

/// The pod, without an identity that would exceed the maximum frame size.
fn without_oversized_identity(pod: &ObservedPod) -> ObservedPod {
    match &pod.identity {
        Some(observed_pod::Identity::IdentityJson(json)) if json.len() > MAX_IDENTITY_BYTES => {
            let missing = observed_pod::Identity::IdentityMissing("the identity is longer than 64 KiB".to_owned());
            let pod = ObservedPod { identity: None, ..pod.clone() };
            ObservedPod { identity: Some(missing), ..pod }
        }
        _ => pod.clone(),
    }
}

/// The aggregator, which receives all nodes without identities.
pub(super) struct CatalogSubscriber {
    pub(super) version: u32,
}

impl Subscriber for CatalogSubscriber {
    type Item = CatalogNode;
    type Update = CatalogUpdate;
    type Report = ();
    const NAME: &'static str = "aggregator";

    fn desired<'a>(&self, desired: &'a Desired) -> Option<&'a BTreeMap<String, Arc<CatalogNode>>> {
        Some(&desired.catalog)
    }

    fn to_update(&self, part: Part<CatalogNode>) -> CatalogUpdate {
        let Part { generation, snapshot, more, changed, removed } = part;
        let nodes = changed.iter().map(|node| node.as_ref().clone()).collect();
        CatalogUpdate { version: self.version, generation, snapshot, nodes, removed, more }
    }

    fn on_report(&mut self, (): (), _: &Desired) -> Result<(), Status> {
        Ok(())
    }
}
