//! Parameters of requests for the latency of functions.

use std::borrow::Cow;

use chainscope_latency::verdict::Options;
use serde::{Deserialize, Deserializer, de::Error as _};
use utoipa::IntoParams;

use super::super::{
    params::{list, number, shown},
    problem::Problem,
    time::range,
};

/// Least change that matters, in percent.
const MARGIN_PERCENT: f64 = 5.0;
/// Greatest margin, in percent.
const MAX_MARGIN_PERCENT: f64 = 1000.0;

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
    /// Maximum number of runs: the newest ones. Default: all.
    #[serde(deserialize_with = "number")]
    limit: Option<u64>,
}

/// Which runs are listed.
#[derive(Debug, PartialEq)]
pub(super) struct RunsQuery {
    pub(super) period: Period,
    pub(super) tag: Option<String>,
    pub(super) limit: usize,
}

impl RunsParameters {
    pub(super) fn query(self) -> RunsQuery {
        let limit = self.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        RunsQuery { period: range(self.from, self.to, None, None), tag: self.tag, limit }
    }
}

/// What a report is about.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct ReportParameters {
    /// Runs: a tag, the beginning of a commit or of an id, or `latest`, separated by commas. Default: all runs.
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
    /// Runs to compare with: a tag, the beginning of a commit or of an id, or `latest`, separated by commas.
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

fn percent<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    let text = Cow::<str>::deserialize(value)?;
    let percent = text.parse().ok().filter(|percent| (0.0..=MAX_MARGIN_PERCENT).contains(percent));
    let invalid = || D::Error::custom(format!("{} is not a percentage from 0 to {MAX_MARGIN_PERCENT}", shown(&text)));
    percent.ok_or_else(invalid).map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::super::params::parse, *};

    const PERIOD: Period = (Some(1_626_264_123_000_000_000), Some(1_626_264_124_001_000_000));

    #[test]
    fn every_parameter_reaches_the_query() {
        let runs = |text: &str| parse::<RunsParameters>(text).unwrap().query();
        assert_eq!(runs(""), RunsQuery { period: (None, None), tag: None, limit: usize::MAX });
        let tag = Some("v2".to_owned());
        assert_eq!(
            runs("from=1626264123&to=1626264124&tag=v2&limit=7&x=y"),
            RunsQuery { period: PERIOD, tag, limit: 7 }
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
                prop::sample::select(vec!["a", "b", "run", "margin", "from", "to", "tag", "limit"]),
                prop_oneof!["[0-9]{0,21}", "[-+0-9.einf]{0,6}", ".{0,12}"],
            ), 0..6),
        ) {
            let query: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let query = query.join("&");
            let results = [
                parse::<RunsParameters>(&query).map(|read| drop(read.query())),
                parse::<ReportParameters>(&query).map(|read| drop(read.query())),
                parse::<CompareParameters>(&query).and_then(|read| read.query().map(drop)),
            ];
            for problem in results.into_iter().filter_map(Result::err) {
                prop_assert_eq!(problem.status, 400);
            }
        }
    }
}
