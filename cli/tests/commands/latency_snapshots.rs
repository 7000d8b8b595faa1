//! The output of `chainscope latency list`, `report`, `compare` and `transactions` at 80 and 200 columns, of a file and of a server;
//! errors with what to do next. [`crate::snapshots`] says how the expected text is written.

use std::path::Path;

use chainscope_latency::{
    Run, Transaction, TransactionId,
    database::Database,
    record::{encode_counts, encode_run, encode_transaction, nanoseconds},
};
use chainscope_proto::v1::{LatencyBlock, Record, record::Kind};
use serde_json::Value;

use crate::{
    chainscope,
    latency::run,
    server::{Server, record},
    snapshots::{command_line, compare, transcribe},
};

/// Runs of three tags on two hosts, with return codes and transactions.
pub(crate) fn runs() -> Vec<Run> {
    let mut runs: Vec<Run> = [(1, "1.4.0-b3", 1.0), (2, "1.4.0-b4", 1.1), (3, "nightly", 1.0)]
        .into_iter()
        .map(|(number, tag, factor)| run(number, tag, factor))
        .collect();
    for (run, host) in runs.iter_mut().zip(["node-7", "node-7", "node-8"]) {
        run.info.host = host.to_owned();
        run.info.commit = Some(format!("{:02x}bcc6f8c9d0e1f2", run.info.id.0[0]));
        run.info.build_id = Some("3fa9c0de77".to_owned());
        for block in &mut run.blocks {
            block.returns = [(0, 990), (125, 10)].into();
        }
        let transaction = |number: u8| Transaction {
            id: TransactionId([number % 3 * 0x2a; 32]),
            kind: i64::from(number % 2) * 7,
            result: if number.is_multiple_of(3) { 125 } else { 0 },
            duration_ns: 150_000 + u64::from(number) * 77_777,
            time: chainscope_latency::Time(run.info.start.0 + i64::from(number) * 1_000_000_007),
        };
        run.transactions = (0..4).map(transaction).collect();
    }
    runs
}

/// Creates a database with these runs.
fn write_database(path: &Path, runs: &[Run]) {
    let mut database = Database::create_or_open(path).expect("created");
    runs.iter().for_each(|run| database.insert(run).expect("written"));
}

pub(crate) fn records(run: &Run) -> Vec<Record> {
    let head = LatencyBlock { run_id: run.info.id.0.to_vec(), ..LatencyBlock::default() };
    let at = |time_ns, kind| Record { time_ns, ..record(kind) };
    let described = LatencyBlock {
        run: Some(encode_run(&run.info, &run.functions)),
        end_ns: run.info.end.map(|end| end.0),
        ..head.clone()
    };
    let mut records = vec![at(run.info.start.0, Kind::LatencyBlock(described))];
    records.extend(run.blocks.iter().map(|block| {
        let (length_ns, functions) = (nanoseconds(block.length), vec![encode_counts(block)]);
        at(block.start.0, Kind::LatencyBlock(LatencyBlock { length_ns, functions, ..head.clone() }))
    }));
    let of = |transaction: &Transaction| Kind::LatencyTransaction(encode_transaction(run.info.id, transaction));
    records.extend(run.transactions.iter().map(|transaction| at(transaction.time.0, of(transaction))));
    records
}

/// Commands of both sources.
const COMMANDS: [&[&str]; 4] = [
    &["list"],
    &["report", "1.4.0-b3"],
    &["compare", "1.4.0-b3", "1.4.0-b4"],
    &["transactions", "--slowest", "--limit", "3"],
];

/// Commands of both sources that fail.
const REFUSED: [&[&str]; 4] = [
    &["report", "2.0"],
    &["compare", "1.4.0-b3", "2.0"],
    &["compare", "1.4.0-b3", "1.4.0-b3/host=node-7"],
    &["transactions", "--run", "1.4.0-b3/kernel=5"],
];

fn transcript(source: &[&str]) -> String {
    let mut text = String::new();
    let mut add = |columns: Option<u16>, arguments: &[&str]| {
        let mut command = chainscope(&[&["latency"], arguments].concat());
        command.args(source);
        if let Some(columns) = columns {
            command.env("COLUMNS", columns.to_string());
        }
        let width = columns.map(|columns| format!("    # {columns} columns")).unwrap_or_default();
        let line = format!("{}{width}", command_line(&[&["latency"], arguments].concat()));
        text += &transcribe(&mut command, &line);
    };
    for command in COMMANDS {
        for columns in [80, 200] {
            add(Some(columns), command);
        }
    }
    for format in ["json", "jsonl"] {
        add(None, &["list", "-o", format]);
        add(None, &["transactions", "--limit", "2", "-o", format]);
    }
    add(None, &["list", "--host", "node-8", "--kernel", "6.", "--tag", "nightly"]);
    add(None, &["list", "--host", "node-9"]);
    REFUSED.iter().for_each(|command| add(Some(80), command));
    text
}

#[test]
fn runs_of_a_file() {
    let directory = tempfile::tempdir().expect("created");
    let db = directory.path().join("runs.db");
    write_database(&db, &runs());
    let db = db.to_str().expect("UTF-8");
    let mut text = transcript(&["--db", db]);
    for arguments in [
        &["latency", "list", "--db", "/none/latency.db"][..],
        &["latency", "list", "--db", "latency.db", "--kube"],
        &["latency", "import", "/none/probes.db", "--db", db],
        &["latency", "export", db, "--db", db, "--format", "otlp"],
        &["latency", "export", db, "2.0", "--db", db],
    ] {
        text += &transcribe(&mut chainscope(arguments), &command_line(arguments));
    }
    compare(&text.replace(db, "latency.db"), "latency");
}

/// The first element of each array of a JSON document, and how many there are.
fn shortened(value: &mut Value) {
    match value {
        Value::Array(values) => {
            let more = values.len().saturating_sub(1);
            values.truncate(1);
            values.iter_mut().for_each(shortened);
            if more > 0 {
                values.push(format!("{more} more").into());
            }
        }
        Value::Object(members) => members.values_mut().for_each(shortened),
        _ => {}
    }
}

/// Reports as JSON are long, so that only the first element of each array is shown; the numbers are compared with SQL in
/// `chainscope-latency`.
#[test]
fn reports_as_json() {
    let directory = tempfile::tempdir().expect("created");
    let db = directory.path().join("runs.db");
    write_database(&db, &runs());
    let db = db.to_str().expect("UTF-8");
    let mut text = String::new();
    for arguments in [
        &["latency", "report", "1.4.0-b3", "-o", "json"][..],
        &["latency", "compare", "1.4.0-b3", "1.4.0-b4", "-o", "json"],
    ] {
        let output = chainscope(arguments).args(["--db", db]).output().expect("it starts");
        let mut json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        shortened(&mut json);
        let code = output.status.code().expect("an exit code");
        text += &format!("{}\n{json:#}\nexit code {code}\n\n", command_line(arguments));
    }
    compare(&text, "latency-json");
}

#[test]
fn runs_are_exported_and_imported() {
    let directory = tempfile::tempdir().expect("created");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let paths = ["latency.db", "other.db", "probes.db", "metrics.json"].map(path);
    let [db, other, probes, metrics] = paths.each_ref().map(String::as_str);
    write_database(Path::new(db), &runs());
    let mut text = String::new();
    for arguments in [
        &["latency", "export", probes, "1.4.0-b3", "--db", db][..],
        &["latency", "export", probes, "1.4.0-b4", "--db", db],
        &["latency", "export", metrics, "latest", "--format", "otlp", "--db", db],
        &["latency", "import", probes, "--db", other],
        &["latency", "import", probes, "--db", other],
        &["latency", "list", "--db", other],
    ] {
        text += &transcribe(&mut chainscope(arguments), &command_line(arguments));
    }
    compare(&text.replace(&format!("{}/", directory.path().display()), ""), "latency-files");
}

#[test]
fn runs_of_a_server() {
    let mut server = Server::start();
    server.feed(runs().iter().flat_map(records).collect());
    let url = server.url();
    compare(&transcript(&["--api", &url]).replace(&url, "http://127.0.0.1:17732"), "latency-server");
}

#[test]
fn help() {
    let mut text = String::new();
    for columns in ["80", "200"] {
        for command in
            [&[][..], &["record"], &["list"], &["report"], &["compare"], &["transactions"], &["import"], &["export"]]
        {
            let arguments = [&["latency"][..], command, &["--help"]].concat();
            let mut command = chainscope(&arguments);
            command.env("COLUMNS", columns);
            text += &transcribe(&mut command, &format!("{}    # {columns} columns", command_line(&arguments)));
        }
    }
    compare(&text, "latency-help");
}

/// A page and the exit code of a comparison do not depend on where the runs are.
#[test]
fn a_comparison_of_a_server_is_that_of_a_file() {
    let directory = tempfile::tempdir().expect("created");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let mut runs = runs();
    for run in &mut runs {
        // Agents name the node of their records.
        run.info.node = Some(crate::server::NODE.to_owned());
    }
    write_database(Path::new(&path("runs.db")), &runs);
    let mut server = Server::start();
    server.feed(runs.iter().flat_map(records).collect());
    let url = server.url();
    let sources = [("file", ["--db".to_owned(), path("runs.db")]), ("server", ["--api".to_owned(), url])];
    let outputs = sources.map(|(name, source)| {
        let page = path(&format!("{name}.html"));
        let arguments =
            ["latency", "compare", "1.4.0-b3", "1.4.0-b4", "--html", &page, "-o", "json", &source[0], &source[1]];
        let output = chainscope(&arguments).output().expect("it starts");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (
            output.status.code(),
            json["comparison"].clone(),
            json["functions"].clone(),
            std::fs::read_to_string(page).expect("written"),
        )
    });
    assert_eq!(outputs[0].0, Some(3));
    assert_eq!(outputs[0].1, outputs[1].1);
    assert_eq!(outputs[0].2, outputs[1].2);
    assert!(without_values(&outputs[0].3) == without_values(&outputs[1].3), "the pages differ");
}

/// A page without the exact values of its numbers: those of a response were read from JSON, which may change their last digit.
fn without_values(page: &str) -> String {
    let mut parts = page.split("<data value=\"");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| kept + part.split_once('"').map_or(part, |(_, rest)| rest))
}
