//! The cluster launcher: each level starts, and leaves nothing behind.

use std::path::{Path, PathBuf};
use std::process::Command;

use chainscope_e2e::cluster::{Level, Setup};
use chainscope_e2e::harness::binary;
use chainscope_e2e::harness::program::Program;
use serde_json::json;

#[test]
fn an_api_server_responds_and_has_an_audit_log() {
    let cluster = Setup::new(Level::Api).audit().start();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "first"}});
    cluster.apply(&namespace.to_string());
    let found = cluster.find("namespace first").expect("the namespace");
    assert_eq!(found["metadata"]["name"], "first");
    assert!(cluster.kubectl_with_input("apply -f -", "apiVersion: v1\nkind: Nonsense\n").is_err());
    let audit = cluster.audit();
    let by_us = audit.iter().any(|e| e["user"]["username"] == "admin" && e["objectRef"]["name"] == "first");
    assert!(by_us, "{} requests, none of this test", audit.len());

    // Another cluster at the same time is independent of the first.
    let other = Setup::new(Level::Control).start();
    assert!(other.find("namespace first").is_none());
    let folder = other.folder().to_owned();
    drop(other);
    assert!(!folder.exists(), "{} is left", folder.display());
    assert!(cluster.find("namespace first").is_some());
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let up = || {
        let mut command = Command::new(binary("chainscope-cluster"));
        let program = Program::start("chainscope-cluster", command.args(["up", "--bare", "--hosts", "2"]));
        let config = program.wait_stdout("KUBECONFIG", |lines| {
            lines.iter().find_map(|line| line.strip_prefix("export KUBECONFIG=")).map(PathBuf::from)
        });
        (program, config.parent().expect("a folder").to_owned())
    };
    // After SIGTERM the launcher cleans up.
    let (program, folder) = up();
    assert!(!groups(&folder).is_empty());
    program.terminate().expect_success("chainscope-cluster");
    assert!(!folder.exists() && groups(&folder).is_empty(), "{:?}", groups(&folder));
    // After SIGKILL the next launcher cleans up.
    let (program, folder) = up();
    drop(program.kill());
    assert!(folder.exists() && !groups(&folder).is_empty());
    drop(Setup::new(Level::Api).start());
    assert!(!folder.exists() && groups(&folder).is_empty(), "{:?}", groups(&folder));
}

/// Cgroups of a cluster.
fn groups(folder: &Path) -> Vec<PathBuf> {
    let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let ours = path.file_name().is_some_and(|file| file.to_string_lossy().contains(&name));
            match path.is_dir() && !path.is_symlink() {
                true if ours => found.push(path),
                true => folders.push(path),
                false => {}
            }
        }
    }
    found
}
