//! Parameters of requests about memory, and the processes that they select.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use chainscope_profile::{Kind, Kinds, ProfileData, Stacks, TreeError};
use chainscope_store::{Budget, Error as StoreError, Store};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::super::{
    app::AuthorizedNode,
    params::number,
    problem::Problem,
    time::{NS_PER_MS, nanoseconds, shown_time},
};
use crate::{
    access::permission::ReadMemory,
    memory::{Memory, ProcessState, restore},
};

/// Default of `threshold`, in kibibytes.
pub(super) const DEFAULT_THRESHOLD: u64 = 256;

/// Which part of the memory.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct MemoryParameters {
    /// Kinds of memory. Default: anonymous and page cache.
    kind: Option<KindName>,
    /// The difference to the last snapshot at or before this moment, since 1970: seconds below 10^11, milliseconds below
    /// 10^14, else nanoseconds. Values may be negative then.
    #[serde(deserialize_with = "number")]
    since: Option<u64>,
    /// The last snapshot at or before this moment, instead of the current state; units as for `since`.
    #[serde(deserialize_with = "number")]
    at: Option<u64>,
    /// Only the process with this id. Default: the sum of all processes of the node.
    #[serde(deserialize_with = "number")]
    #[param(value_type = Option<u32>)]
    pid: Option<u64>,
    /// Only the processes (or pods) of this name.
    target: Option<String>,
}

/// A kind of memory.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KindName {
    /// Anonymous pages: heap, stacks, private copies.
    Anon,
    /// Page cache that was read or written on behalf of the process.
    Cache,
    /// Of the kernel for the process: page tables, socket buffers and the like.
    Kernel,
    /// All of them.
    All,
}

/// The selected stacks.
pub(super) struct Selected {
    pub(super) stacks: Stacks,
    /// The processes now, or at the requested moment.
    pub(super) now: Vec<Arc<ProfileData>>,
    /// The moment that is shown: that of the newest process, nanoseconds since 1970.
    pub(super) time_ns: i64,
}

/// A snapshot's moment and processes, or the reason why there is none.
type Snapshot = Result<(i64, Vec<Arc<ProfileData>>), Problem>;

impl MemoryParameters {
    pub(super) fn kinds(&self) -> Kinds {
        match self.kind {
            None => Kinds::RESIDENT,
            Some(KindName::Anon) => Kinds::only(Kind::Anon),
            Some(KindName::Cache) => Kinds::only(Kind::Cache),
            Some(KindName::Kernel) => Kinds::only(Kind::Kernel),
            Some(KindName::All) => Kinds::ALL,
        }
    }

    /// Whether the difference to a snapshot is requested.
    pub(super) fn is_compared(&self) -> bool {
        self.since.is_some()
    }

    /// Makes a response of the selected stacks, on a thread of the pool. The last argument of `make` is whether the
    /// deadline has passed or the client has gone.
    pub(super) async fn respond<T: Send + 'static>(
        self,
        node: &AuthorizedNode<ReadMemory>,
        make: impl FnOnce(&Self, Selected, &dyn Fn() -> bool) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let memory = node.memory();
        node.read(move |store, node, budget| {
            let selected = self.select(store, &memory, node)?;
            Ok(selected.and_then(|selected| make(&self, selected, &|| is_exhausted(&budget))))
        })
        .await?
    }

    fn select(&self, store: &Store, memory: &Memory, node: &str) -> Result<Result<Selected, Problem>, StoreError> {
        let snapshot = |moment: i64, name: &str| -> Result<Snapshot, StoreError> {
            Ok(match store.memory_at(node, moment)? {
                Some((head, states)) => Ok((head.time_ns, restore(states))),
                None => Err(missing(store, node, name)?),
            })
        };
        let (at, now) = match self.at {
            None => (None, current(memory, node, self.pid.is_some() || self.target.is_some())),
            Some(moment) => match snapshot(last_shown_as(nanoseconds(moment)), "at")? {
                Ok((at, all)) => (Some(at), all),
                Err(problem) => return Ok(Err(problem)),
            },
        };
        let now: Vec<Arc<ProfileData>> = now.into_iter().filter(|data| self.matches(data)).collect();
        if now.is_empty() && (self.pid.is_some() || self.target.is_some()) {
            return Ok(Err(Problem::not_found("no such process of this node is observed: /v1/targets lists them")));
        }
        let newest = now.iter().map(|data| data.time_ns).max().unwrap_or_default();
        let time_ns = at.unwrap_or(newest);
        let Some(since) = self.since else {
            return Ok(Ok(Selected { stacks: Stacks::now(&now), now, time_ns }));
        };
        Ok(match snapshot(last_shown_as(nanoseconds(since)), "since")? {
            Err(problem) => Err(problem),
            Ok((_, then)) => {
                // A restarted process has another id, and is compared with its predecessor.
                let same_target =
                    |data: &Arc<ProfileData>| self.target.as_ref().is_none_or(|target| data.target == *target);
                let then: Vec<Arc<ProfileData>> = match self.pid {
                    Some(_) => then.into_iter().filter(|data| self.matches(data)).collect(),
                    None => then.into_iter().filter(same_target).collect(),
                };
                Ok(Selected { stacks: Stacks::compared(&now, &then), now, time_ns })
            }
        })
    }

    fn matches(&self, data: &ProfileData) -> bool {
        self.pid.is_none_or(|pid| u64::from(data.process.pid) == pid)
            && self.target.as_ref().is_none_or(|target| data.target == *target)
    }
}

/// Current processes; those that ended only if the request names one.
fn current(memory: &Memory, node: &str, by_name: bool) -> Vec<Arc<ProfileData>> {
    let targets = memory.targets(node);
    let shown = targets.into_iter().filter(|target| by_name || target.state != ProcessState::Ended);
    shown.map(|target| target.data).collect()
}

/// Whether the client has gone or the deadline has passed.
fn is_exhausted(budget: &Budget) -> bool {
    budget.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
        || budget.deadline.is_some_and(|deadline| Instant::now() > deadline)
}

fn missing(store: &Store, node: &str, parameter: &str) -> Result<Problem, StoreError> {
    let oldest = store.memory_snapshots(node, i64::MIN, i64::MAX)?.first().map(|head| head.time_ns / 1_000_000);
    let mut problem = Problem::not_found(match oldest {
        Some(ms) => format!("{parameter}: there is no snapshot at or before that moment, the oldest one is of {ms}"),
        None => format!("{parameter}: there is no snapshot of this node's memory"),
    });
    problem.parameter = Some(parameter.to_owned());
    Ok(problem)
}

/// The last moment that is shown as this one: responses show whole milliseconds.
fn last_shown_as(time_ns: i64) -> i64 {
    shown_time(time_ns).saturating_add(NS_PER_MS - 1)
}

impl From<TreeError> for Problem {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Nodes => Self::parameter("threshold", error),
            TreeError::Cancelled => Self::busy("the tree was not ready in time: a greater threshold makes it smaller"),
        }
    }
}
