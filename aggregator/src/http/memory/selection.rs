//! Parameters of requests about memory, and the processes that they select.

use std::sync::Arc;

use axum::response::Response;
use chainscope_profile::{Kind, Kinds, ProfileData, Stacks, TreeError};
use chainscope_store::{Error as StoreError, MemorySnapshot, Store};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::super::{
    app::{AuthorizedNode, is_exhausted},
    code::Code,
    conditional::{Audience, EntityTag, IfNoneMatch, not_modified, tagged},
    params::number,
    problem::Problem,
    time::{NS_PER_MS, nanoseconds, shown_time},
};
use crate::{
    access::permission::ReadMemory,
    memory::{Memory, ProcessState, Target, restore},
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

/// A snapshot with its processes, or the reason why there is none.
type Snapshot = Result<(MemorySnapshot, Vec<Arc<ProfileData>>), Problem>;

/// What a response is made of.
pub(super) enum Made<T> {
    /// The client has the response with this tag.
    Known(EntityTag),
    /// With the tag of the response.
    New(T, EntityTag),
}

impl<T> Made<T> {
    /// The response.
    pub(super) fn respond(self, respond: impl FnOnce(T) -> Result<Response, Problem>) -> Result<Response, Problem> {
        match self {
            Self::Known(tag) => Ok(not_modified(&tag, Audience::Caller)),
            Self::New(made, tag) => Ok(tagged(respond(made)?, &tag, Audience::Caller)),
        }
    }
}

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

    /// Makes a response of the selected stacks, on a thread of the pool, unless the client has it. The last argument of `make` is
    /// whether the deadline has passed or the client has gone.
    pub(super) async fn make<T: Send + 'static>(
        self,
        known: IfNoneMatch,
        node: &AuthorizedNode<ReadMemory>,
        make: impl FnOnce(&Self, Selected, &dyn Fn() -> bool) -> Result<T, Problem> + Send + 'static,
    ) -> Result<Made<T>, Problem> {
        let memory = node.memory();
        node.read(move |store, node, budget| {
            Ok(self.select(store, &memory, node, &known)?.and_then(|selected| {
                Ok(match selected {
                    Made::Known(tag) => Made::Known(tag),
                    Made::New(selected, tag) => Made::New(make(&self, selected, &|| is_exhausted(&budget))?, tag),
                })
            }))
        })
        .await?
    }

    /// Selects processes and adds up their stacks, unless the client has the response that is made of them.
    fn select(
        &self,
        store: &Store,
        memory: &Memory,
        node: &str,
        known: &IfNoneMatch,
    ) -> Result<Result<Made<Selected>, Problem>, StoreError> {
        let snapshot = |moment: i64, name: &str| -> Result<Snapshot, StoreError> {
            Ok(match store.memory_at(node, moment)? {
                Some((head, states)) => Ok((head, restore(states))),
                None => Err(missing(store, node, name)?),
            })
        };
        let (at, now, version): (Option<MemorySnapshot>, Vec<Arc<ProfileData>>, String) = match self.at {
            None => {
                let targets = self.current(memory, node);
                let version = targets.iter().map(version_of).collect();
                (None, targets.into_iter().map(|target| target.data).collect(), version)
            }
            Some(moment) => match snapshot(last_shown_as(nanoseconds(moment)), "at")? {
                Ok((at, all)) => {
                    let now = all.into_iter().filter(|data| self.matches(data)).collect();
                    let version = format!("{at:?}");
                    (Some(at), now, version)
                }
                Err(problem) => return Ok(Err(problem)),
            },
        };
        if now.is_empty() && (self.pid.is_some() || self.target.is_some()) {
            return Ok(Err(Problem::new(
                Code::UnknownProcess,
                "no such process of this node is observed: /v1/targets lists them",
            )));
        }
        let newest = now.iter().map(|data| data.time_ns).max().unwrap_or_default();
        let time_ns = at.as_ref().map_or(newest, |at| at.time_ns);
        let tag_of = |since: Option<&MemorySnapshot>| {
            known.tag(&[node.as_bytes(), version.as_bytes(), format!("{since:?}").as_bytes()])
        };
        let made = |tag: EntityTag, stacks: &dyn Fn() -> Stacks| match known.has(&tag) {
            true => Made::Known(tag),
            false => Made::New(Selected { stacks: stacks(), now: now.clone(), time_ns }, tag),
        };
        let Some(since) = self.since else {
            return Ok(Ok(made(tag_of(None), &|| Stacks::now(&now))));
        };
        Ok(snapshot(last_shown_as(nanoseconds(since)), "since")?.map(|(head, then)| {
            // A restarted process has another id, and is compared with its predecessor.
            let same_target =
                |data: &Arc<ProfileData>| self.target.as_ref().is_none_or(|target| data.target == *target);
            let then: Vec<Arc<ProfileData>> = match self.pid {
                Some(_) => then.into_iter().filter(|data| self.matches(data)).collect(),
                None => then.into_iter().filter(same_target).collect(),
            };
            made(tag_of(Some(&head)), &|| Stacks::compared(&now, &then))
        }))
    }

    /// Current processes; those that ended only if the request names one.
    fn current(&self, memory: &Memory, node: &str) -> Vec<Target> {
        let by_name = self.pid.is_some() || self.target.is_some();
        let mut targets = memory.targets(node);
        targets.retain(|target| (by_name || target.state != ProcessState::Ended) && self.matches(&target.data));
        targets
    }

    fn matches(&self, data: &ProfileData) -> bool {
        self.pid.is_none_or(|pid| u64::from(data.process.pid) == pid)
            && self.target.as_ref().is_none_or(|target| data.target == *target)
    }
}

/// What determines the merged state of a process. Sequence numbers begin anew with each profile, whose number is the time of its
/// attach.
fn version_of(target: &Target) -> String {
    let Target { agent, state, sequence, data } = target;
    let (profile, pid, time_ns) = (data.profile, data.process.pid, data.time_ns);
    format!("{agent:?} {profile} {pid} {sequence} {time_ns} {};", state.name())
}

fn missing(store: &Store, node: &str, parameter: &str) -> Result<Problem, StoreError> {
    let oldest = store.memory_snapshots(node, i64::MIN, i64::MAX)?.first().map(|head| head.time_ns / 1_000_000);
    let why = match oldest {
        Some(ms) => format!("there is no snapshot at or before that moment, the oldest one is of {ms}"),
        None => "there is no snapshot of this node's memory".to_owned(),
    };
    Ok(Problem::of_parameter(Code::UnknownSnapshot, parameter, why))
}

/// The last moment that is shown as this one: responses show whole milliseconds.
fn last_shown_as(time_ns: i64) -> i64 {
    shown_time(time_ns).saturating_add(NS_PER_MS - 1)
}

impl From<TreeError> for Problem {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Nodes => Self::of_parameter(Code::QueryTooWide, "threshold", error),
            TreeError::Cancelled => {
                let why = "the tree was not ready in time: a greater one makes it smaller";
                Self::of_parameter(Code::QueryTooWide, "threshold", why)
            }
        }
    }
}
