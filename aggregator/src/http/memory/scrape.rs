//! Metrics of the memory pillar: sums over the observed processes of a node, by kind.

use std::collections::BTreeMap;

use chainscope_profile::{Kind, ProfileData};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use super::super::{app::OperationsAccess, scrape::NodeLabels};
use crate::memory::{ProcessState, Target};

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    node: String,
    kind: &'static str,
}

type ByKind = Family<KindLabels, Gauge>;
type ByNode = Family<NodeLabels, Gauge>;

/// Registers the metrics of all nodes.
pub(crate) fn scrape(registry: &mut Registry, access: &OperationsAccess) {
    let memory = access.memory();
    let (attributed, before, unattributed) = (ByKind::default(), ByKind::default(), ByKind::default());
    let (targets, stacks, lost) = (ByNode::default(), ByNode::default(), ByNode::default());
    for node in memory.nodes().into_iter().filter(|node| access.nodes().knows(node)) {
        let mut all = memory.targets(&node);
        all.retain(|target| target.state != ProcessState::Ended);
        let shown: Vec<&ProfileData> = all.iter().map(|target| &*target.data).collect();
        for kind in Kind::ALL {
            let labels = KindLabels { node: node.clone(), kind: kind.name() };
            let sum =
                |of: &dyn Fn(&ProfileData) -> i64| shown.iter().map(|data| of(data)).fold(0i64, i64::saturating_add);
            let bytes = |kib: i64| kib.saturating_mul(1024);
            let unsigned = |kib: u64| i64::try_from(kib).unwrap_or(i64::MAX);
            let at = kind.index();
            attributed.get_or_create(&labels).set(bytes(sum(&|data| unsigned(data.attributed()[at]))));
            before.get_or_create(&labels).set(bytes(sum(&|data| unsigned(data.before_attach()[at]))));
            unattributed.get_or_create(&labels).set(bytes(sum(&|data| data.unattributed()[at])));
        }
        let labels = NodeLabels { node };
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        targets.get_or_create(&labels).set(count(shown.len()));
        stacks.get_or_create(&labels).set(count(shown.iter().map(|data| data.stacks()).sum()));
        lost.get_or_create(&labels).set(i64::try_from(lost_on_hosts(&all)).unwrap_or(i64::MAX));
    }
    for (name, help, family) in [
        ("memory_attributed", "Resident memory held by known stacks", attributed),
        ("memory_before_attach", "Resident memory from before the attach", before),
        ("memory_unattributed", "Resident memory that nothing explains; negative if more is attributed", unattributed),
    ] {
        registry.register_with_unit(name, help, Unit::Bytes, family);
    }
    registry.register("memory_targets", "Processes whose memory is observed", targets);
    registry.register("memory_stacks", "Distinct stacks that hold memory", stacks);
    registry.register("memory_lost", "Pages or events that could not be accounted for, on the hosts of the node", lost);
}

/// Losses are counted by host: each of its processes reports the same number, or an older one.
fn lost_on_hosts(targets: &[Target]) -> u64 {
    let mut hosts: BTreeMap<&str, u64> = BTreeMap::new();
    for target in targets {
        let lost = target.data.totals.lost.iter().map(|each| each.count).fold(0, u64::saturating_add);
        let most = hosts.entry(&target.agent).or_default();
        *most = lost.max(*most);
    }
    hosts.into_values().fold(0, u64::saturating_add)
}
