//! Parameters of requests for the latency of functions.

use std::borrow::Cow;

use chainscope_latency::{RunFilter, TransactionId, verdict::Options};
use chainscope_store::TransactionQuery;
use serde::{Deserialize, Deserializer, de::Error as _};
use utoipa::IntoParams;

use super::super::{
    list::DEFAULT_LIMIT,
    params::{boolean, list, number, order, shown},
    problem::Problem,
    time::range,
};

/// Least change that matters, in percent.
const MARGIN_PERCENT: f64 = 5.0;
/// Greatest margin, in percent.
const MAX_MARGIN_PERCENT: f64 = 1000.0;
/// Most rows of a list by duration, which is read at once.
const MAX_SLOWEST: u64 = 1000;

/// From the first, included, to the second, excluded, nanoseconds since 1970.
pub(super) type Period = (Option<i64>, Option<i64>);

/// Which runs are listed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct RunsParameters {
    /// Runs that went on at this time or later, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    #[serde(deserialize_with = "number")]
    from: Option<u64>,
    /// Runs that went on at this time or earlier; units as for `from`.
    #[serde(deserialize_with = "number")]
    to: Option<u64>,
    /// Runs with this tag.
    #[param(example = "v2.4")]
    tag: Option<String>,
    /// Runs on this host.
    #[param(example = "node-7")]
    host: Option<String>,
    /// Runs on a kernel whose release begins so.
    #[param(example = "6.18")]
    kernel: Option<String>,
    /// Maximum number of runs: the newest ones. Default: all.
    #[serde(deserialize_with = "number")]
    limit: Option<u64>,
}

/// Which runs are listed.
#[derive(Debug, PartialEq)]
pub(super) struct RunsQuery {
    pub(super) period: Period,
    pub(super) filter: RunFilter,
    pub(super) limit: usize,
}

impl RunsParameters {
    pub(super) fn query(self) -> RunsQuery {
        let limit = self.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let filter = RunFilter { tag: self.tag, node: None, host: self.host, kernel: self.kernel };
        RunsQuery { period: range(self.from, self.to, None, None), filter, limit }
    }
}

/// What a report is about.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct ReportParameters {
    /// Runs: a tag, the beginning of a commit or of an id, or `latest`, separated by commas; `/host=NAME` and `/kernel=RELEASE`
    /// behind one narrow it. Default: all runs.
    #[param(value_type = Option<String>, example = "v2.4")]
    #[serde(deserialize_with = "list")]
    run: Option<Vec<String>>,
    /// Blocks that start at this time or later, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    #[serde(deserialize_with = "number")]
    from: Option<u64>,
    /// Blocks that start at this time or earlier; units as for `from`.
    #[serde(deserialize_with = "number")]
    to: Option<u64>,
}

/// What a report is about: selectors of runs, none for all.
#[derive(Debug, PartialEq)]
pub(super) struct ReportQuery {
    pub(super) runs: Vec<String>,
    pub(super) period: Period,
}

impl ReportParameters {
    pub(super) fn query(self) -> ReportQuery {
        ReportQuery { runs: self.run.unwrap_or_default(), period: range(self.from, self.to, None, None) }
    }
}

/// What is compared.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct CompareParameters {
    /// Runs to compare with: a tag, the beginning of a commit or of an id, or `latest`, separated by commas; `/host=NAME` and
    /// `/kernel=RELEASE` behind one narrow it.
    #[param(value_type = String, required = true, example = "v2.3")]
    #[serde(deserialize_with = "list")]
    a: Option<Vec<String>>,
    /// Runs that may be slower; as for `a`.
    #[param(value_type = String, required = true, example = "v2.4")]
    #[serde(deserialize_with = "list")]
    b: Option<Vec<String>>,
    /// Least change that matters, in percent, up to 1000. Default: 5.
    #[param(value_type = Option<f64>, minimum = 0, maximum = 1000, example = 3.0)]
    #[serde(deserialize_with = "percent")]
    margin: Option<f64>,
    /// Blocks that start at this time or later, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    #[serde(deserialize_with = "number")]
    from: Option<u64>,
    /// Blocks that start at this time or earlier; units as for `from`.
    #[serde(deserialize_with = "number")]
    to: Option<u64>,
}

/// What is compared: selectors of the runs of both sides.
#[derive(Debug, PartialEq)]
pub(super) struct CompareQuery {
    pub(super) a: Vec<String>,
    pub(super) b: Vec<String>,
    pub(super) options: Options,
    pub(super) period: Period,
}

impl CompareParameters {
    pub(super) fn query(self) -> Result<CompareQuery, Problem> {
        let side = |name, runs: Option<Vec<String>>| {
            let missing = || Problem::parameter(name, "runs are needed: a tag, a commit, an id or latest");
            runs.filter(|runs| !runs.is_empty()).ok_or_else(missing)
        };
        let options = Options { margin: self.margin.unwrap_or(MARGIN_PERCENT) / 100.0, ..Options::default() };
        let period = range(self.from, self.to, None, None);
        Ok(CompareQuery { a: side("a", self.a)?, b: side("b", self.b)?, options, period })
    }
}

/// Which transactions are listed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct TransactionParameters {
    /// Maximum number of rows, unlimited in size: responses are streamed; with `slowest` up to 1000. Default: 100.
    #[serde(deserialize_with = "number")]
    limit: Option<u64>,
    /// Row to begin with, included.
    #[serde(deserialize_with = "number")]
    cursor: Option<u64>,
    /// `forward`: oldest first. Anything else: newest first.
    direction: Option<String>,
    /// Whether the list is by duration, slowest first. Default: `false`.
    #[serde(deserialize_with = "boolean")]
    slowest: Option<bool>,
    /// Id, or its beginning, in hexadecimal.
    #[param(example = "9F3C")]
    id: Option<String>,
    /// Types, as the node numbers them, separated by commas; any of them.
    #[param(value_type = Option<String>, example = "0,7")]
    #[serde(deserialize_with = "list")]
    r#type: Option<Vec<i64>>,
    /// Results, as the node numbers them, separated by commas; any of them.
    #[param(value_type = Option<String>, example = "125")]
    #[serde(deserialize_with = "list")]
    result: Option<Vec<i64>>,
    /// Runs: a tag, the beginning of a commit or of an id, or `latest`, separated by commas; `/host=NAME` and `/kernel=RELEASE`
    /// behind one narrow it. Default: all runs.
    #[param(value_type = Option<String>, example = "v2.4")]
    #[serde(deserialize_with = "list")]
    run: Option<Vec<String>>,
    /// The observed process or pod.
    target: Option<String>,
    /// Those that ended at this time or later, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    #[serde(deserialize_with = "number")]
    from: Option<u64>,
    /// Those that ended at this time or earlier; units as for `from`.
    #[serde(deserialize_with = "number")]
    to: Option<u64>,
}

/// Which transactions.
#[derive(Clone, Debug)]
pub(super) struct Transactions {
    pub(super) query: TransactionQuery,
    /// Beginning of the id, in hexadecimal, upper case.
    pub(super) id_prefix: Option<String>,
}

impl TransactionParameters {
    /// Selectors of runs, whether the list is by duration, and which transactions, of any run.
    pub(super) fn transactions(self) -> Result<(Vec<String>, bool, Transactions), Problem> {
        let (is_by_duration, limit) = (self.slowest == Some(true), self.limit.unwrap_or(DEFAULT_LIMIT));
        if is_by_duration && self.cursor.is_some() {
            return Err(Problem::parameter("cursor", "a list by duration (slowest) has no pages"));
        }
        if is_by_duration && limit > MAX_SLOWEST {
            return Err(Problem::parameter("limit", format!("at most {MAX_SLOWEST} with slowest")));
        }
        let (mut ids, mut id_prefix) = (Vec::new(), None);
        if let Some(id) = self.id.filter(|id| !id.is_empty()) {
            if id.len() > 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(Problem::parameter("id", format!("{} is not up to 64 hexadecimal digits", shown(&id))));
            }
            match id.parse::<TransactionId>() {
                Ok(id) => ids.push(id.0),
                Err(_) => id_prefix = Some(id.to_ascii_uppercase()),
            }
        }
        let (from_ns, to_ns) = range(self.from, self.to, None, None);
        let query = TransactionQuery {
            cursor: self.cursor,
            limit,
            order: order(self.direction.as_deref()),
            ids,
            types: self.r#type.unwrap_or_default(),
            results: self.result.unwrap_or_default(),
            target: self.target,
            from_ns,
            to_ns,
            ..TransactionQuery::default()
        };
        Ok((self.run.unwrap_or_default(), is_by_duration, Transactions { query, id_prefix }))
    }
}

fn percent<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    let text = Cow::<str>::deserialize(value)?;
    let percent = text.parse().ok().filter(|percent| (0.0..=MAX_MARGIN_PERCENT).contains(percent));
    let invalid = || D::Error::custom(format!("{} is not a percentage from 0 to {MAX_MARGIN_PERCENT}", shown(&text)));
    percent.ok_or_else(invalid).map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use chainscope_store::Order;

    use super::{super::super::params::parse, *};

    const PERIOD: Period = (Some(1_626_264_123_000_000_000), Some(1_626_264_124_001_000_000));

    #[test]
    fn every_parameter_reaches_the_query() {
        let runs = |text: &str| parse::<RunsParameters>(text).unwrap().query();
        assert_eq!(runs(""), RunsQuery { period: (None, None), filter: RunFilter::default(), limit: usize::MAX });
        let text = |text: &str| Some(text.to_owned());
        let filter = RunFilter { tag: text("v2"), node: None, host: text("h"), kernel: text("6.") };
        assert_eq!(
            runs("from=1626264123&to=1626264124&tag=v2&host=h&kernel=6.&limit=7&x=y"),
            RunsQuery { period: PERIOD, filter, limit: 7 }
        );
        let report = |text: &str| parse::<ReportParameters>(text).unwrap().query();
        assert_eq!(report(""), ReportQuery { runs: Vec::new(), period: (None, None) });
        let selectors = vec!["v1".to_owned(), "latest".to_owned()];
        assert_eq!(
            report("run=v1,,latest&from=1626264123&to=1626264124"),
            ReportQuery { runs: selectors.clone(), period: PERIOD }
        );
        let compare = |text: &str| parse::<CompareParameters>(text).unwrap().query().unwrap();
        let (a, b) = (selectors, vec!["v2".to_owned()]);
        let options = Options { margin: 0.025, ..Options::default() };
        assert_eq!(
            compare("a=v1,latest&b=v2&margin=2.5&from=1626264123&to=1626264124"),
            CompareQuery { a, b, options, period: PERIOD }
        );
        assert_eq!(compare("a=v1&b=v2").options, Options::default());
    }

    #[test]
    fn every_parameter_of_transactions_reaches_the_query() {
        let read = |text: &str| parse::<TransactionParameters>(text).and_then(TransactionParameters::transactions);
        let (selectors, is_by_duration, all) = read("").unwrap();
        assert!(selectors.is_empty() && !is_by_duration && all.id_prefix.is_none());
        assert_eq!((all.query.limit, all.query.order), (100, Order::NewestFirst));
        let (selectors, is_by_duration, some) = read(
            "limit=7&cursor=9&direction=forward&slowest=false&id=9f3c&type=0,7&result=-99,125&run=v1,latest&target=pid+7\
             &from=1626264123&to=1626264124",
        )
        .unwrap();
        assert_eq!((selectors.join("|"), is_by_duration), ("v1|latest".to_owned(), false));
        let query = &some.query;
        assert_eq!((query.limit, query.cursor, query.order), (7, Some(9), Order::OldestFirst));
        assert_eq!((&query.types[..], &query.results[..]), (&[0, 7][..], &[-99, 125][..]));
        assert_eq!((query.from_ns, query.to_ns), PERIOD);
        assert_eq!((some.id_prefix.as_deref(), query.target.as_deref()), (Some("9F3C"), Some("pid 7")));
        let id = "ab".repeat(32);
        let (_, is_by_duration, whole) = read(&format!("slowest=true&limit=1000&id={id}")).unwrap();
        assert_eq!((is_by_duration, whole.id_prefix, &whole.query.ids[..]), (true, None, &[[0xab; 32]][..]));
        for (text, name) in [
            ("slowest=true&cursor=1", "cursor"),
            ("slowest=true&limit=1001", "limit"),
            ("slowest=1", "slowest"),
            ("id=x", "id"),
            (&format!("id={id}0"), "id"),
            ("type=a", "type"),
            ("result=1.5", "result"),
        ] {
            let problem = read(text).map(drop).unwrap_err();
            assert_eq!((problem.status, problem.parameter.as_deref()), (400, Some(name)), "{text}");
        }
    }

    #[test]
    fn malformed_parameters_are_named() {
        for (query, name) in [
            ("", "a"),
            ("a=,&b=v2", "a"),
            ("a=v1", "b"),
            ("a=v1&b=v2&margin=x", "margin"),
            ("a=v1&b=v2&margin=-1", "margin"),
            ("a=v1&b=v2&margin=nan", "margin"),
            ("a=v1&b=v2&margin=1000.1", "margin"),
            ("a=v1&b=v2&from=x", "from"),
            ("a=v1&a=v2&b=v3", "a"),
        ] {
            let problem = parse::<CompareParameters>(query).and_then(CompareParameters::query).unwrap_err();
            assert_eq!((problem.status, problem.parameter.as_deref()), (400, Some(name)), "{query}");
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(
            pairs in prop::collection::vec((
                prop::sample::select(vec![
                    "a", "b", "run", "margin", "from", "to", "tag", "limit", "id", "type", "result", "slowest", "cursor",
                ]),
                prop_oneof!["[0-9]{0,21}", "[-+0-9.einf]{0,6}", ".{0,12}"],
            ), 0..6),
        ) {
            let query: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let query = query.join("&");
            let results = [
                parse::<RunsParameters>(&query).map(|read| drop(read.query())),
                parse::<ReportParameters>(&query).map(|read| drop(read.query())),
                parse::<CompareParameters>(&query).and_then(|read| read.query().map(drop)),
                parse::<TransactionParameters>(&query).and_then(|read| read.transactions().map(drop)),
            ];
            for problem in results.into_iter().filter_map(Result::err) {
                prop_assert_eq!(problem.status, 400);
            }
        }
    }
}
