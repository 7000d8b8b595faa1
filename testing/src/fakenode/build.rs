//! Compilation of the fake nodes, once for all tests that use the same directory of the build.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::Command,
};

use crate::program::compile;

/// Which node's tracepoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Bitcoin Core of this release, from 23 on.
    Core(u32),
    /// Moneyrocket Core.
    Moneyrocket,
    /// Tapyrus Core.
    Tapyrus,
    /// rippled with USDT.
    Rippled,
}

impl Flavour {
    /// Name of the program, by which its contract is recognised.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Core(_) => "bitcoind",
            Self::Moneyrocket => "moneyrocketd",
            Self::Tapyrus => "tapyrusd",
            Self::Rippled => "rippled",
        }
    }

    fn source(self) -> (&'static str, Option<String>) {
        match self {
            Self::Core(release) => ("core.cc", Some(format!("-DCORE={release}"))),
            Self::Moneyrocket => ("core.cc", Some("-DMONEYROCKET".to_owned())),
            Self::Tapyrus => ("tapyrus.cc", None),
            Self::Rippled => ("rippled.cc", None),
        }
    }
}

/// Builds a node with `g++ -O2`. The program is a file of its own: a probe on it meets no process of another test.
///
/// # Panics
/// If the compiler or `sys/sdt.h` is missing.
#[must_use]
pub fn build(folder: &Path, flavour: Flavour) -> PathBuf {
    build_with(folder, flavour, "g++", &["-O2"])
}

/// Builds a node with another compiler or other flags; they apply to the code around the tracepoints.
///
/// # Panics
/// Like [`build`].
#[must_use]
pub fn build_with(folder: &Path, flavour: Flavour, compiler: &str, flags: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("fakenode");
    let (source, define) = flavour.source();
    let common = ["-std=c++20", "-pthread"];
    let kept = kept_folder(&sources);

    // The commands are the same for all.
    let object = kept.join("node.o");
    if !object.exists() {
        let flags = [&common[..], &["-O1", "-fPIE", "-c"]].concat();
        let _ = compile("g++", &sources.join("node.cc"), &kept, "node.o", &flags);
    }
    let define = define.as_deref();
    let own: Vec<&str> = flags.iter().copied().chain(define).collect();
    let name = format!("{source} {compiler} {}", own.join(" ")).replace(['/', ' '], "_");
    let program = kept.join(&name);
    if !program.exists() {
        let object = object.to_str().expect("UTF-8");
        let flags = [&common[..], &own[..], &[object]].concat();
        let _ = compile(compiler, &sources.join(source), &kept, &name, &flags);
    }
    let copy = folder.join(flavour.program());
    // By a program: while a file is open for writing here, a process that another thread starts has it open as well, and the
    // file cannot be executed.
    let copied = Command::new("cp").arg("--remove-destination").args([&program, &copy]).status();
    assert!(copied.is_ok_and(|status| status.success()), "{}", copy.display());
    copy
}

/// A directory beside the tests' programs for what these sources make.
fn kept_folder(sources: &Path) -> PathBuf {
    let mut names: Vec<PathBuf> =
        fs::read_dir(sources).expect("the sources").map(|entry| entry.expect("a file").path()).collect();
    names.sort();
    let mut hasher = DefaultHasher::new();
    for name in names {
        (name.file_name(), fs::read(&name).expect("a source")).hash(&mut hasher);
    }
    let running = std::env::current_exe().expect("this program");
    let kept = running.with_file_name(format!("fakenode-{:016x}", hasher.finish()));
    fs::create_dir_all(&kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display()));
    kept
}
