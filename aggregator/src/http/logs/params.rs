//! Parameters of requests for log messages.

use std::borrow::Cow;

use axum::{extract::FromRequestParts, http::request::Parts};
use chainscope_logs::Level;
use chainscope_proto::v1::LogLevel;
use chainscope_store::LogQuery;
use serde::{Deserialize, Deserializer, de::Error as _};
use utoipa::IntoParams;

use super::{
    super::{
        list::DEFAULT_LIMIT,
        params::{boolean, either, number, order, parse, shown},
        problem::Problem,
        time::range,
    },
    row::stored,
    text::{keep_operators, text_query},
};

/// Which log messages.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct LogParameters {
    /// Maximum number of rows, unlimited in size: responses are streamed. Default: 100; of a live stream: no end.
    #[serde(deserialize_with = "number")]
    pub(super) limit: Option<u64>,
    /// Id to begin with, included. Default of a live stream: the next log message.
    #[serde(deserialize_with = "number")]
    cursor: Option<u64>,
    /// The same as `cursor`, as older documents call it.
    #[serde(deserialize_with = "number")]
    cursor_id: Option<u64>,
    /// `forward`: oldest first. Anything else: newest first. Live streams are always oldest first.
    direction: Option<String>,
    /// Levels, separated by commas, in any case; any of them: `trace`, `debug`, `info`, `notice`, `warning` or `warn`,
    /// `error`, `fatal`.
    #[param(value_type = Option<String>, example = "warning,error")]
    #[serde(deserialize_with = "levels")]
    log_level: Option<Vec<LogLevel>>,
    /// The same as `log_level`, as older documents call it.
    #[param(value_type = Option<String>)]
    #[serde(deserialize_with = "levels")]
    level: Option<Vec<LogLevel>>,
    /// The observed process.
    target: Option<String>,
    /// Minimum time, included, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    #[serde(deserialize_with = "number")]
    from: Option<u64>,
    /// Maximum time, included; units as for `from`.
    #[serde(deserialize_with = "number")]
    to: Option<u64>,
    /// A moment: newest first, log messages up to it; `forward`, log messages after it. Units as for `from`.
    #[serde(deserialize_with = "number")]
    timestamp: Option<u64>,
    /// Words of the text: any of them; `+word` must, `-word` must not be in it; `"a phrase"`. All of it is a phrase if it begins
    /// and ends with a quote.
    #[param(example = "peer -branch")]
    query: Option<String>,
    /// `false`: `query` is a phrase, its quotes are ignored. `true`: it is not, its quotes are ignored.
    #[serde(deserialize_with = "boolean")]
    query_no_quotes: Option<bool>,
}

impl<S: Sync> FromRequestParts<S> for LogParameters {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parse(&keep_operators(parts.uri.query().unwrap_or_default()))
    }
}

impl LogParameters {
    /// The query of the store, without a budget.
    pub(super) fn query(self) -> Result<LogQuery, Problem> {
        let (from_ns, to_ns) = range(self.from, self.to, self.timestamp, self.direction.as_deref());
        Ok(LogQuery {
            cursor: either(("cursor", self.cursor), ("cursor_id", self.cursor_id))?,
            limit: self.limit.unwrap_or(DEFAULT_LIMIT),
            order: order(self.direction.as_deref()),
            levels: either(("log_level", self.log_level), ("level", self.level))?.unwrap_or_default(),
            target: self.target,
            from_ns,
            to_ns,
            text: match self.query {
                Some(query) => text_query(&query, self.query_no_quotes)?,
                None => None,
            },
            ..LogQuery::default()
        })
    }
}

fn levels<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Vec<LogLevel>>, D::Error> {
    let list = Cow::<str>::deserialize(value)?;
    let known = || Level::ALL.map(|level| level.name().to_ascii_lowercase()).join(", ");
    let mut levels = Vec::new();
    for name in list.split(',').filter(|name| !name.is_empty()) {
        let unknown = |_| D::Error::custom(format!("unknown level {}; known are {}, warn", shown(name), known()));
        levels.extend_from_slice(stored(name.parse().map_err(unknown)?));
    }
    Ok(Some(levels))
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::LogLevel;
    use chainscope_store::{LogQuery, Order};
    use proptest::prelude::*;

    use super::LogParameters;
    use crate::http::{params::parse, problem::Problem};

    fn read(query: &str) -> Result<LogQuery, Problem> {
        parse::<LogParameters>(query)?.query()
    }

    #[test]
    fn every_parameter_reaches_the_query() {
        let query = read("").unwrap();
        assert_eq!((query.limit, query.order, query.cursor), (100, Order::NewestFirst, None));
        assert!(query.levels.is_empty() && query.text.is_none() && query.target.is_none());
        let query = read(
            "node_name=x&limit=7&cursor=9&direction=forward&log_level=WARN,,eRRor&target=pid+7&from=1626264123456\
             &to=1626264123457&query=peer&other=1",
        )
        .unwrap();
        assert_eq!((query.limit, query.order, query.cursor), (7, Order::OldestFirst, Some(9)));
        assert_eq!(query.levels, [LogLevel::Warning, LogLevel::Error]);
        assert_eq!(query.target.as_deref(), Some("pid 7"));
        assert_eq!((query.from_ns, query.to_ns), (Some(1_626_264_123_456_000_000), Some(1_626_264_123_458_000_000)));
        assert!(query.text.is_some());
        assert_eq!(read("cursor_id=4&level=fatal").unwrap().cursor, Some(4));
        assert_eq!(read("level=fatal").unwrap().levels, [LogLevel::Fatal]);
        assert!(read("log_level=&query=").unwrap().levels.is_empty());
    }

    #[test]
    fn malformed_parameters_are_named() {
        for (query, name) in [
            ("limit=-1", "limit"),
            ("cursor=1&cursor_id=1", "cursor_id"),
            ("log_level=info&level=info", "level"),
            ("log_level=info,loud", "log_level"),
            ("level=2", "level"),
            ("from=-1", "from"),
            ("to=x", "to"),
            ("timestamp=", "timestamp"),
            ("query=a&query=b", "query"),
            ("query_no_quotes=1", "query_no_quotes"),
        ] {
            let problem = read(query).unwrap_err();
            assert_eq!(
                (problem.status, problem.parameter.as_deref()),
                (400, Some(name)),
                "{query}: {}",
                problem.detail
            );
        }
        let problem = read("log_level=loud").unwrap_err();
        assert!(problem.detail.contains("\"loud\"") && problem.detail.contains("notice"), "{}", problem.detail);
    }

    proptest! {
        #[test]
        fn no_value_panics(
            pairs in prop::collection::vec((
                prop::sample::select(vec!["limit", "cursor", "cursor_id", "direction", "log_level", "level", "from", "to",
                    "timestamp", "target", "query", "query_no_quotes", "node_name"]),
                prop_oneof!["[0-9]{0,21}", "true|false|forward|warn,Error|info", ".{0,12}", "[%+&=;\"]{0,5}"],
            ), 0..6),
        ) {
            let query: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
            if let Err(problem) = read(&query.join("&")) {
                prop_assert_eq!(problem.status, 400);
                prop_assert!(problem.parameter.is_some());
            }
        }
    }
}
