//! Programs that tests watch, compiled when a test begins.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program into a folder; where tests do so at the same time, each finds a whole one.
///
/// # Panics
/// If the compiler is missing or not content.
#[must_use]
pub fn compile(compiler: &str, source: &Path, folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let program = folder.join(name);
    let fresh = folder.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
    let status = Command::new(compiler).args(flags).arg("-o").arg(&fresh).arg(source).status();
    assert!(status.is_ok_and(|status| status.success()), "{compiler} on {}", source.display());
    std::fs::rename(&fresh, &program).expect("the same folder");
    program
}

/// `programs/memory_workload.c`: it does with its memory what it is told on standard input, and answers each line by a number. Built
/// without frame pointers.
///
/// # Panics
/// As [`compile`].
#[must_use]
pub fn memory_workload(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/memory_workload.c");
    compile("gcc", &source, folder, "life", &["-O2", "-pthread", "-fomit-frame-pointer"])
}
