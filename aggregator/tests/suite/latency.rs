//! `/v2/latency/…` over real sockets on a real database, compared with the reports that `chainscope latency` computes of the same runs.

use chainscope_latency::{
    Run,
    report::{Report, RunSummary, TransactionRow},
    verdict::{Options, Side, compare},
};
use chainscope_proto::v1::{
    LatencyBlock, LatencyCounts, LatencyFunction, LatencyRun, LatencyTransaction, Record, record::Kind,
};
use serde_json::{Value, json};

use crate::common::{
    Server, TIME,
    latency::{applied, records, run, transaction_records},
    record,
};

const SECOND: i64 = 1_000_000_000;

/// Two runs of v1 and one of v2, which is a fifth slower; a run that goes on, of an agent that was killed.
fn runs() -> [Run; 4] {
    let mut killed = run(4, "v3", 4000, 2, 1_000_000);
    killed.info.end = None;
    [run(1, "v1", 0, 12, 1_000_000), run(2, "v1", 1000, 12, 1_002_000), run(3, "v2", 2000, 12, 1_200_000), killed]
}

fn server(runs: &[Run]) -> Server {
    server_with(runs, Vec::new())
}

/// With these records after the blocks.
fn server_with(runs: &[Run], more: Vec<Record>) -> Server {
    let server = Server::start();
    // Blocks of all runs in turn, as agents of several hosts send them.
    let mut sent: Vec<_> = runs.iter().map(|run| records(run).into_iter()).collect();
    let mut all = Vec::new();
    while all.len() < runs.iter().map(|run| records(run).len()).sum() {
        all.extend(sent.iter_mut().filter_map(Iterator::next));
    }
    all.extend(more);
    server.feed("9732", all);
    server
}

/// Through text, as numbers of the response.
fn value(of: &impl serde::Serialize) -> Value {
    serde_json::from_str(&serde_json::to_string(of).unwrap()).unwrap()
}

fn ids(rows: &Value) -> Vec<&str> {
    rows.as_array().unwrap().iter().map(|row| &row["id"].as_str().unwrap()[..2]).collect()
}

#[test]
fn runs_are_listed_by_time_and_tag() {
    let runs = runs();
    let server = server(&runs);
    let all: Vec<RunSummary> = runs.iter().map(|run| RunSummary::from(&run.info)).collect();
    assert_eq!(server.json("/v2/latency/runs"), value(&all));
    assert_eq!(server.json("/nodes/9732/v2/latency/runs"), value(&all));
    let seconds = |after: i64| TIME / SECOND + after;
    for (query, expected) in [
        ("tag=v1".to_owned(), vec!["01", "02"]),
        ("tag=v".to_owned(), vec![]),
        ("host=host-1&kernel=6.18".to_owned(), vec!["01", "02", "03", "04"]),
        ("host=host".to_owned(), vec![]),
        ("kernel=6.12".to_owned(), vec![]),
        ("limit=2".to_owned(), vec!["03", "04"]),
        ("limit=0".to_owned(), vec![]),
        ("tag=v1&limit=1".to_owned(), vec!["02"]),
        // Each of the first three goes on for 360 s; the end of the last one is that of its second block.
        (format!("from={}", seconds(362)), vec!["02", "03", "04"]),
        (format!("from={}", seconds(360)), vec!["01", "02", "03", "04"]),
        (format!("to={}", seconds(999)), vec!["01"]),
        (format!("from={}&to={}", seconds(370), seconds(1500)), vec!["02"]),
        (format!("from={}", seconds(4059)), vec!["04"]),
        (format!("from={}", seconds(4062)), vec![]),
    ] {
        assert_eq!(ids(&server.json(&format!("/v2/latency/runs?{query}"))), expected, "{query}");
    }
}

#[test]
fn a_report_has_the_numbers_of_the_runs() {
    let runs = runs();
    let server = server(&runs);
    let expected = |chosen: &[&Run]| {
        let chosen: Vec<Run> = chosen.iter().map(|run| (*run).clone()).collect();
        value(&Report::of_runs(&chosen, &Options::default()))
    };
    let [first, second, third, killed] = &runs;
    for (query, chosen) in [
        ("", vec![first, second, third, killed]),
        ("run=v1", vec![first, second]),
        ("run=latest", vec![killed]),
        ("run=c0ffee3", vec![third]),
        ("run=v1/host=host-1,c0ffee3/kernel=6", vec![first, second, third]),
        ("run=host=host-1/kernel=6.18.5", vec![first, second, third, killed]),
        ("run=03030303,v1", vec![first, second, third]),
    ] {
        assert_eq!(server.json(&format!("/v2/latency/report?{query}")), expected(&chosen), "{query}");
    }
    // Blocks 2 to 4; the description lies before them, the end behind them.
    let begin = (first.info.start.0 + 60 * SECOND) / 1_000_000;
    let part = Run { blocks: first.blocks[4..10].to_vec(), ..first.clone() };
    let query = format!("run=0101&from={begin}&to={}", begin + 89_000);
    assert_eq!(server.json(&format!("/v2/latency/report?{query}")), expected(&[&part]));
    assert_eq!(expected(&[&part])["functions"][0]["sides"][0]["spans"], 3000);
}

fn transaction_server(runs: &mut [Run]) -> Server {
    let mut sent = Vec::new();
    for run in runs.iter_mut() {
        run.transactions = applied(run);
        sent.extend(transaction_records(run));
    }
    server_with(runs, sent)
}

#[test]
fn transactions_are_found_by_what_they_are() {
    let mut runs = runs();
    let server = transaction_server(&mut runs);
    let all: Vec<(u64, TransactionRow)> = (0..)
        .zip(runs.iter().flat_map(|run| run.transactions.iter().map(|of| TransactionRow::new(run.info.id, of))))
        .collect();
    type Filter<'a> = &'a dyn Fn(&TransactionRow) -> bool;
    let expected = |is_wanted: Filter<'_>| {
        let rows = all.iter().filter(|(_, row)| is_wanted(row)).map(|(cursor, row)| {
            let mut row = value(row);
            row["cursor"] = (*cursor).into();
            row
        });
        rows.collect::<Vec<Value>>()
    };
    let (second, id) = (TIME / SECOND, "2A".repeat(32));
    let run = |row: &TransactionRow| row.run[..2].to_owned();
    let filters: [(String, Filter<'_>); 9] = [
        (String::new(), &|_| true),
        (format!("id={id}"), &|row| row.id == id),
        ("id=2a2".to_owned(), &|row| row.id == id),
        ("id=7e&type=7".to_owned(), &|row| row.id.starts_with("7E") && row.r#type == 7),
        ("result=-99,125&type=0".to_owned(), &|row| row.result != 0 && row.r#type == 0),
        ("run=v1".to_owned(), &|row| ["01", "02"].contains(&run(row).as_str())),
        (format!("from={second}&to={}", second + 9), &|row| {
            run(row) == "01" && row.time.as_str() < "2021-07-14T12:02:12"
        }),
        ("target=pid+4711".to_owned(), &|_| true),
        ("target=pid+1".to_owned(), &|_| false),
    ];
    for (query, is_wanted) in filters {
        let mut rows = expected(is_wanted);
        let list = |more: &str| server.json(&format!("/v2/latency/transactions?limit=1000&{query}{more}"));
        assert_eq!(list("&direction=forward"), Value::from(rows.clone()), "{query}");
        rows.sort_by_key(|row| (std::cmp::Reverse(row["duration_ns"].as_u64()), row["cursor"].as_u64()));
        assert_eq!(list("&slowest=true"), Value::from(rows.clone()), "{query}");
        rows.sort_by_key(|row| std::cmp::Reverse(row["cursor"].as_u64()));
        assert_eq!(list(""), Value::from(rows), "{query}");
    }
    let blocks: usize = runs.iter().map(|run| records(run).len()).sum();
    assert_eq!(
        server.json("/v2/stats")["nodes"][0]["latency"],
        json!({"blocks": blocks, "transactions": all.len()}),
        "of each, what was sent"
    );
    let newest = server.json("/v2/latency/transactions?limit=2&cursor=100&type=0");
    assert_eq!(
        newest.as_array().unwrap().iter().map(|row| row["cursor"].as_u64().unwrap()).collect::<Vec<_>>(),
        [100, 98]
    );
    let slowest = server.json("/v2/latency/transactions?limit=3&slowest=true");
    assert_eq!(slowest.as_array().unwrap().len(), 3);
    assert_eq!(server.json("/v2/latency/transactions?limit=0"), json!([]));
    assert_eq!(server.json("/v2/latency/transactions?slowest=true&limit=0"), json!([]));
}

#[test]
fn reports_have_the_transactions_of_their_runs() {
    let mut runs = runs();
    let server = transaction_server(&mut runs);
    let options = Options::default();
    let report = server.json("/v2/latency/report");
    assert_eq!(report, value(&Report::of_runs(&runs, &options)));
    assert_eq!(report["slowest_transactions"].as_array().map(Vec::len), Some(20));
    assert_eq!(report["transaction_types"][0]["spans"], 120);
    let both = server.json("/v2/latency/compare/report?a=v1&b=v2");
    assert_eq!(both, value(&Report::of_comparison(&runs[..2], &runs[2..3], &options)));
    // Those of a part of the time.
    let begin = runs[0].info.start.0 / SECOND;
    let part = server.json(&format!("/v2/latency/report?run=0101&from={begin}&to={}", begin + 9));
    assert_eq!(part["transaction_types"][0]["spans"], 5);
}

#[test]
fn transactions_that_are_not_valid_are_losses() {
    let server = Server::start();
    let of = |run_id: Vec<u8>, id: Vec<u8>| {
        record(TIME, Kind::LatencyTransaction(LatencyTransaction { run_id, id, ..LatencyTransaction::default() }))
    };
    server.feed("9732", vec![of(vec![1; 16], vec![2; 32]), of(vec![1; 15], vec![2; 32]), of(vec![1; 16], vec![2; 31])]);
    assert_eq!(server.json("/v2/latency/transactions").as_array().unwrap().len(), 1);
    let losses = server.json("/v2/stats")["nodes"][0]["losses"].clone();
    let mut reasons: Vec<&str> = losses.as_array().unwrap().iter().filter_map(|loss| loss["reason"].as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["invalid record: id of a run", "invalid record: id of a transaction"]);
}

#[test]
fn a_comparison_has_the_verdict_of_the_command() {
    let runs = runs();
    let server = server(&runs);
    let options = |margin| Options { margin, ..Options::default() };
    let expected = |a: &[Run], b: &[Run], margin| value(&compare(Side { runs: a }, Side { runs: b }, &options(margin)));
    let slower = server.json("/v2/latency/compare?a=v1&b=v2");
    assert_eq!(slower, expected(&runs[..2], &runs[2..3], 0.05));
    assert_eq!((&slower["verdict"], &slower["functions"][0]["function"]), (&json!("slower"), &json!("f")));
    let faster = server.json("/v2/latency/compare?a=v2&b=0101,0202&margin=25");
    assert_eq!(faster, expected(&runs[2..3], &runs[..2], 0.25));
    assert_eq!(faster["functions"][0]["verdict"], "same");
    assert_eq!(server.json("/v2/latency/compare?a=v1&b=latest")["verdict"], "inconclusive");
    assert_eq!(server.problem("/v2/latency/compare?a=v1&b=0101", 400)["parameter"], "b");
    let report = server.json("/v2/latency/compare/report?a=v1&b=v2");
    assert_eq!(report, value(&Report::of_comparison(&runs[..2], &runs[2..3], &options(0.05))));
    assert_eq!(report["comparison"], slower);
    assert_eq!(report["sides"][1][0]["tags"], json!(["v2"]));
}

#[test]
fn malformed_parameters_and_unknown_runs_are_named() {
    let server = server(&runs());
    for (path, status, parameter) in [
        ("runs?limit=x", 400, "limit"),
        ("runs?from=-1", 400, "from"),
        ("report?to=x", 400, "to"),
        ("report?run=a&run=b", 400, "run"),
        ("report?run=v9", 404, "run"),
        ("report?run=v1/host=host-2", 404, "run"),
        ("transactions?run=v9", 404, "run"),
        ("transactions?id=xyz", 400, "id"),
        ("transactions?type=x", 400, "type"),
        ("transactions?slowest=true&cursor=1", 400, "cursor"),
        ("transactions?slowest=true&limit=1001", 400, "limit"),
        ("compare", 400, "a"),
        ("compare?a=v1&b=", 400, "b"),
        ("compare?a=v1&b=v2&margin=-5", 400, "margin"),
        ("compare?a=v1&b=v9", 404, "b"),
        ("compare?a=v9&b=v8", 404, "a"),
        ("compare/report?a=v1&b=v1", 400, "b"),
        ("compare/report?a=v1", 400, "b"),
    ] {
        assert_eq!(server.problem(&format!("/v2/latency/{path}"), status)["parameter"], parameter, "{path}");
    }
    let unknown = server.problem("/v2/latency/report?run=v9", 404);
    assert_eq!(unknown["code"], "unknown_run");
    let detail = unknown["detail"].as_str().unwrap();
    assert!(detail.starts_with("run: no run has the tag, commit or id v9: there is v1, v2, v3, 0101"), "{detail}");
    let none = Server::start();
    assert_eq!(none.json("/v2/latency/runs"), json!([]));
    assert_eq!(none.json("/v2/latency/report")["functions"], json!([]));
    let detail = none.problem("/v2/latency/report?run=latest", 404)["detail"].clone();
    assert_eq!(detail, "run: no run has the tag, commit or id latest: there is no run");
    none.problem("/v2/latency/runs?node_name=none", 404);
}

fn block(time_ns: i64, block: LatencyBlock) -> Record {
    record(time_ns, Kind::LatencyBlock(block))
}

/// A run that an agent may make up: extreme times, counts and names.
fn made_up(id: u8, time_ns: i64) -> Record {
    let names = ["\u{1b}[2J\u{202e}", "f", "f", ""];
    let functions = names.map(|name| LatencyFunction { name: name.to_owned(), entry: None, exit: None });
    let counts = |function: u32, bucket: u32| LatencyCounts {
        function,
        buckets: vec![bucket],
        counts: vec![u64::MAX],
        sum_ns: u64::MAX,
        min_ns: u64::MAX,
        max_ns: 0,
        returns: [(i64::MIN, u64::MAX)].into(),
        unended: u64::MAX,
        lost: [("x".to_owned(), u64::MAX), ("no_entry".to_owned(), u64::MAX)].into(),
    };
    let described = LatencyRun {
        pid: u32::MAX,
        tags: vec![format!("t{}", id % 2)],
        start_ns: time_ns,
        block_ns: u64::MAX,
        functions: functions.into(),
        ..LatencyRun::default()
    };
    let functions = vec![counts(0, 0), counts(1, 1919), counts(1, 7), counts(999, 1000)];
    let run = Some(described);
    block(time_ns, LatencyBlock { run_id: vec![id; 16], run, length_ns: u64::MAX, functions, end_ns: Some(i64::MIN) })
}

#[test]
fn what_an_agent_makes_up_is_answered() {
    let server = Server::start();
    let times = [i64::MIN, -1, 0, i64::MAX];
    server.feed("9732", (0..40).map(|id| made_up(id, times[usize::from(id) % 4])).collect());
    assert_eq!(server.json("/v2/latency/runs?from=1").as_array().unwrap().len(), 0);
    assert_eq!(server.json("/v2/latency/runs?limit=100").as_array().unwrap().len(), 40);
    let report = server.get("/v2/latency/report");
    assert_eq!(report.status, 200);
    assert!(!report.body.chars().any(|character| character.is_control() || character == '\u{202e}'));
    let report: Value = serde_json::from_str(&report.body).unwrap();
    assert!(report["functions"].as_array().unwrap().iter().any(|function| function["sides"][0]["spans"] == u64::MAX));
    assert_eq!(server.get("/v2/latency/compare?a=t0&b=t1").status, 200);
}

#[test]
fn blocks_that_are_not_valid_are_losses() {
    let server = Server::start();
    let whole = run(1, "v1", 0, 2, 1_000_000);
    let valid = records(&whole);
    let id = vec![9; 16];
    let described = |run| LatencyBlock { run_id: id.clone(), run: Some(run), ..LatencyBlock::default() };
    let long = "x".repeat(17 << 10);
    let invalid = [
        (LatencyBlock { run_id: vec![9; 17], ..LatencyBlock::default() }, "id of a run"),
        (
            described(LatencyRun { functions: vec![LatencyFunction::default(); 1001], ..LatencyRun::default() }),
            "functions of a run",
        ),
        (
            described(LatencyRun {
                functions: vec![LatencyFunction { name: long.clone(), ..LatencyFunction::default() }],
                ..LatencyRun::default()
            }),
            "functions of a run",
        ),
        (described(LatencyRun { tags: vec![String::new(); 65], ..LatencyRun::default() }), "tags of a run"),
        (described(LatencyRun { executable: long, ..LatencyRun::default() }), "a run"),
        (
            LatencyBlock {
                run_id: id.clone(),
                functions: vec![LatencyCounts { buckets: vec![1], ..LatencyCounts::default() }],
                ..LatencyBlock::default()
            },
            "buckets",
        ),
    ];
    let mut sent = valid;
    sent.extend(invalid.iter().map(|(of, _)| block(TIME, of.clone())));
    server.feed("9732", sent);
    assert_eq!(ids(&server.json("/v2/latency/runs")), ["01"]);
    assert_eq!(server.json("/v2/latency/report"), value(&Report::of_runs(&[whole], &Options::default())));
    let stats = server.json("/v2/stats");
    let losses = stats["nodes"][0]["losses"].as_array().unwrap();
    let mut reported: Vec<(String, u64)> = losses
        .iter()
        .map(|loss| (loss["reason"].as_str().unwrap().to_owned(), loss["records"].as_u64().unwrap()))
        .collect();
    reported.sort();
    let mut expected = std::collections::BTreeMap::<String, u64>::new();
    invalid.iter().for_each(|(_, defect)| *expected.entry(format!("invalid record: {defect}")).or_default() += 1);
    assert_eq!(reported, expected.into_iter().collect::<Vec<_>>());
}

#[test]
fn runs_with_too_many_blocks_or_functions_are_refused() {
    let server = Server::start();
    let counts = |function| LatencyCounts { function, ..LatencyCounts::default() };
    let functions = |run: u32| {
        let name = |number: u32| LatencyFunction { name: format!("{run}-{number}"), ..LatencyFunction::default() };
        (0..1000).map(name).collect()
    };
    let mut sent = Vec::new();
    // 201 times 1,000 blocks of functions; 15 runs of 1,000 functions of their own.
    for number in 0..201 {
        let functions = (0..1000).map(counts).collect();
        sent.push(block(TIME + number, LatencyBlock { run_id: vec![1; 16], functions, ..LatencyBlock::default() }));
    }
    for id in 1..16_u8 {
        let run = LatencyRun { start_ns: TIME, functions: functions(id.into()), ..LatencyRun::default() };
        sent.push(block(TIME, LatencyBlock { run_id: vec![id; 16], run: Some(run), ..LatencyBlock::default() }));
    }
    server.feed("9732", sent);
    let refused = |query: &str| {
        let problem = server.problem(&format!("/v2/latency/report?{query}"), 400);
        assert_eq!(problem["code"], "query_too_wide");
        problem["detail"].as_str().unwrap().to_owned()
    };
    assert!(refused("run=0101").starts_with("the runs have more than 200000 blocks of functions together: name fewer"));
    assert!(refused(&format!("to={}", TIME / SECOND - 1)).contains("15 runs have 15000 functions"));
    let few = server.json(&format!("/v2/latency/report?run=0101&to={}", TIME / SECOND - 1));
    assert_eq!(few["functions"].as_array().unwrap().len(), 1000);
}
