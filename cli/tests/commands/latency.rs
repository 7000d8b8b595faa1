//! `chainscope latency`: runs of a file, imported and made, in every form of output.

use std::{fs, path::Path, process::Output, time::Duration};

use chainscope_latency::{
    Block, Function, Histogram, Location, Resolution, Run, RunId, RunInfo, Time, database::Database,
};
use serde_json::Value;

use crate::{chainscope, stdout};

/// 20 blocks whose medians vary by up to 1 %, times `factor`.
fn run(number: u8, tag: &str, factor: f64) -> Run {
    let start = i64::from(number) * 86_400_000_000_000;
    let block = |index: i32| {
        let mut histogram = Histogram::default();
        let load = 1.0 + 0.01 * f64::from((index * 7 + i32::from(number) * 3) % 5) / 5.0;
        for step in 0..1_000 {
            histogram.record((100_000.0 * factor * load * (1.0 + f64::from(step) / 1_000.0)) as u64);
        }
        Block {
            start: Time(start + i64::from(index) * 30_000_000_000),
            length: Duration::from_secs(30),
            histogram,
            ..Block::default()
        }
    };
    Run {
        info: RunInfo {
            id: RunId([number; 16]),
            node: None,
            pid: 1,
            executable: "/bin/node".into(),
            build_id: None,
            version: None,
            commit: None,
            tags: [tag.to_owned()].into(),
            host: "host".into(),
            kernel: "6.18".into(),
            start: Time(start),
            end: Some(Time(start + 600_000_000_000)),
            block: Duration::from_secs(30),
            resolution: Resolution::LogLinear,
        },
        functions: vec![Function {
            name: "\u{1b}[31mapply".into(),
            entry: Location::default(),
            exit: Location::default(),
        }],
        blocks: (0..20).map(block).collect(),
        transactions: Vec::new(),
    }
}

fn database(path: &Path) {
    let mut database = Database::create_or_open(path).expect("created");
    for (number, tag, factor) in [(1, "old", 1.0), (2, "new", 1.1), (3, "equal", 1.0)] {
        database.insert(&run(number, tag, factor)).expect("written");
    }
}

fn output(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = chainscope(arguments).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code().expect("it exits"), text(stdout), text(stderr))
}

#[test]
fn comparison_in_ci() {
    let directory = tempfile::tempdir().expect("created");
    let db = directory.path().join("runs.db");
    database(&db);
    let db = db.to_str().expect("UTF-8");
    let page = directory.path().join("page.html");
    let (code, text, error) =
        output(&["latency", "--db", db, "compare", "old", "new", "--html", page.to_str().expect("UTF-8")]);
    assert_eq!((code, error.as_str()), (3, "chainscope: slower: 1 of 1 functions\n"));
    assert!(text.contains("slower") && text.contains("+10.0 %"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(fs::read_to_string(page).expect("written").starts_with("<!doctype html>"));

    let (code, text, _) =
        output(&["latency", "--db", db, "compare", "old", "equal", "--json", "--fail-on", "inconclusive"]);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &json["verdict"]), (0, &Value::from("same")));
    let (code, _, error) = output(&["latency", "--db", db, "compare", "old", "old"]);
    assert!(code == 2 && error.contains("is on both sides"), "{error}");
    let (code, _, error) = output(&["latency", "--db", db, "compare", "old", "older"]);
    assert!(code == 1 && error.contains("no run with tag, commit or id \"older\""), "{error}");
    assert_eq!(stdout(&["latency", "--db", db, "list"]).lines().count(), 4);
}

#[test]
fn files_that_cannot_be_read() {
    let directory = tempfile::tempdir().expect("created");
    let db = directory.path().join("none.db");
    let db = db.to_str().expect("UTF-8");
    let (code, _, error) = output(&["latency", "--db", db, "list"]);
    assert!(code == 2 && error.contains("no such file of runs") && error.contains("hint:"), "{error}");
    let text = directory.path().join("text.db");
    fs::write(&text, "text ".repeat(1_000)).expect("written");
    let (code, _, error) = output(&["latency", "--db", db, "import", text.to_str().expect("UTF-8")]);
    assert!(code == 1 && error.contains("text.db is damaged: file is not a database"), "{error}");
}

#[test]
fn sample_is_imported_and_exported() {
    let directory = tempfile::tempdir().expect("created");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    database(Path::new(&path("runs.db")));
    stdout(&["latency", "--db", &path("runs.db"), "export", &path("probes.db"), "old"]);
    stdout(&["latency", "--db", &path("other.db"), "import", &path("probes.db")]);
    let report: Value =
        serde_json::from_str(&stdout(&["latency", "--db", &path("other.db"), "report", "--json"])).expect("JSON");
    assert_eq!(report["sides"][0][0]["tags"][0], "old");
    let functions = report["functions"].as_array().expect("a list");
    let spans: Vec<u64> = functions.iter().filter_map(|function| function["sides"][0]["spans"].as_u64()).collect();
    assert_eq!(spans.iter().sum::<u64>(), 20_000);
    let (code, _, error) = output(&["latency", "--db", &path("runs.db"), "export", &path("probes.db")]);
    assert!(code == 1 && error.contains("an export does not overwrite"), "{error}");
}
