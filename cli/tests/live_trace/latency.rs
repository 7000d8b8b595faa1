//! `chainscope latency record` on a running program: what it stores, compared with what the program measured itself.

use std::{
    io::{BufRead as _, BufReader, Lines, Write as _},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use chainscope_testing::{
    fakenode::{FakeNode, Flavour},
    program::compile,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A program of `testing/programs/latency_plain.c`.
struct Workload(Child);

impl Workload {
    fn start(folder: &Path) -> Self {
        Self::start_as(folder, "workload")
    }

    /// Starts it from a file of this name.
    fn start_as(folder: &Path, name: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/latency_plain.c");
        let program = compile("gcc", &source, folder, name, &["-O2", "-pthread"]);
        Self(Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Sends commands, and returns the words of the last one's answer.
    fn answer(&mut self, commands: &[&str]) -> Vec<u64> {
        let mut line = String::new();
        let mut replies = BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap());
        for command in commands {
            writeln!(self.0.stdin.as_mut().unwrap(), "{command}").unwrap();
            line.clear();
            replies.read_line(&mut line).unwrap();
        }
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn latency(db: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chainscope"));
    command.arg("latency").arg("--db").arg(db);
    command
}

/// `latency record`.
struct Recorder {
    child: Child,
    notes: Lines<BufReader<ChildStderr>>,
}

impl Recorder {
    fn start(db: &Path, arguments: &[&str]) -> Self {
        let mut child = latency(db).arg("record").args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let notes = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, notes }
    }

    fn wait_for(&mut self, note: &str) {
        self.notes.by_ref().map(Result::unwrap).find(|line| line.starts_with(note)).unwrap();
    }

    /// As with Ctrl-C; returns the last note.
    fn stop(mut self) -> String {
        kill_process(Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
        self.notes.map(Result::unwrap).last().unwrap()
    }
}

fn json(command: &mut Command) -> Value {
    let output = command.arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn runs_of_a_process_are_recorded_listed_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("latency.db");
    let mut workload = Workload::start(folder.path());
    let pid = workload.0.id().to_string();
    for (tag, nap) in [("before", "nap 40 2000"), ("after", "nap 20 4000")] {
        let arguments = ["-p", &pid, "-s", "1", "-c", "abc", "-t", &format!("{tag},all"), "-f", "plain_nap"];
        let mut recorder = Recorder::start(&db, &arguments);
        recorder.wait_for("recording run ");
        workload.answer(&[nap]);
        let last = recorder.stop();
        assert!(last.contains("spans of 1 functions"), "{last}");
    }
    // Count, sum, minimum, and the exact percentiles of all naps.
    let exact = workload.answer(&["exact nap"]);
    let runs = json(latency(&db).arg("list"));
    assert_eq!(runs.as_array().map(Vec::len), Some(2), "{runs}");
    assert_eq!((&runs[0]["commit"], &runs[0]["pid"]), (&"abc".into(), &workload.0.id().into()), "{runs}");
    let report = json(latency(&db).args(["report", "all"]));
    let sides = report["functions"][0]["sides"].as_array().unwrap();
    let spans: u64 = sides.iter().filter_map(|side| side["spans"].as_u64()).sum();
    assert_eq!(spans, exact[0], "{report}");
    // Two runs of a second or less have no 8 blocks.
    let comparison = json(latency(&db).args(["compare", "before", "after"]));
    assert_eq!(comparison["comparison"]["verdict"], "inconclusive", "{comparison}");
    let page = folder.path().join("page.html");
    let written = latency(&db).args(["report", "--html"]).arg(&page).output().unwrap();
    assert!(written.status.success() && std::fs::read_to_string(&page).unwrap().contains("plain_nap"), "{written:?}");
}

/// Two versions at once: their blocks are pairs.
#[test]
fn two_processes_are_recorded_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("latency.db");
    let [mut old, mut new] = [(), ()].map(|()| Workload::start(folder.path()));
    let processes = [format!("{}=old", old.0.id()), format!("{}=new", new.0.id())];
    let arguments = ["-p", &processes[0], "-p", &processes[1], "-s", "1", "-d", "10", "-t", "both", "-f", "plain_nap"];
    let mut recorder = Recorder::start(&db, &arguments);
    (0..2).for_each(|_| recorder.wait_for("recording run "));
    // Longer than it is recorded.
    writeln!(old.0.stdin.as_mut().unwrap(), "vary 1000000 1000").unwrap();
    // Twice as long, so that what a busy machine adds to each nap does not hide it.
    writeln!(new.0.stdin.as_mut().unwrap(), "vary 1000000 2000").unwrap();
    assert!(recorder.child.wait().unwrap().success());
    let runs = json(latency(&db).arg("list"));
    let pids: Vec<&Value> = runs.as_array().unwrap().iter().map(|run| &run["pid"]).collect();
    assert_eq!(pids, [&Value::from(old.0.id()), &Value::from(new.0.id())], "{runs}");
    assert_eq!((&runs[0]["tags"], &runs[1]["tags"]), (&json!(["both", "old"]), &json!(["both", "new"])), "{runs}");
    let compared = latency(&db).args(["compare", "old", "new", "--json"]).output().unwrap();
    let comparison: Value = serde_json::from_slice(&compared.stdout).unwrap();
    let comparison = &comparison["comparison"];
    assert_eq!((compared.status.code(), &comparison["functions"][0]["design"]), (Some(3), &json!("paired")));
    let back = json(latency(&db).args(["compare", "new", "old"]));
    assert_eq!(back["comparison"]["verdict"], "faster", "{back}");
}

#[expect(clippy::disallowed_methods, reason = "records have times of the wall clock")]
fn wall_clock_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

/// The ready set on rippled with USDT: what the program says of each transaction is found again.
#[test]
fn transactions_of_rippled_are_recorded_and_found() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("latency.db");
    let mut node = FakeNode::run(folder.path(), Flavour::Rippled);
    let mut recorder = Recorder::start(&db, &["-p", &node.pid().to_string(), "-s", "1"]);
    recorder.wait_for("recording run ");
    let (mut expected, mut times) = (Vec::new(), Vec::new());
    for number in 0..30_u32 {
        if number % 10 == 0 {
            times.push(wall_clock_ns().to_string());
        }
        let kind = if number % 3 == 0 { "offer" } else { "payment" };
        let result = [0, 125, -99][number as usize % 3];
        let command = format!("transaction kind={kind} txid={} result={result} apply_us=300", number % 7);
        let fired = node.execute(&command).fired.remove(0);
        expected.push((fired.show("txid").to_uppercase(), fired.number_of("type"), i64::from(result)));
    }
    let last = recorder.stop();
    assert!(last.contains("of 4 functions"), "{last}");
    let search = |arguments: &[&str]| {
        let rows = json(latency(&db).args(["transactions", "--limit", "1000"]).args(arguments));
        rows.as_array().unwrap().clone()
    };
    let facts = |rows: &[Value]| {
        let fact = |row: &Value| {
            let (kind, result) = (row["type"].as_i64().unwrap(), row["result"].as_i64().unwrap());
            (row["id"].as_str().unwrap().to_owned(), kind, result)
        };
        rows.iter().map(fact).collect::<Vec<_>>()
    };
    let all = search(&[]);
    assert_eq!(facts(&all), expected);
    let those = |is_meant: &dyn Fn(&(String, i64, i64)) -> bool| {
        expected.iter().filter(|fact| is_meant(fact)).cloned().collect::<Vec<_>>()
    };
    let id = &expected[2].0;
    assert_eq!(facts(&search(&["--id", &id[..20].to_lowercase()])), those(&|fact| fact.0 == *id));
    assert_eq!(facts(&search(&["--type", "7"])), those(&|fact| fact.1 == 7));
    assert_eq!(facts(&search(&["--result", "-99", "--type", "0"])), those(&|fact| fact.2 == -99 && fact.1 == 0));
    assert_eq!(facts(&search(&["--since", &times[1], "--until", &times[2]])), expected[10..20]);
    let slowest = search(&["--slowest"]);
    assert!(slowest.is_sorted_by(|a, b| a["duration_ns"].as_u64() >= b["duration_ns"].as_u64()));
    // The spans of the functions are those of the transactions.
    let report = json(latency(&db).arg("report"));
    let functions = report["functions"].as_array().unwrap();
    let spans = |name: &str| {
        functions.iter().find(|function| function["function"] == name).unwrap()["sides"][0]["spans"].as_u64().unwrap()
    };
    assert_eq!(["transaction", "transactor", "payment", "offer_create"].map(spans), [30, 30, 20, 10]);
    // A database of the sample has them, too.
    let exported = folder.path().join("probes.db");
    assert!(latency(&db).arg("export").arg(&exported).status().unwrap().success());
    let other = folder.path().join("other.db");
    assert!(latency(&other).arg("import").arg(&exported).status().unwrap().success());
    let imported = json(latency(&other).args(["transactions", "--limit", "1000", "--id", id]));
    assert_eq!(facts(imported.as_array().unwrap()), those(&|fact| fact.0 == *id));
}

#[test]
fn nothing_is_recorded_of_names_that_do_not_exist_and_of_ended_processes() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("latency.db");
    let workload = Workload::start(folder.path());
    let pid = workload.0.id().to_string();
    let refused = |arguments: &[&str], expected: &str| {
        let output = latency(&db).arg("record").args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{arguments:?}: {error}");
    };
    refused(&["-p", &pid, "-f", "plain_nop"], "plain_nap");
    refused(&["-p", &pid, "-f", "many_*"], "100");
    refused(&["-p", "4194303", "-f", "plain_nap"], "there is no process 4194303");
    refused(&["-p", &pid, "--span", "plain_nap"], "not ENTRY..EXIT");
    refused(&["-p", &pid, "--set", "unknown"], "rippled");
    refused(&["-p", "0", "-f", "plain_nap"], "not a process id");
    refused(&["-p", &format!("{pid}="), "-f", "plain_nap"], "no tag after =");
    refused(&["-p", &pid, "-p", "4194303=gone", "-f", "plain_nap"], "there is no process 4194303");
    assert!(!db.exists(), "a run that was not recorded");
}

#[test]
fn the_name_of_an_executable_does_not_control_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let workload = Workload::start_as(folder.path(), "work\u{1b}]0;title\u{7}\u{202e}");
    let pid = workload.0.id().to_string();
    let record = |arguments: &[&str]| {
        let mut command = latency(&folder.path().join("latency.db"));
        let output = command.args(["record", "-p", &pid, "--plan"]).args(arguments).output().unwrap();
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(notes.lines().all(|line| line.chars().all(chainscope_hygiene::is_printable)), "{notes:?}");
        (output.status.success(), notes)
    };
    let (is_planned, notes) = record(&["-f", "plain_nap"]);
    assert!(is_planned && notes.contains("/work\\u{1b}]0;title\\u{7}\\u{202e}; exits by "), "{notes}");
    // The error names the file that it has instead.
    let other = folder.path().join("other/work\u{1b}]0;title\u{7}\u{202e}");
    let (is_planned, error) = record(&["-f", "plain_nap", "--exe", other.to_str().unwrap()]);
    assert!(!is_planned && error.contains(": it has loaded "), "{error}");
}
