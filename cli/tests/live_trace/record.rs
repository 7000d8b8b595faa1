//! What `chainscope latency record` says before and while it attaches.

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use chainscope_testing::program::compile;

/// A program of `testing/programs/latency_plain.c`, called `recorded`.
pub(crate) struct Workload(Child);

impl Workload {
    pub(crate) fn start(folder: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/latency_plain.c");
        let program = compile("gcc", &source, folder, "recorded", &["-O2", "-pthread"]);
        Self(Command::new(program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The exit code and standard error of `latency record`.
fn record(db: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chainscope"));
    let Output { status, stderr, .. } =
        command.arg("latency").arg("--db").arg(db).arg("record").args(arguments).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn plans_and_refusals_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (db, workload) = (folder.path().join("latency.db"), Workload::start(folder.path()));
    let pid = workload.pid();
    let (code, text) = record(&db, &["-p", &pid, "-f", "many_*"]);
    assert!(code == Some(2) && text.contains("many_* matches 1000 functions (many_000, "), "{text}");
    assert!(text.contains("hint: to time all of them: --max-functions 1000"), "{text}");
    let (code, text) = record(&db, &["-p", &pid, "-f", "plain_hit", "--plan"]);
    assert!(code == Some(0) && text.contains("exits by return probes"), "{text}");
    assert!(text.contains("plain_hit: about 1.7 µs a call (entry: nop, emulated; exit: return probe)"), "{text}");
    let exe = format!("/proc/{pid}/exe");
    let (_, text) = record(&db, &["-e", &exe, "-f", "plain_hit", "--plan"]);
    assert!(text.contains("exits by instructions") && text.contains("exit: ret, single-stepped)"), "{text}");
    let (_, text) = record(&db, &["-e", &exe, "-f", "plain_hit", "--plan", "--exits", "return"]);
    assert!(text.contains("warning: if its processes have exceptions or coroutines"), "{text}");
    // What the program does not have of a set is left out, but something has to remain.
    let (code, text) = record(&db, &["-p", &pid, "--set", "rippled", "-f", "plain_hit", "--plan"]);
    assert!(code == Some(0) && text.contains("1 functions of "), "{text}");
    assert!(text.contains("payment is not timed: no function matches Payment::preflight"), "{text}");
    let (code, text) = record(&db, &["-p", &pid, "--set", "rippled"]);
    assert!(code == Some(1) && text.contains("no function can be timed; "), "{text}");
    let (_, text) = record(&db, &["-p", &pid, "-e", "/bin/true", "-f", "main"]);
    assert!(text.contains(&format!("process {pid} has not loaded /bin/true")), "{text}");
}

#[test]
fn a_terminal_shows_how_far_attaching_is() {
    let folder = tempfile::tempdir().unwrap();
    let (db, workload) = (folder.path().join("latency.db"), Workload::start(folder.path()));
    let arguments = ["-p", &workload.pid(), "-f", "many_*", "--max-functions", "1000", "-d", "1"];
    let (_, text) = record(&db, &arguments);
    assert!(text.contains("recording run ") && !text.contains("attaching"), "no terminal: {text}");
    let command = format!(
        "'{}' latency --db '{}' record {}",
        env!("CARGO_BIN_EXE_chainscope"),
        db.display(),
        arguments.map(|argument| format!("'{argument}'")).join(" ")
    );
    let output =
        Command::new("script").args(["--quiet", "--return", "--command", &command, "/dev/null"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("attaching to functions: 250 of 1000"), "{text}");
    // The line is erased before the next one.
    assert!(text.contains("\r\u{1b}[Krecording run "), "{text}");
}
