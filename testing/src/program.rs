//! Workload programs, compiled at the start of a test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program into a directory and renames it into place, so that concurrent tests never see a partial file.
///
/// # Panics
/// If the compiler is missing or fails.
#[must_use]
pub fn compile(compiler: &str, source: &Path, folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let program = folder.join(name);
    let fresh = folder.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
    let status = Command::new(compiler).args(flags).arg("-o").arg(&fresh).arg(source).status();
    let status = status.unwrap_or_else(|error| panic!("{compiler}: {error}; `make setup` installs what tests need"));
    assert!(status.success(), "{compiler} on {}; `make setup` installs the headers that tests need", source.display());
    std::fs::rename(&fresh, &program).expect("the same folder");
    program
}

/// Compiles `programs/memory_workload.c` without frame pointers. The program executes memory commands from standard
/// input and replies to each line with a number.
///
/// # Panics
/// Like [`compile`].
#[must_use]
pub fn memory_workload(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/memory_workload.c");
    compile("gcc", &source, folder, "memory_workload", &["-O2", "-pthread", "-fomit-frame-pointer"])
}

/// Compiles `programs/hostile_code.c` under this name. The program executes code of damaged ELF files; its command line is in the
/// source.
///
/// # Panics
/// Like [`compile`].
#[must_use]
pub fn hostile_code(folder: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/hostile_code.c");
    compile("gcc", &source, folder, name, &["-O2", "-static"])
}
