//! Tracepoints that no view knows, conditions, formats.

use std::collections::BTreeMap;

use chainscope_trace::{
    Condition, Event, Pattern, Selection, Value,
    view::{Any, Format},
};
use chainscope_usdt::{ArgumentContract, Kind, Scalar};

use crate::support::{attachment, event, output, unknown};

fn any(pattern: &str, format: Option<&str>) -> Any {
    Any::new(vec![pattern.parse().expect("valid")], format.map(|format| Format::parse(format).expect("valid")))
}

fn flush(ms: u64, mode: u64) -> Event {
    let flush = attachment("bitcoin-core-v31", "utxocache:flush");
    let [mode, coins, memory] = [mode, 5, 6].map(Value::Unsigned);
    event(&flush, ms, vec![Value::Signed(-3), mode, coins, memory, Value::Bool(true)])
}

fn selected(conditions: &[&str], events: &[Event]) -> String {
    let conditions = conditions.iter().map(|condition| condition.parse().expect("valid")).collect();
    let selection = Selection { conditions, ..Selection::default() };
    let output = output(&mut any("*:*", Some("{monotonic_ns}")), selection, false, events);
    // The millisecond of each event.
    let lines = output.lines().filter(|line| !line.contains(' '));
    lines.map(|line| (line.parse::<u64>().expect("valid") / 1_000_000 % 1000).to_string()).collect::<Vec<_>>().join(" ")
}

#[test]
fn unknown_tracepoints_have_numbered_arguments() {
    let argument = |scalar| ArgumentContract {
        name: String::new(),
        kind: Kind::Scalar(scalar),
        unit: None,
        values: BTreeMap::new(),
        note: None,
    };
    let tried = unknown("addrman", "attempt_add", &[argument(Scalar::Bool), argument(Scalar::I32)]);
    let events = [event(&tried, 1, vec![Value::Unsigned(1), Value::Signed(-5)]), flush(2, 0)];
    let shown = output(&mut any("addrman:*", None), Selection::default(), false, &events);
    let line = "2021-07-14T09:30:00.001000000Z b-msghand[4711/4712] addrman:attempt_add arg1=1 arg2=-5";
    assert_eq!(shown.lines().collect::<Vec<_>>(), [line, "2 hits = 2 delivered + 0 dropped"]);
}

#[test]
fn formats_have_fields() {
    let format = "{time}\\t{mode} {{{duration}}} {comm} {cpu} {nothing}";
    let shown = output(&mut any("utxocache:f*", Some(format)), Selection::default(), false, &[flush(2, 4)]);
    assert_eq!(shown.lines().next().unwrap(), "2021-07-14T09:30:00.002000000Z\tFORCE_SYNC {-3} b-msghand 1 <missing>");
    assert!(Format::parse("{open").is_err());
    assert!(Format::parse("close}").is_err());
}

#[test]
fn conditions_compare_numbers_and_texts() {
    let events = [flush(1, 1), flush(2, 4), flush(3, 9)];
    for (condition, expected) in [
        ("mode=4", "2"),
        ("mode==FORCE_SYNC", "2"),
        ("mode!=4", "1 3"),
        ("mode > 3", "2 3"),
        ("mode>=4", "2 3"),
        ("mode<4.5", "1 2"),
        ("mode<=1", "1"),
        ("mode~FORCE", "2"),
        ("duration=-3", "1 2 3"),
        ("for_prune=true", "1 2 3"),
        ("pid=4711", "1 2 3"),
        ("comm~msghand", "1 2 3"),
        ("nothing!=4", ""),
    ] {
        assert_eq!(selected(&[condition], &events), expected, "{condition}");
    }
    assert_eq!(selected(&["mode>1", "mode<9"], &events), "2");
    // Exactly, although a floating-point number cannot tell them apart.
    let mut large = flush(4, 1);
    large.arguments[2] = Value::Unsigned(u64::MAX);
    assert_eq!(selected(&["coins=18446744073709551615"], &[large.clone()]), "4");
    assert_eq!(selected(&["coins>18446744073709551614"], &[large.clone()]), "4");
    assert_eq!(selected(&["coins<18446744073709551615"], &[large]), "");
    for wrong in ["mode", "=4", "mode>much", "mode!4"] {
        assert!(wrong.parse::<Condition>().is_err(), "{wrong}");
    }
}

#[test]
fn nothing_is_true_of_what_was_not_captured() {
    let mut hidden = flush(1, 1);
    hidden.arguments[1] = Value::Unreadable { address: 1 };
    for condition in ["mode=1", "mode!=1", "mode~unreadable"] {
        assert_eq!(selected(&[condition], std::slice::from_ref(&hidden)), "", "{condition}");
    }
}

#[test]
fn patterns_and_times() {
    assert!("net".parse::<Pattern>().is_err());
    let pattern: Pattern = "net:*bound_message".parse().unwrap();
    assert!(pattern.matches("net", "inbound_message") && !pattern.matches("net2", "inbound_message"));
    let found = flush(5, 1);
    let time = found.time.wall_ns;
    let selection = |since_ns, until_ns| Selection { since_ns, until_ns, ..Selection::default() };
    assert!(selection(Some(time), Some(time)).matches(&found));
    assert!(!selection(Some(time + 1), None).matches(&found));
    assert!(!selection(None, Some(time - 1)).matches(&found));
}
