//! Harness of the scenarios. It panics instead of returning errors, so that a failed test shows the line and the programs' output.

pub mod api;
pub mod demo_node;
pub mod document;
pub mod expect;
pub mod memory_process;
pub mod namespace;
pub mod program;
pub mod recorder;
pub mod search;
pub mod stats;
pub mod transcript;
pub mod vectors;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use chainscope_testing::{free_port, usage, wait};

/// The path of a binary of this workspace, built beside the running test.
///
/// # Panics
/// If it is not built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the running test has a path");
    let mut candidates = test.ancestors().skip(1).map(|directory| directory.join(name));
    // The test is target/debug/deps/<test>.
    let found = candidates.by_ref().take(2).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built beside {}: run `make build` first", test.display()))
}

/// The directory of the binaries of this workspace.
///
/// # Panics
/// If they are not built.
#[must_use]
pub fn programs() -> PathBuf {
    binary("chainscope-demo-node").parent().expect("a binary is in a directory").to_owned()
}

/// Fails unless the test runs as root. Mounts tracefs and the BPF file system if they are not mounted.
///
/// # Panics
/// If it does not run as root, or a mount fails.
pub fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "this test loads eBPF programs and needs root: run `make test`");
    let mounted = |at: &str| {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("/proc/mounts");
        mounts.lines().any(|line| line.split(' ').nth(1) == Some(at))
    };
    for (kind, at) in [("tracefs", "/sys/kernel/tracing"), ("bpf", "/sys/fs/bpf")] {
        if !mounted(at) {
            // Another test may have mounted it meanwhile.
            let output = Command::new("mount").args(["-t", kind, kind, at]).output().expect("mount");
            assert!(mounted(at), "cannot mount {at}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Runs a command to its end and returns its standard output.
///
/// # Panics
/// If it fails; with its standard error.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether the tests run in their long form (`make soak`).
#[must_use]
pub fn soak() -> bool {
    std::env::var_os("CHAINSCOPE_SOAK").is_some()
}

/// All files below a directory.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
            let path = entry.expect("entry").path();
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    files
}
