//! The same numbers in JSON, on the page and in the terminal.

use std::path::Path;

use chainscope_latency::report::{EXIT_INCONCLUSIVE, EXIT_SLOWER, FailOn, Report, RunSummary, exit_code};
use chainscope_latency::verdict::{Options, Verdict};
use chainscope_latency::{html, text};
use serde_json::Value;

use crate::runs::{HOSTILE, run};

pub(crate) fn comparison() -> Report {
    Report::of_comparison(&[run(1, 1.0), run(2, 1.0)], &[run(3, 1.15), run(4, 1.15)], &Options::default())
}

pub(crate) fn history() -> Report {
    let runs: Vec<_> = (1..=12).map(|number| run(number, if number < 7 { 1.0 } else { 1.2 })).collect();
    Report::of_runs(&runs, &Options::default())
}

/// The text between two marks, again and again.
fn between<'a>(text: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).map(move |rest| rest.split(end).next().unwrap())
}

fn remove(text: &str, start: &str, end: &str) -> String {
    let mut parts = text.split(start);
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |kept, part| kept + " " + part.split_once(end).unwrap().1)
}

/// Leaves of the JSON that are numbers, with their pointers.
fn numbers(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| numbers(value, &format!("{pointer}/{name}"), found))
        }
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(index, value)| numbers(value, &format!("{pointer}/{index}"), found));
        }
        Value::Number(_) => found.push(pointer.to_owned()),
        _ => {}
    }
}

fn verify_page(report: &Report, name: &str) {
    let page = html::render(report);
    // Kept to be looked at.
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), &page).unwrap();
    let json: Value = serde_json::from_str(&serde_json::to_string(report).unwrap()).unwrap();

    // Each number of the page is that of the JSON.
    let mut shown = Vec::new();
    for data in between(&page, "<data value=\"", "</data>") {
        let (value, rest) = data.split_once("\" data-pointer=\"").unwrap();
        let (pointer, text) = rest.split_once("\">").unwrap();
        // The parser of JSON may be off by the last bit of a fraction.
        let exact = json.pointer(pointer).and_then(Value::as_f64).unwrap();
        let shown_value: f64 = value.parse().unwrap();
        assert!((exact - shown_value).abs() <= exact.abs() * 1e-15, "{pointer}: {exact} {shown_value}");
        assert!(text.chars().any(char::is_numeric), "{pointer}: {text}");
        shown.push(pointer.to_owned());
    }
    // There are no others, except those of names and times.
    let mut rest = page.clone();
    for (start, end) in
        [("<style>", "</style>"), ("<svg", "</svg>"), ("<data", "</data>"), ("<code>", "</code>"), ("<", ">")]
    {
        rest = remove(&rest, start, end);
    }
    let known = json.to_string();
    for word in rest.split_whitespace().filter(|word| word.chars().any(char::is_numeric)) {
        let word = word.trim_matches([',', ';', '.', ':']);
        let is_static =
            ["p50", "p90", "p99", "p99.9"].contains(&word) || rest.contains(&format!("wrong verdict is {word} %"));
        let is_hostile = word.starts_with("x&lt;script");
        let is_row = word.parse::<usize>().is_ok_and(|row| row <= 12);
        assert!(
            is_static || is_hostile || is_row || known.contains(word) || known.contains(word.trim_end_matches(';')),
            "{word}"
        );
    }
    // And of the JSON all are on the page, except those that are drawn or decide.
    let mut all = Vec::new();
    numbers(&json, "", &mut all);
    let drawn = [
        "/timeline/",
        "/histogram/",
        "/shift/",
        "/sum_ns",
        "/units",
        "/quantile",
        "_spans",
        "/p_change",
        "/p_same",
        "/alpha",
    ];
    let mut missing: Vec<&String> = all.iter().filter(|pointer| !shown.contains(pointer)).collect();
    missing.retain(|pointer| !drawn.iter().any(|part| pointer.contains(part)));
    // Return codes are shown of a side, not of each run or group.
    missing.retain(|pointer| {
        !((pointer.contains("/runs/") || pointer.contains("/groups/")) && pointer.contains("/returns/"))
    });
    // Of a type of transactions there is nothing lost.
    missing.retain(|pointer| !(pointer.starts_with("/transaction_types/") && pointer.ends_with("/unended")));
    // A code of both sides has one row.
    missing.retain(|pointer| !(pointer.contains("/sides/1/returns/") && pointer.ends_with("/code")));
    assert!(missing.is_empty(), "{missing:?}");

    assert!(
        !page.contains("<script") && !page.contains("http://")
            || page.matches("http://").count() == page.matches("http://www.w3.org/2000/svg").count()
    );
    assert!(page.contains("x&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;\u{fffd}[31m"));
}

#[test]
fn the_page_of_a_comparison_shows_the_numbers_of_its_json() {
    let report = comparison();
    let comparison = report.comparison.as_ref().unwrap();
    let verdict = |name: &str| comparison.functions.iter().find(|function| function.function == name).unwrap().verdict;
    assert_eq!((verdict("payment"), verdict("offer_create")), (Verdict::Slower, Verdict::Same));
    assert_eq!(comparison.functions[0].function, "payment", "most significant first");
    let order: Vec<&String> = comparison.functions.iter().map(|function| &function.function).collect();
    assert_eq!(order, report.functions.iter().map(|function| &function.function).collect::<Vec<_>>());
    verify_page(&report, "comparison.html");
}

#[test]
fn the_page_of_a_history_shows_the_numbers_of_its_json() {
    let report = history();
    let payment = report.histories.iter().find(|history| history.function == "payment").unwrap();
    assert_eq!(payment.changes.len(), 1);
    assert_eq!(payment.changes[0].run, "07".repeat(16));
    assert!((payment.changes[0].change_percent - 20.0).abs() < 2.0, "{payment:?}");
    assert!(!report.histories.iter().any(|history| history.function == "offer_create"));
    verify_page(&report, "history.html");
}

#[test]
fn a_report_of_nothing_is_a_page() {
    let report = Report::of_runs(&[], &Options::default());
    assert!(html::render(&report).contains("Functions"));
    assert_eq!(text::list(&[], None).text.lines().count(), 1);
}

#[test]
fn runs_of_a_tag_are_a_group_and_long_runs_are_merged() {
    let report = history();
    let payment = &report.functions[0];
    // Each has a tag of its own, and all have one in common: no group has several runs, but not all.
    assert_eq!((payment.function.as_str(), payment.groups.len(), payment.runs.len()), ("payment", 0, 12));
    let mut runs: Vec<_> = (1..=4).map(|number| run(number, 1.0)).collect();
    for run in &mut runs[..2] {
        run.info.tags.insert("old".into());
        run.info.commit = Some("c0ffee".into());
    }
    let report = Report::of_runs(&runs, &Options::default());
    let groups = &report.functions[0].groups;
    let of = |tag: Option<&str>, commit: Option<&str>| {
        let found = groups.iter().find(|group| (group.tag.as_deref(), group.commit.as_deref()) == (tag, commit));
        found.map(|group| (group.run_count, group.statistics.spans)).unwrap()
    };
    assert_eq!(groups.len(), 2);
    assert_eq!([of(Some("old"), None), of(None, Some("c0ffee"))], [(2, 48_000); 2]);
    verify_page(&report, "groups.html");

    // Blocks of a day are periods of several blocks, in which nothing is missing.
    let mut long = run(1, 1.0);
    let blocks = long.blocks.clone();
    for day in 1..240_i64 {
        long.blocks.extend(blocks.iter().cloned().map(|mut block| {
            block.start.0 += day * 360_000_000_000;
            block
        }));
    }
    let report = Report::of_runs(&[long], &Options::default());
    let timeline = &report.functions[0].runs[0].timeline;
    assert_eq!((timeline.len(), timeline[0].seconds), (240, 360.0));
    assert_eq!(timeline.iter().map(|period| period.spans).sum::<u64>(), 240 * 24_000);
    assert_eq!(timeline[0].returns[0].count, 12 * 550);
    assert_eq!(
        (timeline[0].start.as_str(), timeline[1].start.as_str()),
        ("2023-11-14T23:13:20Z", "2023-11-14T23:19:20Z")
    );
}

#[test]
fn a_difference_of_hosts_is_told() {
    let mut other = [run(3, 1.0), run(4, 1.0)];
    assert!(comparison().differences.is_empty());
    other[0].info.host = "node-8".into();
    let report = Report::of_comparison(&[run(1, 1.0), run(2, 1.0)], &other, &Options::default());
    let says = "host of A: node-7; of B: node-7, node-8. A change may come from that";
    assert_eq!(
        report.differences.iter().map(chainscope_latency::report::SideDifference::describe).collect::<Vec<_>>(),
        [says]
    );
    assert!(html::render(&report).contains(says));
    let text = text::comparison(report.comparison.as_ref().unwrap(), &report.differences, None).text;
    assert!(text.ends_with(&format!("{says}\n")), "{text}");
    verify_page(&report, "hosts.html");
}

#[test]
fn transactions_are_grouped_by_id_and_type() {
    let report = history();
    // Ids repeat over the runs, of which each applies 40.
    let group = &report.transaction_groups[0];
    assert_eq!((group.id.as_str(), group.applications), (report.slowest_transactions[0].id.as_str(), 12));
    let runs: Vec<_> = (1..=12).map(|number| run(number, 1.0)).collect();
    let durations: Vec<u64> = runs
        .iter()
        .flat_map(|run| &run.transactions)
        .filter(|of| of.id.to_string() == group.id)
        .map(|of| of.duration_ns)
        .collect();
    assert_eq!(group.sum_ns, durations.iter().sum::<u64>());
    assert_eq!((Some(&group.min_ns), Some(&group.max_ns)), (durations.iter().min(), durations.iter().max()));
    assert_eq!(report.transaction_types.len(), 8);
    assert!(report.transaction_types.iter().all(|of| of.statistics.spans == 60 && of.runs.len() == 12));
    let counted: u64 = report
        .transaction_types
        .iter()
        .flat_map(|of| &of.runs)
        .flat_map(|run| &run.timeline)
        .map(|period| period.spans)
        .sum();
    assert_eq!(counted, 480);
}

/// A page of a thousand functions opens in a browser: its size is that of its tables.
#[test]
fn a_page_of_a_thousand_functions_is_small() {
    let wide = |number: u8| {
        let mut wide = run(number, 1.0);
        let (function, blocks) = (wide.functions[0].clone(), wide.blocks.clone());
        wide.functions = (0..1000)
            .map(|index| chainscope_latency::Function {
                name: format!("app::module::function_{index}"),
                ..function.clone()
            })
            .collect();
        let of = |index: usize| {
            blocks
                .iter()
                .filter(|block| block.function == 0)
                .cloned()
                .map(move |block| chainscope_latency::Block { function: index, ..block })
        };
        wide.blocks = (0..1000).flat_map(of).collect();
        wide
    };
    let report = Report::of_comparison(&[wide(1)], &[wide(2)], &Options::default());
    let page = html::render(&report);
    assert_eq!(page.matches("<details").count(), 1000);
    assert_eq!(page.matches("<details class=\"f\" id=\"f11\" open>").count(), 1);
    assert_eq!(page.matches("<details class=\"f\" id=\"f12\">").count(), 1);
    assert!(page.matches("<svg").count() <= 40 * 6 + 4 * 3, "{}", page.matches("<svg").count());
    assert!(page.len() < 12 << 20, "{} bytes", page.len());
}

#[test]
fn json_is_read_as_it_was_written() {
    let report = comparison();
    let json = serde_json::to_value(&report).unwrap();
    assert!(serde_json::from_value::<Report>(json).unwrap() == report);
}

#[test]
fn texts_of_the_terminal() {
    let report = comparison();
    let runs: Vec<RunSummary> = report.sides.concat();
    let list = text::list(&runs, None).text;
    assert!(
        list.starts_with(
            "RUN       START (UTC)          TAGS         COMMIT    VERSION  NODE  HOST    KERNEL  STATE\n"
        ),
        "{list}"
    );
    assert!(
        list.contains("01010101  2023-11-14T23:13:20  2.1,nightly  01bcc6f8  2.1.0    main  node-7  6.18.4  ended\n"),
        "{list}"
    );
    let narrow = text::list(&runs, Some(60));
    assert!(narrow.text.lines().all(|line| line.chars().count() <= 60), "{}", narrow.text);
    assert_eq!(narrow.omitted, ["KERNEL", "HOST", "VERSION", "COMMIT"]);
    let shown = text::report(&report, None).text;
    assert!(shown.contains("payment returned 0 × 13,200, 125 × 960, -99 × 240"), "{shown}");
    let compared = text::comparison(report.comparison.as_ref().unwrap(), &report.differences, None).text;
    let payment = compared.lines().find(|line| line.starts_with("payment")).unwrap();
    assert!(payment.contains("slower") && payment.contains("+15"), "{payment}");
    assert!(compared.ends_with("slower: margin 5 %, 5 % chance of any wrong verdict\n"), "{compared}");
    for text in [&list, &shown, &compared] {
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    assert!(shown.contains("x<script>"), "{HOSTILE}");
}

#[test]
fn exit_codes_for_ci() {
    let of = |a: &[_], b: &[_]| Report::of_comparison(a, b, &Options::default()).comparison.unwrap();
    let slower = of(&[run(1, 1.0), run(2, 1.0)], &[run(3, 1.15), run(4, 1.15)]);
    assert_eq!(exit_code(&slower, FailOn::Slower), EXIT_SLOWER);
    let mut short = run(5, 1.0);
    short.blocks.truncate(12);
    let inconclusive = of(&[run(1, 1.0)], &[short]);
    assert_eq!(inconclusive.functions[0].record_seconds, Some(240), "8 blocks of 30 s");
    assert_eq!(exit_code(&inconclusive, FailOn::Slower), 0);
    assert_eq!(exit_code(&inconclusive, FailOn::Inconclusive), EXIT_INCONCLUSIVE);
    let same = of(&[run(1, 1.0), run(2, 1.0)], &[run(3, 1.0), run(4, 1.0)]);
    assert_eq!((same.verdict, exit_code(&same, FailOn::Inconclusive)), (Verdict::Same, 0));
}
