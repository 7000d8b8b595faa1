//! Where runs are read from: a file, or an aggregator.

use std::path::Path;

use chainscope_latency::{
    Run, RunFilter, RunId, RunInfo, Time,
    database::{Database, Error, TransactionFilter},
    report::{Report, RunSummary, TransactionRow},
    verdict::Options,
};
use serde::{Serialize, de::DeserializeOwned};

use super::DEFAULT_FILE;
use crate::{
    api::{Api, Query},
    args::{CompareArgs, ListArgs, SourceArgs, TransactionsArgs},
    failure::{self, Failure},
    time,
};

/// Something with its JSON: as the server sent it, or as the API would.
pub(super) struct Answer<T> {
    pub(super) json: String,
    pub(super) value: T,
}

impl<T: Serialize> Answer<T> {
    fn of(value: T) -> anyhow::Result<Self> {
        Ok(Self { json: serde_json::to_string(&value)?, value })
    }
}

/// Runs of a file, or of a node of an aggregator.
pub(super) enum Source {
    File {
        database: Database,
        /// Only runs of this node.
        node: Option<String>,
    },
    Server {
        api: Api,
        node: Query,
    },
}

impl Source {
    /// The named file, else the server that flags or a variable give, else the file in the current directory.
    pub(super) fn open(db: Option<&Path>, args: &SourceArgs) -> anyhow::Result<Self> {
        if db.is_some() && args.api.is_named() {
            let failure = Failure::refused("runs are read either from a file (--db) or from a server (--api, --kube)");
            return Err(failure.hint("leave out one of them").into());
        }
        let node = args.node.name();
        if db.is_none() && args.api.is_given() {
            let node = node.map(|name| ("node_name", name)).into_iter().collect();
            return Ok(Self::Server { api: args.api.client()?, node });
        }
        let database = open(db.unwrap_or(Path::new(DEFAULT_FILE)))?;
        Ok(Self::File { database, node })
    }

    /// Runs, by start.
    pub(super) fn runs(&self, args: &ListArgs) -> anyhow::Result<Answer<Vec<RunSummary>>> {
        let ListArgs { tag, host, kernel, .. } = args;
        match self {
            Self::File { database, node } => {
                let (tag, host, kernel) = (tag.clone(), host.clone(), kernel.clone());
                let filter = RunFilter { tag, node: node.clone(), host, kernel };
                let runs = database.runs()?;
                Answer::of(runs.iter().filter(|run| filter.matches(run)).map(RunSummary::from).collect())
            }
            Self::Server { api, node } => {
                let filters = [("tag", tag), ("host", host), ("kernel", kernel)];
                let filters = filters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
                request(api, node, "/v2/latency/runs", filters)
            }
        }
    }

    /// Report of the runs that selectors mean; of all without selectors.
    pub(super) fn report(&self, selectors: &[String]) -> anyhow::Result<Answer<Report>> {
        match self {
            Self::File { .. } => Answer::of(Report::of_runs(&self.select(selectors)?, &Options::default())),
            Self::Server { api, node } => {
                let runs = (!selectors.is_empty()).then(|| list(selectors)).transpose()?;
                request(api, node, "/v2/latency/report", runs.map(|runs| ("run", runs)))
            }
        }
    }

    /// The comparison with its report.
    pub(super) fn comparison(&self, args: &CompareArgs) -> anyhow::Result<Answer<Report>> {
        let CompareArgs { a, b, margin, .. } = args;
        let side = |selector: &String| list(std::slice::from_ref(selector));
        match self {
            Self::File { .. } => {
                let side = |selector: &String| self.select(std::slice::from_ref(selector));
                let (a, b) = (side(a)?, side(b)?);
                if let Some(both) = a.iter().find(|run| b.iter().any(|other| other.info.id == run.info.id)) {
                    let failure = Failure::refused(format!("run {} is on both sides", both.info.id));
                    return Err(failure.hint(SEE_LIST).into());
                }
                let options = Options { margin: margin / 100.0, ..Options::default() };
                Answer::of(Report::of_comparison(&a, &b, &options))
            }
            Self::Server { api, node } => {
                let query = [("a", side(a)?), ("b", side(b)?), ("margin", margin.to_string())];
                request(api, node, "/v2/latency/compare/report", query)
            }
        }
    }

    /// Transactions, in order of time or the slowest first.
    pub(super) fn transactions(&self, args: &TransactionsArgs) -> anyhow::Result<Answer<Vec<TransactionRow>>> {
        let TransactionsArgs { id, r#type, result, run, period, slowest, limit, .. } = args;
        match self {
            Self::File { database, node } => {
                let at = |parameter: u64| Time(i64::try_from(time::nanoseconds(parameter)).unwrap_or(i64::MAX));
                let is_narrowed = !run.is_empty() || node.is_some();
                let runs: Vec<RunId> = match is_narrowed {
                    true => self.infos(run)?.into_iter().map(|info| info.id).collect(),
                    false => Vec::new(),
                };
                if is_narrowed && runs.is_empty() {
                    return Answer::of(Vec::new());
                }
                let filter = TransactionFilter {
                    id_prefix: id.clone(),
                    kind: *r#type,
                    result: *result,
                    from: period.since.map(at),
                    to: period.until.map(at),
                    runs,
                    slowest_first: *slowest,
                    limit: *limit,
                };
                let found = database.transactions(&filter)?;
                Answer::of(found.iter().map(|(run, fact)| TransactionRow::new(*run, fact)).collect())
            }
            Self::Server { api, node } => {
                let mut query: Query = period.query().collect();
                query.extend([("limit", limit.to_string()), ("direction", "forward".to_owned())]);
                query.extend(slowest.then(|| ("slowest", "true".to_owned())));
                query.extend(id.clone().map(|id| ("id", id)));
                query.extend(r#type.map(|kind| ("type", kind.to_string())));
                query.extend(result.map(|result| ("result", result.to_string())));
                if !run.is_empty() {
                    query.push(("run", list(run)?));
                }
                request(api, node, "/v2/latency/transactions", query)
            }
        }
    }

    /// The runs of a file that selectors mean, each once, in order of time; all without selectors.
    fn infos(&self, selectors: &[String]) -> anyhow::Result<Vec<RunInfo>> {
        let Self::File { database, node } = self else { return Ok(Vec::new()) };
        select(database, selectors, node.as_deref())
    }

    fn select(&self, selectors: &[String]) -> anyhow::Result<Vec<Run>> {
        let Self::File { database, .. } = self else { return Ok(Vec::new()) };
        self.infos(selectors)?.iter().map(|info| Ok(database.run(info)?)).collect()
    }
}

/// What to do about runs that are not known.
const SEE_LIST: &str = "`chainscope latency list` shows the runs with their tags, commits and ids";

/// Opens a file of runs, which has to exist.
pub(super) fn open(path: &Path) -> anyhow::Result<Database> {
    if path.exists() {
        return Ok(Database::open(path)?);
    }
    let missing = Failure::refused(format!("{}: no such file of runs", path.display()));
    let hint = "name it with --db, or add runs with `latency record` or `latency import`; --api URL or --kube reads those \
                of an aggregator";
    Err(missing.hint(hint).into())
}

/// The runs of a file that selectors mean, each once, in order of time; all of a node without selectors.
pub(super) fn select(database: &Database, selectors: &[String], node: Option<&str>) -> anyhow::Result<Vec<RunInfo>> {
    let filter = RunFilter { node: node.map(str::to_owned), ..RunFilter::default() };
    let known: Vec<RunInfo> = database.runs()?.into_iter().filter(|run| filter.matches(run)).collect();
    if selectors.is_empty() {
        return Ok(in_order(known));
    }
    let mut chosen = Vec::new();
    for selector in selectors {
        let found = chainscope_latency::select(&known, selector).map_err(|known| {
            Failure::new(Error::NoRun { selector: selector.clone(), known }.to_string()).hint(SEE_LIST)
        })?;
        chosen.extend(found);
    }
    Ok(in_order(chosen))
}

fn in_order(mut runs: Vec<RunInfo>) -> Vec<RunInfo> {
    runs.sort_by_key(|info| (info.start, info.id));
    runs.dedup_by_key(|info| info.id);
    runs
}

/// Selectors as a parameter, separated by commas.
fn list(selectors: &[String]) -> anyhow::Result<String> {
    if let Some(odd) = selectors.iter().find(|selector| selector.contains(',') || selector.is_empty()) {
        let failure = Failure::refused(format!("{odd:?} cannot be requested: it is empty or has a comma"));
        return Err(failure.hint("name the runs by the beginnings of their ids").into());
    }
    Ok(selectors.join(","))
}

fn request<T: DeserializeOwned>(
    api: &Api,
    node: &Query,
    path: &str,
    query: impl IntoIterator<Item = (&'static str, String)>,
) -> anyhow::Result<Answer<T>> {
    let query: Query = node.iter().cloned().chain(query).collect();
    let json = api.text(path, &query).map_err(|error| match (failure::status(&error), error.to_string()) {
        // Their own hint, if any, is about nodes and URLs.
        (Some(status @ 404), text) if text.contains("no run has") => {
            Failure::response(status, text).hint(SEE_LIST).into()
        }
        (Some(status @ 400), text) if text.contains("on both sides") => {
            Failure::response(status, text).hint(SEE_LIST).into()
        }
        _ => error,
    })?;
    let value = serde_json::from_str(&json)
        .map_err(|error| anyhow::anyhow!("{}{path} did not return what was asked for: {error}", api.base()))?;
    Ok(Answer { json, value })
}
