//! `chainscope latency`: runs of a file, imported and made, in every form of output.

use std::{fs, path::Path, process::Output, time::Duration};

use chainscope_latency::{
    Block, Function, Histogram, Location, Resolution, Run, RunId, RunInfo, Time, database::Database,
};
use serde_json::Value;

use crate::{chainscope, stdout};

/// 20 blocks whose medians vary by up to 1 %, times `factor`.
pub(crate) fn run(number: u8, tag: &str, factor: f64) -> Run {
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
    assert_eq!((code, &json["comparison"]["verdict"]), (0, &Value::from("same")));
    let (code, _, error) = output(&["latency", "--db", db, "compare", "old", "old"]);
    assert!(code == 2 && error.contains("is on both sides") && error.contains("hint:"), "{error}");
    let (code, _, error) = output(&["latency", "--db", db, "compare", "old", "older"]);
    let unknown = "no run with tag, commit or id \"older\"";
    assert!(code == 1 && error.contains(unknown) && error.contains("hint: `chainscope latency list`"), "{error}");
    assert_eq!(stdout(&["latency", "--db", db, "list"]).lines().count(), 4);
}

/// The numbers of a page with the pointers of what they show.
fn numbers(page: &str) -> Vec<(f64, &str)> {
    page.split("<data value=\"").skip(1).map(|data| number(data).expect("a number with its pointer")).collect()
}

fn number(data: &str) -> Option<(f64, &str)> {
    let (value, rest) = data.split_once("\" data-pointer=\"")?;
    Some((value.parse().ok()?, rest.split_once('"')?.0))
}

#[test]
fn every_number_of_a_page_is_in_the_json() {
    let directory = tempfile::tempdir().expect("created");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    database(Path::new(&path("runs.db")));
    for command in [&["report"][..], &["report", "old", "new"], &["compare", "old", "new"]] {
        let page = path("page.html");
        let (_, json, _) =
            output(&[&["latency", "--db", &path("runs.db")], command, &["--html", &page, "--json"]].concat());
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let page = fs::read_to_string(page).expect("written");
        let shown = numbers(&page);
        assert!(shown.len() > 30, "{command:?}: {}", shown.len());
        for (value, pointer) in shown {
            let exact = json.pointer(pointer).and_then(Value::as_f64);
            let exact = exact.unwrap_or_else(|| panic!("{command:?}: no number at {pointer}"));
            assert!((exact - value).abs() <= exact.abs() * 1e-15, "{command:?}: {pointer}: {exact} {value}");
        }
    }
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

#[test]
fn histograms_are_exported_for_other_programs() {
    let directory = tempfile::tempdir().expect("created");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    database(Path::new(&path("runs.db")));
    let export = |name: &str, format: &str| {
        output(&["latency", "--db", &path("runs.db"), "export", &path(name), "old", "new", "--format", format])
    };
    let (code, _, note) = export("metrics.json", "otlp");
    assert!(code == 0 && note.starts_with("runs exported to ") && note.trim_end().ends_with(": 2"), "{note}");
    let request: Value = serde_json::from_slice(&fs::read(path("metrics.json")).expect("written")).expect("JSON");
    let points = |resource: &Value| {
        let points = &resource["scopeMetrics"][0]["metrics"][0]["exponentialHistogram"]["dataPoints"];
        let count = |point: &Value| point["count"].as_str()?.parse::<u64>().ok();
        points.as_array().expect("a list").iter().filter_map(count).sum::<u64>()
    };
    let counts: Vec<u64> = request["resourceMetrics"].as_array().expect("a list").iter().map(points).collect();
    assert_eq!(counts, [20_000, 20_000]);
    assert_eq!(export("metrics.pb", "prometheus").0, 0);
    let bytes = fs::read(path("metrics.pb")).expect("written");
    let name = b"chainscope_function_duration_seconds";
    assert!(bytes.windows(name.len()).any(|part| part == name));
    let (code, _, error) = export("metrics.pb", "otlp");
    assert!(code == 1 && error.contains("an export does not overwrite"), "{error}");
}
