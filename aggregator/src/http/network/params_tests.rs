//! Parameters of a list of messages.

use chainscope_proto::v1::Initiator;
use chainscope_store::{MessageQuery, Order};
use proptest::prelude::*;

use super::MessageParameters;
use crate::http::{
    params::parse,
    problem::Problem,
    time::{first_shown_after, first_shown_at_least, shown_time},
};

fn read(query: &str) -> Result<MessageQuery, Problem> {
    parse::<MessageParameters>(query)?.query()
}

#[test]
fn the_default_is_the_newest_hundred() {
    let query = read("").unwrap();
    assert_eq!((query.limit, query.order, query.cursor), (100, Order::NewestFirst, None));
    assert!(query.kinds.is_empty() && query.incoming.is_none() && query.remote.is_none());
    assert_eq!((query.from_ns, query.to_ns), (None, None));
}

#[test]
fn every_parameter_reaches_the_query() {
    let query = read(
        "node_name=x&limit=7&cursor=9&direction=forward&types=metadata,,operation_hashes_for_block,unknown&incoming=true\
         &source_type=remote&remote_addr=[::ffff:1.2.3.4]:9732&peer_id=idX&target=pid+7&other=1&other=2",
    )
    .unwrap();
    assert_eq!((query.limit, query.order, query.cursor), (7, Order::OldestFirst, Some(9)));
    assert_eq!(query.kinds, ["metadata", "operation_hashes_for_blocks", "unknown"]);
    assert_eq!((query.incoming, query.initiator), (Some(true), Some(Initiator::Remote)));
    assert_eq!(query.remote.unwrap().to_string(), "[::ffff:1.2.3.4]:9732");
    assert_eq!((query.peer_id.as_deref(), query.target.as_deref()), (Some("idX"), Some("pid 7")));
    assert_eq!(read("cursor_id=4").unwrap().cursor, Some(4));
    assert!(read("types=").unwrap().kinds.is_empty());
    for backward in ["backward", "", "Forward", "x"] {
        assert_eq!(read(&format!("direction={backward}")).unwrap().order, Order::NewestFirst);
    }
}

#[test]
fn malformed_parameters_are_named() {
    for (query, name) in [
        ("limit=", "limit"),
        ("cursor=-1", "cursor"),
        ("cursor=1&cursor=1", "cursor"),
        ("cursor=1&cursor_id=1", "cursor_id"),
        ("types=metadata,foo", "types"),
        ("incoming=1", "incoming"),
        ("source_type=me", "source_type"),
        ("remote_addr=1.2.3.4", "remote_addr"),
        ("remote_addr=host:1", "remote_addr"),
        ("from=yesterday", "from"),
        ("to=1.5", "to"),
        ("timestamp=%31%30x", "timestamp"),
        ("direction=forward&direction=forward", "direction"),
    ] {
        let problem = read(query).unwrap_err();
        assert_eq!((problem.status, problem.parameter.as_deref()), (400, Some(name)), "{query}: {}", problem.detail);
    }
    let problem = read("types=foo").unwrap_err();
    assert!(problem.detail.contains("\"foo\"") && problem.detail.contains("current_head"), "{}", problem.detail);
}

#[test]
fn times_and_pivots_become_ranges() {
    let range = |query: &str| read(query).map(|query| (query.from_ns, query.to_ns)).unwrap();
    let t = 1_626_264_123_456; // ms
    let ns = t * 1_000_000;
    assert_eq!(range(&format!("from={t}&to={t}")), (Some(ns), Some(ns + 1_000_000)));
    assert_eq!(range(&format!("from={t}&to={t}&direction=forward")), (Some(ns), Some(ns + 1_000_000)));
    assert_eq!(range(&format!("from={}", ns + 1)), (Some(ns + 1_000_000), None));
    assert_eq!(range(&format!("timestamp={t}")), (None, Some(ns + 1_000_000)));
    assert_eq!(range(&format!("timestamp={t}&direction=forward")), (Some(ns + 1_000_000), None));
    let both = format!("timestamp={t}&from={}&to={}", t - 5, t + 5);
    assert_eq!(range(&both), (Some(ns - 5_000_000), Some(ns + 1_000_000)));
    assert_eq!(range(&format!("{both}&direction=forward")), (Some(ns + 1_000_000), Some(ns + 6_000_000)));
}

#[test]
fn the_explorers_search_by_time_is_a_pivot() {
    let range = |query: &str| read(query).map(|query| (query.from_ns, query.to_ns)).unwrap();
    let ns = 1_626_264_123_456_000_000_i64;
    assert_eq!(range(&format!("limit=500&from={ns}&direction=backward")), (None, Some(ns + 1_000_000)));
    assert_eq!(range(&format!("limit=500&from={ns}&direction=forward")), (Some(ns + 1_000_000), None));
    // Without a direction, or with another bound, it is the least time.
    assert_eq!(range(&format!("from={ns}")), (Some(ns), None));
    assert_eq!(range(&format!("from={ns}&to={ns}&direction=backward")), (Some(ns), Some(ns + 1_000_000)));
    let ms = ns / 1_000_000;
    assert_eq!(range(&format!("from={ms}&direction=backward")), (Some(ns), None));
}

proptest! {
    #[test]
    fn no_query_panics(query in ".{0,200}") {
        if let Err(problem) = read(&query) {
            prop_assert_eq!(problem.status, 400);
            prop_assert!(problem.parameter.is_some());
        }
    }

    #[test]
    fn no_value_panics(
        pairs in prop::collection::vec((
            prop::sample::select(vec!["limit", "cursor", "cursor_id", "direction", "types", "incoming", "source_type",
                "remote_addr", "from", "to", "timestamp", "peer_id", "target", "node_name"]),
            prop_oneof!["[0-9]{0,21}", "true|false|forward|local|metadata,foo|\\[::1\\]:5", ".{0,12}", "[%+&=;]{0,5}"],
        ), 0..6),
    ) {
        let query: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if let Err(problem) = read(&query.join("&")) {
            prop_assert_eq!(problem.status, 400);
            prop_assert!(problem.parameter.is_some());
        }
    }

    #[test]
    fn a_row_is_in_a_range_exactly_if_its_shown_time_is(row in -5_000_000_i64..5_000_000, edge in 0_i64..5_000_000) {
        prop_assert_eq!(row >= first_shown_at_least(edge), shown_time(row) >= edge);
        prop_assert_eq!(row < first_shown_after(edge), shown_time(row) <= edge);
    }
}
