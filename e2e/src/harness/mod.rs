//! What the scenarios stand on. It panics instead of returning errors, so that a failed test shows the line and the programs' own words.

pub mod api;
pub mod demo;
pub mod expect;
pub mod life;
pub mod namespace;
pub mod program;
pub mod recorder;
pub mod search;
pub mod stats;
pub mod vectors;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use chainscope_testing::{free_port, wait};

/// A program of this workspace, as built beside the running test.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the running test has a path");
    let mut folders = test.ancestors().skip(1).map(|folder| folder.join(name));
    // The test is target/debug/deps/<test>.
    let found = folders.by_ref().take(2).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built beside {}: run `make build` first", test.display()))
}

/// The folder of the programs of this workspace.
///
/// # Panics
/// If they were not built.
#[must_use]
pub fn programs() -> PathBuf {
    binary("chainscope-demo-node").parent().expect("a program is in a folder").to_owned()
}

/// Fails unless the test runs as root with what the kernel probes need mounted; mounts what is missing.
///
/// # Panics
/// If it does not run as root, or a mount fails.
pub fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "this test loads eBPF programs and needs root: run `make test`");
    let mounted = |folder: &str| {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("/proc/mounts");
        mounts.lines().any(|line| line.split(' ').nth(1) == Some(folder))
    };
    for (kind, folder) in [("tracefs", "/sys/kernel/tracing"), ("bpf", "/sys/fs/bpf")] {
        if !mounted(folder) {
            // Another test may be quicker: what counts is that it is there.
            let output = Command::new("mount").args(["-t", kind, kind, folder]).output().expect("mount");
            assert!(mounted(folder), "cannot mount {folder}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Runs a command to its end.
///
/// # Panics
/// If it fails; with what it said.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The long forms of the tests: `make soak`.
#[must_use]
pub fn soak() -> bool {
    std::env::var_os("CHAINSCOPE_SOAK").is_some()
}

/// All files below a folder.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("entry").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}
