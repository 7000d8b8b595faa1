//! The lines and checks of the original's test script: 10,000 lines in two parts with a restart after each, then all subsets of
//! eight words. Where the script is satisfied by any rows that fit, these are compared with a model of all of them.

use chainscope_logs::Level;
use serde_json::Value;

use crate::common::{
    Server,
    logs::{START, WORDS, pattern, pattern_level, words},
};

const MS: i64 = 1_000_000;

/// Stores lines, and returns the server after a restart.
fn stored_and_restarted(server: Server, lines: std::ops::Range<i64>) -> Server {
    let mut agent = server.agent(&["9732"]);
    let (start, end) = (lines.start as u64, lines.end as u64);
    for first in (start..end).step_by(500) {
        agent.batch("9732", first, (first..first + 500).map(|number| pattern(number as i64)).collect());
    }
    agent.wait_for("9732", end);
    drop(agent);
    server.restart()
}

fn rows(server: &Server, path: &str) -> Vec<Value> {
    server.json(path).as_array().unwrap().clone()
}

/// Each pair and each single level, in both directions.
fn check_levels(server: &Server, lines: i64) {
    let (info, warn, error) = (("info", Level::Info), ("warn", Level::Warning), ("error", Level::Error));
    for set in [&[info][..], &[warn], &[error], &[info, warn], &[info, error], &[warn, error]] {
        let fits = |number: &i64| set.iter().any(|(_, level)| pattern_level(*number) == *level);
        let names: Vec<_> = set.iter().map(|(name, _)| *name).collect();
        let path = format!("/v2/log?node_name=9732&limit=1000&log_level={}", names.join(","));
        let newest: Vec<u64> = (0..lines).rev().filter(fits).take(1000).map(|id| id as u64).collect();
        let oldest: Vec<u64> = (0..lines).filter(fits).take(1000).map(|id| id as u64).collect();
        assert_eq!(server.ids(&path), newest, "{path}");
        let path = format!("{path}&direction=forward");
        assert_eq!(server.ids(&path), oldest, "{path}");
        for row in rows(server, &path) {
            assert!(set.iter().any(|(_, level)| row["level"] == level.name()), "{path}: {row}");
        }
    }
}

fn check_pagination(server: &Server, lines: u64) {
    let page = |cursor: u64| server.ids(&format!("/v2/log?node_name=9732&cursor={cursor}&limit=1000"));
    let back_from = |last: u64| (last.saturating_sub(999)..=last).rev().collect::<Vec<_>>();
    assert_eq!(page(1234), back_from(1234));
    assert_eq!(page(2 * (lines - 1)), back_from(lines - 1), "beyond the end");
    for last in (0..lines).rev().step_by(1000) {
        assert_eq!(page(last), back_from(last));
    }
}

/// Offsets from the start and the numbers of rows before and after, as in the script.
fn check_times(server: &Server) {
    for (offset, before, after) in [(321, 322, 500), (6789, 500, 500), (9876, 500, 123)] {
        let time = START + offset;
        let path = |direction: &str| {
            format!("/v2/log?node_name=9732&limit=500&timestamp={}&direction={direction}", time * 1000)
        };
        let times = |direction: &str| {
            let rows = rows(server, &path(direction));
            rows.iter().map(|row| row["timestamp"].as_i64().unwrap() / MS / 1000).collect::<Vec<_>>()
        };
        assert_eq!(times("backward"), (0..before).map(|row| time - row).collect::<Vec<_>>());
        assert_eq!(times("forward"), (0..after).map(|row| time + 1 + row).collect::<Vec<_>>());
        for direction in ["backward", "forward"] {
            let path = format!("{}&log_level=warn", path(direction));
            let is_forward = direction == "forward";
            let fits = |number: &i64| pattern_level(*number) == Level::Warning && (*number > offset) == is_forward;
            let found = (0..10_000_i64).filter(fits).map(|id| id as u64);
            let model: Vec<u64> = if is_forward {
                found.take(500).collect()
            } else {
                let mut all: Vec<u64> = found.collect();
                all.reverse();
                all.truncate(500);
                all
            };
            assert!(!model.is_empty());
            assert_eq!(server.ids(&path), model, "{path}");
        }
    }
}

/// The queries of the script, and which sets of words they find.
fn check_text(server: &Server) {
    let first = 10_000;
    let has = |set: u32, word: &str| set & (1 << WORDS.iter().position(|each| *each == word).unwrap()) != 0;
    let any = |set: u32, words: &[&str]| words.iter().any(|word| has(set, word));
    type Fits<'a> = &'a dyn Fn(u32) -> bool;
    let cases: [(&str, usize, Fits); 12] = [
        ("query=peer", 1000, &|set| has(set, "peer")),
        ("query=peer%20-branch", 1000, &|set| has(set, "peer") && !has(set, "branch")),
        ("query=peer+-branch", 1000, &|set| has(set, "peer") && !has(set, "branch")),
        ("query=peer%20chain%20-branch", 1000, &|set| any(set, &["peer", "chain"]) && !has(set, "branch")),
        ("query=peer%20-branch%20-head", 1000, &|set| has(set, "peer") && !any(set, &["branch", "head"])),
        ("query=ip%20address%20-peer", 1000, &|set| any(set, &["ip", "address"]) && !has(set, "peer")),
        ("query=+ip%20+address", 16, &|set| has(set, "ip") && has(set, "address")),
        ("query=%2Bip+%2Baddress", 1000, &|set| has(set, "ip") && has(set, "address")),
        ("query=+head%20+chain%20+branch%20-peer%20-connection", 4, &|set| {
            ["head", "chain", "branch"].iter().all(|word| has(set, word)) && !any(set, &["peer", "connection"])
        }),
        ("query=(ip%20OR%20peer)%20AND%20-head", 1000, &|set| any(set, &["ip", "peer"]) && !has(set, "head")),
        ("query=peer&cursor=10100", 1000, &|set| has(set, "peer") && set <= 101),
        ("query=peer%20-branch&query_no_quotes=true", 100, &|set| has(set, "peer") && !has(set, "branch")),
    ];
    for (query, limit, fits) in cases {
        let path = format!("/v2/log?node_name=9732&{query}&limit={limit}");
        let newest_first = (1..=255).rev().filter(|set| fits(*set)).map(|set| first + u64::from(set) - 1);
        let model: Vec<u64> = newest_first.take(limit).collect();
        assert!(!model.is_empty());
        assert_eq!(server.ids(&path), model, "{path}");
    }
}

#[test]
fn the_lines_of_the_original_are_found_by_level_time_page_and_text_also_after_restarts() {
    let server = stored_and_restarted(Server::start(), 0..5000);
    check_levels(&server, 5000);
    check_pagination(&server, 5000);
    let server = stored_and_restarted(server, 5000..10_000);
    check_levels(&server, 10_000);
    check_pagination(&server, 10_000);
    check_times(&server);

    let mut agent = server.agent(&["9732"]);
    agent.batch("9732", 10_000, (1..=255).map(words).collect());
    agent.wait_for("9732", 10_255);
    check_text(&server);
    drop(agent);
    let server = server.restart();
    check_text(&server);
    let first = &rows(&server, "/v2/log?direction=forward&limit=1")[0];
    assert_eq!((&first["level"], &first["section"]), (&"Info".into(), &"".into()));
    assert_eq!(first["timestamp"], START * 1000 * MS);
    assert!(first["message"].as_str().unwrap().starts_with("some "), "{first}");
}
