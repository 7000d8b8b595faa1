//! Parameters of requests for events of tracepoints.

use std::borrow::Cow;

use axum::{extract::FromRequestParts, http::request::Parts};
use chainscope_store::{Order, TraceQuery};
use chainscope_trace::{Condition, Pattern};
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::{
    list::DEFAULT_LIMIT,
    params::{boolean, either, list, number, order, parse, shown},
    problem::Problem,
    time::range,
};

/// Most conditions of a request.
const MAX_CONDITIONS: usize = 16;

/// Which events.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct TraceParameters {
    /// Maximum number of rows, unlimited in size: responses are streamed. Default: 100; of a live stream: no end.
    #[serde(deserialize_with = "number")]
    pub(super) limit: Option<u64>,
    /// Id to begin with, included. Default of a live stream: the next event.
    #[serde(deserialize_with = "number")]
    cursor: Option<u64>,
    /// `forward`: oldest first. Anything else: newest first. Live streams are always oldest first.
    direction: Option<String>,
    /// Tracepoints as PROVIDER:NAME with `*` and `?`, separated by commas; any of them.
    #[param(value_type = Option<String>, example = "net:*,validation:block_connected")]
    #[serde(deserialize_with = "list")]
    tracepoint: Option<Vec<Pattern>>,
    /// Providers, separated by commas; any of them.
    #[param(value_type = Option<String>, example = "net")]
    #[serde(deserialize_with = "list")]
    provider: Option<Vec<String>>,
    /// Names of tracepoints without their provider, separated by commas; any of them.
    #[param(value_type = Option<String>, example = "inbound_message,outbound_message")]
    #[serde(deserialize_with = "list")]
    name: Option<Vec<String>>,
    /// Process ids, separated by commas; any of them.
    #[param(value_type = Option<String>, example = "4711")]
    #[serde(deserialize_with = "list")]
    pid: Option<Vec<u32>>,
    /// Peers that the events are about, by id or address, separated by commas; any of them.
    #[param(value_type = Option<String>, example = "203.0.113.7:8333")]
    #[serde(deserialize_with = "list")]
    peer: Option<Vec<String>>,
    /// The observed process or pod.
    target: Option<String>,
    /// Minimum time, included, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    #[serde(deserialize_with = "number")]
    from: Option<u64>,
    /// The same as `from`.
    #[serde(deserialize_with = "number")]
    since: Option<u64>,
    /// Maximum time, included; units as for `from`.
    #[serde(deserialize_with = "number")]
    to: Option<u64>,
    /// The same as `to`.
    #[serde(deserialize_with = "number")]
    until: Option<u64>,
    /// A moment: newest first, events up to it; `forward`, events after it. Units as for `from`.
    #[serde(deserialize_with = "number")]
    timestamp: Option<u64>,
    /// Whether rows have payloads, hexadecimal. Default: `false`.
    #[serde(deserialize_with = "boolean")]
    payload: Option<bool>,
    /// A condition on an argument, or on `tid`, `cpu`, `comm`: NAME=VALUE with `=`, `!=`, `<`, `<=`, `>`, `>=`, or `~` (contains). May be
    /// given several times; all must hold.
    #[param(value_type = Option<Vec<String>>, example = json!(["size>1000", "message_type=tx"]))]
    #[serde(skip)]
    filter: Vec<Condition>,
}

impl<S: Sync> FromRequestParts<S> for TraceParameters {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::parse(parts.uri.query().unwrap_or_default())
    }
}

/// Which events, and how they are shown.
#[derive(Clone, Debug)]
pub(super) struct Events {
    pub(super) query: TraceQuery,
    /// Tracepoints, any of them; empty for all.
    pub(super) patterns: Vec<Pattern>,
    /// Conditions, all of which must hold.
    pub(super) conditions: Vec<Condition>,
    /// Whether rows have payloads.
    pub(super) with_payload: bool,
}

impl TraceParameters {
    /// Parameters of a query string. `filter` is the only one that may be repeated.
    fn parse(query: &str) -> Result<Self, Problem> {
        let pairs = || form_urlencoded::parse(query.as_bytes());
        let others = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(pairs().filter(|pair| !is_filter(pair)))
            .finish();
        let mut parameters: Self = parse(&others)?;
        for (_, text) in pairs().filter(is_filter) {
            if parameters.filter.len() == MAX_CONDITIONS {
                return Err(Problem::parameter("filter", format!("at most {MAX_CONDITIONS} conditions can be given")));
            }
            let invalid = |cause: String| Problem::parameter("filter", format!("{}: {cause}", shown(&text)));
            parameters.filter.push(text.parse().map_err(invalid)?);
        }
        Ok(parameters)
    }

    /// The events, without a budget.
    pub(super) fn events(self) -> Result<Events, Problem> {
        let from = either(("from", self.from), ("since", self.since))?;
        let to = either(("to", self.to), ("until", self.until))?;
        let (from_ns, to_ns) = range(from, to, self.timestamp, self.direction.as_deref());
        let query = TraceQuery {
            cursor: self.cursor,
            limit: self.limit.unwrap_or(DEFAULT_LIMIT),
            order: order(self.direction.as_deref()),
            providers: self.provider.unwrap_or_default(),
            names: self.name.unwrap_or_default(),
            pids: self.pid.unwrap_or_default(),
            peers: self.peer.unwrap_or_default(),
            target: self.target,
            from_ns,
            to_ns,
            ..TraceQuery::default()
        };
        let (patterns, conditions) = (self.tracepoint.unwrap_or_default(), self.filter);
        Ok(Events {
            query: narrowed(query, &patterns),
            patterns,
            conditions,
            with_payload: self.payload.unwrap_or(false),
        })
    }
}

fn is_filter((name, _): &(Cow<'_, str>, Cow<'_, str>)) -> bool {
    name == "filter"
}

/// The query with as much of the patterns as the indexes know.
fn narrowed(mut query: TraceQuery, patterns: &[Pattern]) -> TraceQuery {
    let texts: Vec<String> = patterns.iter().map(Pattern::to_string).collect();
    let parts: Vec<(&str, &str)> = texts.iter().filter_map(|text| text.split_once(':')).collect();
    let is_literal = |text: &str| !text.contains(['*', '?', '[', ']', '{', '}', '\\', '!']);
    if query.providers.is_empty() && parts.iter().all(|(provider, _)| is_literal(provider)) {
        query.providers = parts.iter().map(|(provider, _)| (*provider).to_owned()).collect();
    }
    if query.names.is_empty() && parts.iter().all(|(_, name)| is_literal(name)) {
        query.names = parts.iter().map(|(_, name)| (*name).to_owned()).collect();
    }
    query
}

/// The parameters of `/v2/trace/relay`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct RelayParameters {
    /// Minimum time, included, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds. Default: an hour ago.
    #[serde(deserialize_with = "number")]
    from: Option<u64>,
    /// The same as `from`.
    #[serde(deserialize_with = "number")]
    since: Option<u64>,
    /// Maximum time, included; units as for `from`. Default: now.
    #[serde(deserialize_with = "number")]
    to: Option<u64>,
    /// The same as `to`.
    #[serde(deserialize_with = "number")]
    until: Option<u64>,
    /// Process ids, separated by commas; any of them.
    #[param(value_type = Option<String>, example = "4711")]
    #[serde(deserialize_with = "list")]
    pid: Option<Vec<u32>>,
    /// The observed process or pod.
    target: Option<String>,
}

/// Names of the tracepoints that block relay is computed from.
const RELAY_NAMES: [&str; 3] = ["inbound_message", "outbound_message", "block_connected"];
/// Their providers.
const RELAY_PROVIDERS: [&str; 2] = ["net", "validation"];
/// The default range of time in nanoseconds.
const HOUR_NS: i64 = 3_600_000_000_000;

impl RelayParameters {
    /// The events, oldest first, without a budget.
    pub(super) fn query(self, now_ns: i64) -> Result<TraceQuery, Problem> {
        let from = either(("from", self.from), ("since", self.since))?;
        let to = either(("to", self.to), ("until", self.until))?;
        let (from_ns, to_ns) = range(from, to, None, None);
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Ok(TraceQuery {
            limit: u64::MAX,
            order: Order::OldestFirst,
            providers: texts(&RELAY_PROVIDERS),
            names: texts(&RELAY_NAMES),
            pids: self.pid.unwrap_or_default(),
            target: self.target,
            from_ns: Some(from_ns.unwrap_or(now_ns.saturating_sub(HOUR_NS))),
            to_ns,
            ..TraceQuery::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(query: &str) -> Result<Events, Problem> {
        TraceParameters::parse(query)?.events()
    }

    #[test]
    fn every_parameter_reaches_the_query() {
        let all = read("").unwrap();
        assert_eq!((all.query.limit, all.query.order, all.with_payload), (100, Order::NewestFirst, false));
        assert!(all.patterns.is_empty() && all.conditions.is_empty() && all.query.providers.is_empty());
        let events = read(
            "limit=7&cursor=9&direction=forward&provider=net,,mempool&name=added&pid=1,2&peer=203.0.113.7:8333,7\
             &target=pid+7&since=1626264123456&until=1626264123457&payload=true&filter=size%3E1000&filter=a%3Db&other=1",
        )
        .unwrap();
        let query = &events.query;
        assert_eq!((query.limit, query.order, query.cursor), (7, Order::OldestFirst, Some(9)));
        assert_eq!((query.providers.join("|"), query.names.join("|")), ("net|mempool".to_owned(), "added".to_owned()));
        assert_eq!((&query.pids[..], query.peers.join("|")), (&[1, 2][..], "203.0.113.7:8333|7".to_owned()));
        assert_eq!((query.from_ns, query.to_ns), (Some(1_626_264_123_456_000_000), Some(1_626_264_123_458_000_000)));
        assert_eq!(query.target.as_deref(), Some("pid 7"));
        assert!(events.with_payload);
        assert_eq!(events.conditions, ["size>1000".parse().unwrap(), "a=b".parse().unwrap()]);
    }

    #[test]
    fn patterns_use_the_indexes_as_far_as_they_can() {
        let query = |text: &str| {
            let query = read(&format!("tracepoint={text}")).unwrap().query;
            (query.providers.join("|"), query.names.join("|"))
        };
        assert_eq!(query("net:*"), ("net".to_owned(), String::new()));
        assert_eq!(query("net:a,mempool:b"), ("net|mempool".to_owned(), "a|b".to_owned()));
        assert_eq!(query("*:b,net:c"), (String::new(), "b|c".to_owned()));
        assert_eq!(query("n[e]t:{a}"), (String::new(), String::new()));
        let both = read("tracepoint=net:a&provider=mempool").unwrap();
        assert_eq!((both.query.providers, both.patterns.len()), (vec!["mempool".to_owned()], 1));
    }

    #[test]
    fn malformed_parameters_are_named() {
        let many = "filter=a=b&".repeat(17);
        for (query, name) in [
            ("limit=-1", "limit"),
            ("cursor=x", "cursor"),
            ("tracepoint=net", "tracepoint"),
            ("tracepoint=a:[", "tracepoint"),
            ("pid=-1", "pid"),
            ("pid=4294967296", "pid"),
            ("from=1&since=1", "since"),
            ("to=1&until=1", "until"),
            ("payload=1", "payload"),
            ("filter=size", "filter"),
            ("filter=size>x", "filter"),
            (&many, "filter"),
            ("name=a&name=b", "name"),
        ] {
            let problem = read(query).unwrap_err();
            assert_eq!(
                (problem.status, problem.parameter.as_deref()),
                (400, Some(name)),
                "{query}: {}",
                problem.detail
            );
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(
            pairs in prop::collection::vec((
                prop::sample::select(vec!["limit", "cursor", "direction", "tracepoint", "provider", "name", "pid", "peer",
                    "from", "until", "timestamp", "target", "payload", "filter", "node_name"]),
                prop_oneof!["[0-9]{0,21}", "net:[a*?\\[{]{0,4}", ".{0,12}", "[a-z]{0,3}[<>=!~]{0,2}[0-9a-z]{0,3}"],
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
