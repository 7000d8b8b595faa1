//! `/v1/pid`, `/v1/targets`: the observed processes.

use std::collections::BTreeMap;

use axum::{body::Body, response::Response};
use chainscope_profile::Kind;
use chainscope_proto::v1::ReasonCount;
use serde::Serialize;
use utoipa::ToSchema;

use super::super::{app::AuthorizedNode, list, params::NodeParameters, problem::Problem, response};
use crate::{
    access::permission::ReadMemory,
    memory::{ProcessState, Target},
};

/// An observed process.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessView {
    /// What `target` may name.
    #[schema(example = "default/octez-0")]
    target: String,
    /// In the PID namespace of its host.
    pid: u32,
    name: String,
    /// `running`; `silent`: its agent is away; `ended`.
    state: &'static str,
    /// Why it ended, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_by: Option<String>,
    /// The agent that observes it.
    agent: String,
    /// When the process started, was attached to, was read last, and ended: milliseconds since 1970, null if unknown.
    started: Option<i64>,
    attached: Option<i64>,
    updated: Option<i64>,
    ended: Option<i64>,
    /// Distinct stacks that hold something.
    stacks: usize,
    anon: KindView,
    cache: KindView,
    kernel: KindView,
    /// The kernel's own count, which the rest is measured against.
    control: ControlView,
    /// Stacks by how their unwinding ended.
    unwound: BTreeMap<String, u64>,
    /// What could not be accounted for, by reason.
    lost: BTreeMap<String, u64>,
}

/// One kind of memory, in kibibytes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KindView {
    /// Held by stacks.
    attributed: u64,
    /// Resident before the attach, and not freed since.
    before_attach: u64,
    /// The kernel's count minus both; negative if more is attributed than it has.
    unattributed: i64,
}

/// What the kernel counts, in kibibytes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ControlView {
    anon: u64,
    file: u64,
    shmem: u64,
    swap: u64,
}

impl From<&Target> for ProcessView {
    fn from(target: &Target) -> Self {
        let Target { agent, state, data, .. } = target;
        let (process, totals) = (&data.process, &data.totals);
        let time = |ns: i64| (ns != 0).then(|| ns.div_euclid(1_000_000));
        let (attributed, before, unattributed) = (data.attributed(), data.before_attach(), data.unattributed());
        let kind = |kind: Kind| {
            let at = kind.index();
            KindView { attributed: attributed[at], before_attach: before[at], unattributed: unattributed[at] }
        };
        Self {
            target: data.target.clone(),
            pid: process.pid,
            name: process.name.clone(),
            state: state.name(),
            ended_by: (*state == ProcessState::Ended && !process.ended_by.is_empty()).then(|| process.ended_by.clone()),
            agent: String::from(&**agent),
            started: time(process.started_ns),
            attached: time(i64::try_from(data.profile).unwrap_or(i64::MAX)),
            updated: time(data.time_ns),
            ended: time(process.ended_ns),
            stacks: data.stacks(),
            anon: kind(Kind::Anon),
            cache: kind(Kind::Cache),
            kernel: kind(Kind::Kernel),
            control: ControlView {
                anon: data.kib(totals.control_anon),
                file: data.kib(totals.control_file),
                shmem: data.kib(totals.control_shmem),
                swap: data.kib(totals.control_swap),
            },
            unwound: by_reason(&totals.stacks),
            lost: by_reason(&totals.lost),
        }
    }
}

fn by_reason(counts: &[ReasonCount]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for each in counts {
        let sum: &mut u64 = sums.entry(each.reason.clone()).or_default();
        *sum = sum.saturating_add(each.count);
    }
    sums
}

/// The node's process: of several that run the oldest. 0 while none is known to run.
#[utoipa::path(get, path = "/v1/pid", params(NodeParameters), responses(
    (status = 200, description = "A process id in the PID namespace of its host.", body = u32, content_type = "application/json"),
    (status = 400, description = "Several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn pid(node: AuthorizedNode<ReadMemory>) -> Result<Response, Problem> {
    let targets = node.memory().targets(node.name());
    let running = targets.iter().filter(|target| target.state != ProcessState::Ended);
    // Processes whose agent is connected come before those whose agent is not.
    let oldest = running.min_by_key(|target| target.state).map_or(0, |target| target.data.process.pid);
    Ok(response::json(Body::from(oldest.to_string())))
}

/// All observed processes of the node, the oldest first.
#[utoipa::path(get, path = "/v1/targets", params(NodeParameters), responses(
    (status = 200, description = "The processes; possibly none.", body = Vec<ProcessView>),
    (status = 400, description = "Several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn targets(node: AuthorizedNode<ReadMemory>) -> Result<Response, Problem> {
    let memory = node.memory();
    let json = node.read(move |_, node, _| Ok(list::array(memory.targets(node).iter().map(ProcessView::from))));
    Ok(response::json(Body::from(json.await?)))
}
