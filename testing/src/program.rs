//! Workload programs, compiled at the start of a test.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Compiles a BPF program of a benchmark with the headers in `include`; `CLANG` names another clang.
///
/// # Panics
/// Like [`compile`].
#[must_use]
pub fn compile_bpf(source: &Path, include: &Path, folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let include = include.to_str().expect("a path in UTF-8");
    let mut all = vec!["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-D__TARGET_ARCH_x86", "-Wall", "-Wextra", "-Werror"];
    all.extend(["-Wno-unused-parameter", "-I", include, "-c"]);
    all.extend(flags);
    compile(&clang, source, folder, name, &all)
}

/// Copies an executable, in a process of its own: a descriptor open for writing in this one could be inherited by a process that
/// another thread starts at this moment, and the copy could not be executed (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
pub fn copy(from: &Path, to: &Path) {
    let status = Command::new("install").args(["-m", "755"]).args([from, to]).status().expect("install of coreutils");
    assert!(status.success(), "cannot copy {} to {}", from.display(), to.display());
}

/// Writes an executable shell script, like [`copy`].
///
/// # Panics
/// If it cannot be written.
pub fn script(path: &Path, text: &str) {
    let mut install = Command::new("install");
    let mut install =
        install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn().expect("install");
    install.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
    assert!(install.wait().expect("its end").success(), "cannot write {}", path.display());
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
