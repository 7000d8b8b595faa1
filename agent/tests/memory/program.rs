//! Test programs that allocate memory.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use chainscope_testing::usage;

/// Implementation language of a test program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Language {
    Cpp,
    Rust,
    Go,
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory/programs").join(name)
}

fn build_with(command: &mut Command) {
    let output = command.output();
    let is_done = output.as_ref().is_ok_and(|output| output.status.success());
    assert!(is_done, "{command:?}: {output:?}");
}

impl Language {
    /// Builds the program with release flags in a directory.
    pub(crate) fn build(self, dir: &Path) -> PathBuf {
        let program = dir.join(format!("holder-{self:?}").to_lowercase());
        match self {
            Self::Cpp => {
                let flags = ["-std=c++17", "-O2", "-fomit-frame-pointer", "-o"];
                build_with(Command::new("g++").args(flags).arg(&program).arg(source("holder.cc")).arg("-ldl"));
            }
            Self::Rust => {
                let flags = ["--edition=2024", "--crate-name=holder", "-O", "-o"];
                build_with(Command::new("rustc").args(flags).arg(&program).arg(source("holder.rs")));
            }
            Self::Go => {
                let path = format!("{}:/usr/local/go/bin", std::env::var("PATH").unwrap_or_default());
                let mut go = Command::new("go");
                go.env("PATH", path);
                build_with(go.args(["build", "-o"]).arg(&program).arg(source("holder.go")));
            }
        }
        program
    }
}

/// Builds the shared library.
pub(crate) fn plugin(dir: &Path) -> PathBuf {
    let library = dir.join("libplugin.so");
    let flags = ["-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-o"];
    build_with(Command::new("g++").args(flags).arg(&library).arg(source("plugin.cc")));
    library
}

/// Builds the C++ program statically linked and stripped as `holder` in the root of a container, with its debug file
/// installed by build ID.
pub(crate) fn contained(root: &Path) {
    fs::create_dir(root).unwrap();
    let (whole, stripped) = (root.join("whole"), root.join("holder"));
    let flags =
        ["-std=c++17", "-g", "-O2", "-fomit-frame-pointer", "-static", "-Wl,--build-id=0x0123456789abcdef", "-o"];
    build_with(Command::new("g++").args(flags).arg(&whole).arg(source("holder.cc")));
    let debug = root.join("usr/lib/debug/.build-id/01");
    fs::create_dir_all(&debug).unwrap();
    build_with(Command::new("objcopy").arg("--only-keep-debug").arg(&whole).arg(debug.join("23456789abcdef.debug")));
    build_with(Command::new("objcopy").arg("--strip-all").arg(&whole).arg(&stripped));
    fs::remove_file(&whole).unwrap();
}

/// A running test program.
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts the program and waits until it is ready.
    pub(crate) fn start(path: &Path) -> Self {
        Self::spawn(&mut Command::new(path))
    }

    /// Starts the program in a chroot.
    pub(crate) fn start_in(root: &Path, path: &str) -> Self {
        Self::spawn(Command::new("chroot").arg(root).arg(path))
    }

    fn spawn(command: &mut Command) -> Self {
        // Signal-based preemption of Go would add signal frames to the stacks.
        let command = command.env("GODEBUG", "asyncpreemptoff=1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self { child, input, output };
        assert_eq!(program.read_line(), "ready");
        program
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and waits for its completion.
    pub(crate) fn run(&mut self, line: &str) {
        assert_eq!(self.request(line), "ok", "{line}");
    }

    /// Sends a command and returns the response.
    pub(crate) fn request(&mut self, line: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        self.read_line()
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns `RssAnon` in pages.
    pub(crate) fn resident_anonymous(&self) -> u64 {
        resident_anonymous(self.pid())
    }

    /// Kills the program and returns its pid.
    pub(crate) fn end(mut self) -> u32 {
        self.input = None;
        let pid = self.pid();
        // A parent that forked does not read its input any more.
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

/// Anonymous pages of a process.
pub(crate) fn resident_anonymous(pid: u32) -> u64 {
    usage::memory(pid, "RssAnon") / 4096
}
