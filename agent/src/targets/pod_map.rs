//! The pods to observe on this host, put together from the operator's updates. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytesize::ByteSize;
use chainscope_hygiene::EscapedTruncated;
use chainscope_proto::v1::{
    HostUpdate, LatencyOptions, LatencyTarget, ObservedPod, latency_target::Select, observed_pod,
};
use chainscope_spec::{Latency, Redaction, Stored, TimedFunction, Trace, TraceError, TraceRule};
use chainscope_tezos::Identity;
use zeroize::Zeroize as _;

use super::{Assignment, ContainerId, ContainerLocation, Logs, Network, Observe, PodUid, identity::Source};

/// Versions of the config stream that this build supports, least and greatest.
pub(crate) const VERSIONS: (u32, u32) = (1, 1);

/// Longest accepted name of a node: two Kubernetes names and a separator.
const MAX_NODE: usize = 2 * 253 + 1;

/// A pod that is to be observed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) node_generation: i64,
    pub(crate) containers: BTreeSet<ContainerId>,
    /// File name of the node's executable.
    pub(crate) process: String,
    pub(crate) assignment: Assignment,
    /// Why it cannot be observed as it is described.
    pub(crate) fault: Option<String>,
    /// Why its log messages cannot be recorded; the rest is observed.
    pub(crate) logs_fault: Option<String>,
    /// Why events of its tracepoints cannot be recorded; the rest is observed.
    pub(crate) trace_fault: Option<String>,
    /// Its identity is in a Secret, and the operator has not sent it since the agent started.
    pub(crate) awaits_identity: bool,
    path_uid: Option<PodUid>,
    /// As it was received, without its identity.
    bare: ObservedPod,
}

/// Why an update is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error("version {0} of the config stream, this agent speaks {least} to {greatest}", least = VERSIONS.0, greatest = VERSIONS.1)]
    Version(u32),
    #[error("changes came before a whole configuration")]
    NoSnapshot,
    #[error("generation {next} came after {known}")]
    Order { known: u64, next: u64 },
    #[error("a part of generation {with} came before all parts of {of}")]
    Parts { of: u64, with: u64 },
    #[error("{0} pods in one update, at most 16384 are taken")]
    TooMuch(usize),
}

/// All pods of this host.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PodMap {
    /// Of the last update.
    pub(crate) generation: u64,
    /// By uid.
    pub(crate) pods: BTreeMap<String, Arc<Pod>>,
    by_container: BTreeMap<ContainerId, Vec<String>>,
    by_uid: BTreeMap<PodUid, String>,
}

impl PodMap {
    /// Applies an update. `is_first`: it is the first of its stream, so its generation is compared with nothing.
    pub(crate) fn apply(&mut self, update: HostUpdate, is_first: bool) -> Result<(), UpdateError> {
        if !(VERSIONS.0..=VERSIONS.1).contains(&update.version) {
            return Err(UpdateError::Version(update.version));
        }
        if is_first && !update.snapshot {
            return Err(UpdateError::NoSnapshot);
        }
        if !is_first && update.generation <= self.generation {
            return Err(UpdateError::Order { known: self.generation, next: update.generation });
        }
        if update.snapshot {
            self.pods.clear();
        }
        for uid in &update.removed {
            self.pods.remove(uid);
        }
        for pod in update.pods {
            // A pod without a uid cannot be reported.
            if let Some(pod) = Pod::new(pod) {
                self.pods.insert(pod.uid.clone(), Arc::new(pod));
            }
        }
        self.generation = update.generation;
        self.index();
        Ok(())
    }

    fn index(&mut self) {
        self.by_container.clear();
        self.by_uid.clear();
        for (uid, pod) in &self.pods {
            for container in &pod.containers {
                self.by_container.entry(container.clone()).or_default().push(uid.clone());
            }
            if let Some(path_uid) = &pod.path_uid {
                self.by_uid.insert(path_uid.clone(), uid.clone());
            }
        }
    }

    /// Nodes of all pods.
    pub(crate) fn nodes(&self) -> BTreeSet<String> {
        let assignments = self.pods.values().map(|pod| &pod.assignment);
        assignments.flat_map(|one| [&one.node, one.traced_node()]).map(ToString::to_string).collect()
    }

    /// The pod of a process in this location. A pod that claims a container whose path has another pod's uid does not
    /// get it, and of two that claim one without a uid in its path neither does.
    pub(crate) fn pod_at(&self, location: &ContainerLocation) -> Option<&Arc<Pod>> {
        let claims = self.by_container.get(&location.container)?;
        let mut of = claims.iter().filter_map(|uid| self.pods.get(uid)).filter(|pod| match &location.pod {
            Some(uid) => pod.path_uid.as_ref() == Some(uid),
            None => true,
        });
        let pod = of.next()?;
        of.next().is_none().then_some(pod)
    }

    /// Everything but identities, to be kept on disk.
    pub(crate) fn bare(&self) -> HostUpdate {
        HostUpdate {
            version: VERSIONS.1,
            generation: self.generation,
            snapshot: true,
            pods: self.pods.values().map(|pod| pod.bare.clone()).collect(),
            removed: Vec::new(),
            more: false,
        }
    }
}

/// Most pods in one update; a host has about a hundred.
const MAX_PODS: usize = 16_384;

/// An update that arrives in parts.
#[derive(Debug, Default)]
pub(crate) struct Parts(Option<HostUpdate>);

impl Parts {
    /// Adds a part; returns the whole update with its last one.
    pub(crate) fn add(&mut self, part: HostUpdate) -> Result<Option<HostUpdate>, UpdateError> {
        let mut whole = match self.0.take() {
            None => part,
            Some(mut whole) => {
                if (whole.generation, whole.snapshot) != (part.generation, part.snapshot) {
                    return Err(UpdateError::Parts { of: whole.generation, with: part.generation });
                }
                whole.pods.extend(part.pods);
                whole.removed.extend(part.removed);
                HostUpdate { more: part.more, ..whole }
            }
        };
        let count = whole.pods.len() + whole.removed.len();
        if count > MAX_PODS {
            return Err(UpdateError::TooMuch(count));
        }
        if std::mem::take(&mut whole.more) {
            self.0 = Some(whole);
            return Ok(None);
        }
        Ok(Some(whole))
    }
}

/// Reason for an identity that came from the operator and was not kept on disk.
const AWAY: &str = "comes from a Secret, and the operator has not been reached since this agent started";

impl Pod {
    fn new(mut pod: ObservedPod) -> Option<Self> {
        if pod.uid.is_empty() {
            return None;
        }
        let source = source(pod.identity.take(), &mut pod);
        let mut fault = None;
        let mut faulty = |what: String| {
            fault.get_or_insert(what);
        };
        let trace_node = trace_node(&pod).map(|(node, _)| node.to_owned());
        for node in [&pod.node].into_iter().chain(&trace_node) {
            if node.is_empty() || node.len() > MAX_NODE || node.chars().any(char::is_control) {
                faulty(format!("{:?} is no name of a node", EscapedTruncated(node).to_string()));
            }
        }
        if pod.process.is_empty() || pod.process.contains('/') {
            faulty(format!("{:?} is no file name of a program", EscapedTruncated(&pod.process).to_string()));
        }
        let p2p_port = pod.p2p_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
        if let (Some(port), None) = (pod.p2p_port, p2p_port) {
            faulty(format!("{port} is no port"));
        }
        let network = pod.network.unwrap_or(chainscope_proto::v1::NetworkOptions { enabled: true, plain_only: false });
        let (logs, logs_fault) = match logs(&pod) {
            Ok(logs) => (logs, None),
            Err(cause) => (None, Some(format!("no log messages are recorded: {cause}"))),
        };
        let (trace, trace_fault) = match trace(&pod) {
            Ok(trace) => (trace, None),
            Err(cause) => {
                (None, Some(format!("no tracepoints are recorded: {}", EscapedTruncated(&cause.to_string()))))
            }
        };
        let awaits_identity = matches!(&source, Source::Missing(reason) if reason == AWAY);
        Some(Self {
            uid: pod.uid.clone(),
            node_generation: pod.node_generation,
            containers: pod.container_ids.iter().filter_map(|id| ContainerId::parse(id)).collect(),
            process: pod.process.clone(),
            assignment: Assignment {
                node: pod.node.as_str().into(),
                label: format!("{}/{}", EscapedTruncated(&pod.namespace), EscapedTruncated(&pod.name)).into(),
                p2p_port,
                identity: source,
                observe: Observe {
                    network: network
                        .enabled
                        .then_some(Network { store: if network.plain_only { Stored::Plain } else { Stored::Both } }),
                    memory: pod.memory.is_some_and(|memory| memory.enabled),
                    logs,
                    trace,
                    trace_node: trace_node.map(Into::into),
                },
            },
            fault,
            logs_fault,
            trace_fault,
            awaits_identity,
            path_uid: PodUid::parse(&pod.uid),
            bare: pod,
        })
    }

    /// The node of the events of its tracepoints and its generation, if it is not that of the pod.
    pub(crate) fn trace_node(&self) -> Option<(&str, i64)> {
        trace_node(&self.bare)
    }

    /// False: the pod is known, and none of its pillars is enabled.
    pub(crate) fn is_observed(&self) -> bool {
        !self.assignment.observe.is_empty()
    }
}

/// Options of the logs pillar. The error is what cannot be used: nothing is recorded that would have to be redacted.
fn logs(pod: &ObservedPod) -> Result<Option<Logs>, String> {
    let Some(options) = pod.logs.as_ref().filter(|logs| logs.enabled) else { return Ok(None) };
    let redact = Redaction::new(&options.redact).map_err(|cause| EscapedTruncated(&cause.to_string()).to_string())?;
    let parts = [&pod.namespace, &pod.name, &pod.uid, &pod.container];
    if parts.iter().any(|part| part.is_empty() || part.contains(['/', '\0'])) || pod.container.starts_with('.') {
        return Err(format!("{:?} is no container of a pod", EscapedTruncated(&pod.container).to_string()));
    }
    let pod_dir = format!("{}_{}_{}/{}", pod.namespace, pod.name, pod.uid, pod.container);
    Ok(Some(Logs { redact, pod_dir: Some(pod_dir.into()) }))
}

fn trace_node(pod: &ObservedPod) -> Option<(&str, i64)> {
    let trace = pod.trace.as_ref().filter(|trace| !trace.node.is_empty() && trace.node != pod.node)?;
    Some((&trace.node, trace.node_generation))
}

/// Options of the tracepoints pillar.
fn trace(pod: &ObservedPod) -> Result<Option<Arc<Trace>>, TraceError> {
    let Some(options) = pod.trace.as_ref().filter(|trace| trace.enabled) else { return Ok(None) };
    let rules = options
        .rules
        .iter()
        .map(|rule| TraceRule { tracepoints: rule.tracepoints.clone(), filter: rule.filters.clone() });
    let default = Trace::of::<&str>([]);
    let trace = Trace {
        rules: rules.collect(),
        max_text: options.max_text_bytes.map_or(default.max_text, ByteSize::b),
        max_payload: options.max_payload_bytes.map_or(default.max_payload, ByteSize::b),
        contract: Some(options.contract.clone()).filter(|contract| !contract.is_empty()),
        latency: options.latency.as_ref().map(latency),
        ..default
    };
    trace.validate().map(|()| Some(Arc::new(trace)))
}

/// Options of the latency pillar.
fn latency(options: &LatencyOptions) -> Latency {
    let function = |target: &LatencyTarget| {
        let returns = target.returns;
        match target.select.clone() {
            Some(Select::Function(function)) => {
                TimedFunction { function: Some(function), returns, ..TimedFunction::default() }
            }
            Some(Select::Span(span)) => TimedFunction { span: Some(span), returns, ..TimedFunction::default() },
            Some(Select::Set(set)) => TimedFunction { set: Some(set), returns, ..TimedFunction::default() },
            // Of a later operator; refused by the validation.
            None => TimedFunction::default(),
        }
    };
    let default = Latency::of::<&str>([]);
    Latency {
        functions: options.functions.iter().map(function).collect(),
        block: options.block_ms.map_or(default.block, Duration::from_millis),
        tags: options.tags.clone(),
        commit: Some(options.commit.clone()).filter(|commit| !commit.is_empty()),
        version: Some(options.version.clone()).filter(|version| !version.is_empty()),
    }
}

/// The source of the identity; leaves no secret in `bare`.
fn source(identity: Option<observed_pod::Identity>, bare: &mut ObservedPod) -> Source {
    use observed_pod::Identity as Received;
    match identity {
        Some(Received::IdentityPath(path)) => {
            bare.identity = Some(Received::IdentityPath(path.clone()));
            Source::InRoot(PathBuf::from(path))
        }
        Some(Received::IdentityJson(mut json)) => {
            bare.identity = Some(Received::IdentityMissing(AWAY.to_owned()));
            let read = Identity::from_json(&json);
            json.zeroize();
            match read {
                Ok(identity) => Source::Given(Arc::new(identity)),
                Err(cause) => Source::Missing(format!("the Secret's identity: {cause}")),
            }
        }
        Some(Received::IdentityMissing(reason)) => {
            bare.identity = Some(Received::IdentityMissing(reason.clone()));
            Source::Missing(EscapedTruncated(&reason).to_string())
        }
        None => Source::Missing("none was configured".to_owned()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
