//! What a request about memory asks, and the processes that it means.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use chainscope_profile::{Kind, Kinds, ProfileData, Stacks, TreeError};
use chainscope_store::{Budget, Error as StoreError, Store};
use utoipa::{IntoParams, ToSchema};

use super::super::{
    app::{App, Asked},
    form::{Form, shown},
    problem::Problem,
    query::{nanoseconds, shown_time},
};
use crate::memory::{Memory, Standing, restore};

/// Kibibytes that a child holds at least, if nothing is said.
const THRESHOLD: u64 = 256;

/// Which part of the memory.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation of what is read by hand
pub(super) struct MemoryParameters {
    /// The node: its name, `namespace/name`, or an alias such as its P2P port. Without it: the node called `tezedge`, else
    /// the only node. Not looked at below `/nodes/…`.
    node_name: Option<String>,
    /// Kinds of memory. [default: anonymous and page cache]
    kind: Option<KindName>,
    /// The difference to the last snapshot at or before this moment, since 1970: seconds below 10^11, milliseconds below
    /// 10^14, else nanoseconds. Values may then be negative.
    since: Option<u64>,
    /// The last snapshot at or before this moment, instead of what is now; units as for `since`.
    at: Option<u64>,
    /// Only the process with this id. [default: all processes of the node, added up]
    pid: Option<u32>,
    /// Only the processes (or pods) of this name.
    target: Option<String>,
}

/// A kind of memory.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code)] // documentation of what is read by hand
pub(crate) enum KindName {
    /// Anonymous pages: heap, stacks, private copies.
    Anon,
    /// Page cache that was read or written on the process's behalf.
    Cache,
    /// Of the kernel for the process: page tables, socket buffers and the like.
    Kernel,
    /// All of them.
    All,
}

/// What a request asks.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) kinds: Kinds,
    pub(super) threshold: u64,
    pub(super) reverse: Option<bool>,
    since: Option<i64>,
    at: Option<i64>,
    pid: Option<u64>,
    target: Option<String>,
}

/// The stacks that are meant.
pub(super) struct Found {
    pub(super) stacks: Stacks,
    /// The processes now, or at the moment asked for.
    pub(super) now: Vec<Arc<ProfileData>>,
    /// The moment shown: of the newest of them, nanoseconds since 1970.
    pub(super) time_ns: i64,
}

/// A snapshot's moment and processes, or why there is none.
type Kept = Result<(i64, Vec<Arc<ProfileData>>), Problem>;

impl Ask {
    pub(super) fn read(form: &Form<'_>) -> Result<Self, Problem> {
        let moment = |name| Ok::<_, Problem>(form.number(name)?.map(nanoseconds).map(last_shown_as));
        Ok(Self {
            kinds: kinds(form)?,
            threshold: form.number("threshold")?.unwrap_or(THRESHOLD),
            reverse: form.boolean("reverse")?,
            since: moment("since")?,
            at: moment("at")?,
            pid: form.number("pid")?,
            target: form.text("target")?.map(str::to_owned),
        })
    }

    pub(super) fn is_compared(&self) -> bool {
        self.since.is_some()
    }

    /// Answers with what is made of the stacks that are meant, on a thread of the pool.
    pub(super) async fn answer<T: Send + 'static>(
        self,
        app: &App,
        asked: &Asked,
        make: impl FnOnce(&Self, Found, &dyn Fn() -> bool) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let form = asked.form();
        let node = asked.node(app, &form).await?;
        let memory = Arc::clone(&app.memory);
        app.read(move |store, budget| {
            Ok(self.find(store, &memory, &node)?.and_then(|found| make(&self, found, &|| is_over(&budget))))
        })
        .await?
    }

    fn find(&self, store: &Store, memory: &Memory, node: &str) -> Result<Result<Found, Problem>, StoreError> {
        let kept = |moment: i64, name: &str| -> Result<Kept, StoreError> {
            Ok(match store.memory_at(node, moment)? {
                Some((head, states)) => Ok((head.time_ns, restore(states))),
                None => Err(missing(store, node, name)?),
            })
        };
        let (at, now) = match self.at {
            None => (None, current(memory, node, self.pid.is_some() || self.target.is_some())),
            Some(moment) => match kept(moment, "at")? {
                Ok((at, all)) => (Some(at), all),
                Err(problem) => return Ok(Err(problem)),
            },
        };
        let now: Vec<Arc<ProfileData>> = now.into_iter().filter(|data| self.is_meant(data)).collect();
        if now.is_empty() && (self.pid.is_some() || self.target.is_some()) {
            return Ok(Err(Problem::not_found("no such process of this node is observed: /v1/targets lists them")));
        }
        let newest = now.iter().map(|data| data.time_ns).max().unwrap_or_default();
        let time_ns = at.unwrap_or(newest);
        let Some(since) = self.since else {
            return Ok(Ok(Found { stacks: Stacks::now(&now), now, time_ns }));
        };
        Ok(match kept(since, "since")? {
            Err(problem) => Err(problem),
            Ok((_, then)) => {
                // A process that started again has another id, and is compared with what it was before.
                let meant = |data: &Arc<ProfileData>| self.target.as_ref().is_none_or(|target| data.target == *target);
                let then: Vec<Arc<ProfileData>> = match self.pid {
                    Some(_) => then.into_iter().filter(|data| self.is_meant(data)).collect(),
                    None => then.into_iter().filter(meant).collect(),
                };
                Ok(Found { stacks: Stacks::compared(&now, &then), now, time_ns })
            }
        })
    }

    fn is_meant(&self, data: &ProfileData) -> bool {
        self.pid.is_none_or(|pid| u64::from(data.process.pid) == pid)
            && self.target.as_ref().is_none_or(|target| data.target == *target)
    }
}

/// Processes as they are now; those that ended only if somebody asks for one by name.
fn current(memory: &Memory, node: &str, by_name: bool) -> Vec<Arc<ProfileData>> {
    let targets = memory.targets(node);
    let shown = targets.into_iter().filter(|target| by_name || target.standing != Standing::Ended);
    shown.map(|target| target.data).collect()
}

/// Nobody waits any more, or the time is up.
fn is_over(budget: &Budget) -> bool {
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

fn kinds(form: &Form<'_>) -> Result<Kinds, Problem> {
    let Some(name) = form.text("kind")? else { return Ok(Kinds::RESIDENT) };
    if name == "all" {
        return Ok(Kinds::ALL);
    }
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    kind.map(Kinds::only)
        .ok_or_else(|| Problem::parameter("kind", format!("{} is none of anon, cache, kernel, all", shown(name))))
}

/// The last moment that is shown as this one: answers show whole milliseconds.
fn last_shown_as(time_ns: i64) -> i64 {
    shown_time(time_ns).saturating_add(999_999)
}

impl From<TreeError> for Problem {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Nodes => Self::parameter("threshold", error),
            TreeError::Cancelled => Self::busy("the tree was not ready in time: a greater threshold makes it smaller"),
        }
    }
}
