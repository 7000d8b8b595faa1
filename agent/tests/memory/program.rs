//! The programs that hold memory.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// What a program is written in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Language {
    Cpp,
    Rust,
    Go,
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory/programs").join(name)
}

fn run(command: &mut Command) {
    let output = command.output();
    let is_done = output.as_ref().is_ok_and(|output| output.status.success());
    assert!(is_done, "{command:?}: {output:?}");
}

impl Language {
    /// Builds the program in a folder, as it is built for use.
    pub(crate) fn build(self, dir: &Path) -> PathBuf {
        let program = dir.join(format!("holder-{self:?}").to_lowercase());
        match self {
            Self::Cpp => {
                let flags = ["-std=c++17", "-O2", "-fomit-frame-pointer", "-o"];
                run(Command::new("g++").args(flags).arg(&program).arg(source("holder.cc")).arg("-ldl"));
            }
            Self::Rust => {
                let flags = ["--edition=2024", "--crate-name=holder", "-O", "-o"];
                run(Command::new("rustc").args(flags).arg(&program).arg(source("holder.rs")));
            }
            Self::Go => {
                let path = format!("{}:/usr/local/go/bin", std::env::var("PATH").unwrap_or_default());
                let mut go = Command::new("go");
                go.env("PATH", path);
                run(go.args(["build", "-o"]).arg(&program).arg(source("holder.go")));
            }
        }
        program
    }
}

/// Builds the library.
pub(crate) fn plugin(dir: &Path) -> PathBuf {
    let library = dir.join("libplugin.so");
    let flags = ["-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-o"];
    run(Command::new("g++").args(flags).arg(&library).arg(source("plugin.cc")));
    library
}

/// Builds the C++ program without libraries as `holder` in the root of a container, stripped. Its symbols and debug
/// information are where that root keeps such things, named by the build id.
pub(crate) fn contained(root: &Path) {
    fs::create_dir(root).unwrap();
    let (whole, stripped) = (root.join("whole"), root.join("holder"));
    let flags =
        ["-std=c++17", "-g", "-O2", "-fomit-frame-pointer", "-static", "-Wl,--build-id=0x0123456789abcdef", "-o"];
    run(Command::new("g++").args(flags).arg(&whole).arg(source("holder.cc")));
    let debug = root.join("usr/lib/debug/.build-id/01");
    fs::create_dir_all(&debug).unwrap();
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&whole).arg(debug.join("23456789abcdef.debug")));
    run(Command::new("objcopy").arg("--strip-all").arg(&whole).arg(&stripped));
    fs::remove_file(&whole).unwrap();
}

/// A program that runs.
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it and waits until it listens.
    pub(crate) fn start(path: &Path) -> Self {
        Self::spawn(&mut Command::new(path))
    }

    /// Starts it in a root of its own.
    pub(crate) fn start_in(root: &Path, path: &str) -> Self {
        Self::spawn(Command::new("chroot").arg(root).arg(path))
    }

    fn spawn(command: &mut Command) -> Self {
        // Go's runtime interrupts functions by signals, whose stacks would be theirs, too.
        let command = command.env("GODEBUG", "asyncpreemptoff=1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self { child, input, output };
        assert_eq!(program.hear(), "ready");
        program
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to do something and waits until it is done.
    pub(crate) fn say(&mut self, line: &str) {
        assert_eq!(self.ask(line), "ok", "{line}");
    }

    /// Tells it something; its answer.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        self.hear()
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// `RssAnon`, in pages.
    pub(crate) fn resident_anonymous(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 4
    }

    /// Ends it, and its children; its number.
    pub(crate) fn end(mut self) -> u32 {
        self.input = None;
        let pid = self.pid();
        // One that forked only waits.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        pid
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
