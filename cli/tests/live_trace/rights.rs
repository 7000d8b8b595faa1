//! Commands without the right to load eBPF programs, or to write the data directory: exit code 2, and what to do.

use std::{
    fs,
    os::unix::fs::chown,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::record::Workload;

/// A user without files.
const NOBODY: u32 = 65_534;

/// Standard error of a command that root calls without a capability. It has to end with exit code 2 and this hint.
#[track_caller]
fn refused(arguments: &[&str], hint: &str) -> String {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_chainscope")]).args(arguments);
    let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().expect("setpriv is of util-linux");
    let error = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{arguments:?}: {error}");
    assert!(error.contains(&format!("\nhint: {hint}")), "{arguments:?}: {error}");
    error
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn without_capabilities_nothing_is_recorded() {
    const HINT: &str = "run it as root, or with the capabilities BPF and PERFMON; `chainscope run --check`";
    let folder = tempfile::tempdir().unwrap();
    let workload = Workload::start(folder.path());
    let pid = workload.pid();
    let [program, db, data] = ["recorded", "latency.db", "data"].map(|name| folder.path().join(name));
    let (program, db, data) = (text(&program), text(&db), text(&data));
    for arguments in [
        &["run", "--p2p-port", "9732", "--listen", "127.0.0.1:0", "--data-dir", data][..],
        &["memory", "--pid", &pid],
        &["trace", "any", "*:*", "--pid", &pid],
        &["trace", "any", "*:*", "--file", program],
        &["latency", "--db", db, "record", "-e", program, "-f", "plain_hit"],
    ] {
        let error = refused(arguments, HINT);
        assert!(error.contains("CAP_BPF"), "{arguments:?}: {error}");
    }
    // Not even the executable of a process with more capabilities can be read.
    let error = refused(&["latency", "--db", db, "record", "-p", &pid, "-f", "plain_hit"], HINT);
    assert!(error.contains("Permission denied"), "{error}");
    refused(&["run", "--check"], "run it as root, or with these capabilities");
}

#[test]
fn a_data_directory_of_another_user_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (owned, logs) = (folder.path().join("owned"), folder.path().join("owned/logs"));
    fs::create_dir_all(&logs).unwrap();
    for directory in [&owned, &logs] {
        chown(directory, Some(NOBODY), None).unwrap();
    }
    let missing = owned.join("data");
    for (directory, message) in [(&missing, "cannot make the data directory "), (&owned, "cannot write the log in ")] {
        let arguments = ["run", "--p2p-port", "9732", "--data-dir", text(directory)];
        let error = refused(&arguments, "run it as root, or name another directory with --data-dir");
        assert!(error.contains(&format!("{message}{}: ", directory.display())), "{error}");
    }
}
