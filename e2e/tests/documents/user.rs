//! A user at a shell, on a machine whose network is that of the test only, so that ports are those of the documents.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use chainscope_e2e::harness::namespace::Namespace;
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::{binary, require_root, wait};
use chainscope_testing::program;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{Outcome, Scene, commands, longest_start};

/// A user with a home directory, which is the working directory, and programs in `bin`.
pub(crate) struct User {
    home: TempDir,
    namespace: Namespace,
}

impl User {
    pub(crate) fn new() -> Self {
        require_root();
        let user = Self { home: tempfile::tempdir().expect("a home directory"), namespace: Namespace::new() };
        fs::create_dir(user.path("bin")).expect("a directory");
        symlink(binary("chainscope"), user.path("bin/chainscope")).expect("a link");
        // The user is root already.
        user.script("sudo", "exec \"$@\"");
        user
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Makes `pidof` find these processes: other tests may run programs of the same names.
    pub(crate) fn processes(&self, processes: &[(&str, u32)]) {
        let cases: String = processes.iter().map(|(name, pid)| format!("{name}) echo {pid} ;; ")).collect();
        self.script("pidof", &format!("case $1 in {cases} *) exit 1 ;; esac"));
    }

    fn script(&self, name: &str, text: &str) {
        program::script(&self.path("bin").join(name), &format!("#!/bin/bash\n{text}\n"));
    }

    /// A command line, by a shell that it replaces.
    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace.path())).args(["bash", "-euo", "pipefail", "-c", script]);
        command.current_dir(self.home.path()).env("HOME", self.home.path()).env("TERM", "xterm");
        command.env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()));
        // Of `chainscope run`: says when it records.
        command.env("RUST_LOG", "info");
        command
    }

    /// Starts a command.
    pub(crate) fn start(&self, command: &str) -> Program {
        Program::start(command, &mut self.shell(&format!("exec {command}")))
    }

    /// Starts a Chainscope that serves the API, and waits until it records.
    pub(crate) fn serve(&self, command: &str) -> Program {
        let program = self.start(command);
        program.wait_stderr("API", |lines| lines.iter().any(|line| line.contains("API on http")).then_some(()));
        program
    }

    /// Waits until a command succeeds.
    pub(crate) fn wait_for(&self, command: &str) {
        wait::until_true(command, || self.shell(command).output().expect("bash").status.success());
    }

    /// Runs the commands of a scene. Each substitution has to be of use.
    pub(crate) fn play(&self, scene: &Scene) {
        let mut used = vec![false; scene.substitutions.len()];
        for (path, printed) in commands() {
            let start = longest_start(&printed, scene.outcomes.iter().map(|(start, _)| *start));
            let Some((_, outcome)) = scene.outcomes.iter().find(|(named, _)| start == Some(*named)) else { continue };
            let mut command = printed.clone();
            // A value, such as a process ID, may contain what a later substitution replaces: so by placeholders.
            for (number, ((from, _), used)) in scene.substitutions.iter().zip(&mut used).enumerate() {
                *used |= command.contains(from);
                command = command.replace(from, &format!("\0{number}\0"));
            }
            for (number, (_, to)) in scene.substitutions.iter().enumerate() {
                command = command.replace(&format!("\0{number}\0"), to);
            }
            let start = std::time::Instant::now();
            self.run(&format!("{path}: {printed}"), &command, outcome);
            eprintln!("{:>6} ms  {path}: {printed}", start.elapsed().as_millis());
        }
        for ((from, _), used) in scene.substitutions.iter().zip(used) {
            assert!(used, "no command has {from:?}");
        }
    }

    fn run(&self, name: &str, command: &str, outcome: &Outcome) {
        match outcome {
            Outcome::Ends(code, text) => {
                let output = self.shell(command).output().expect("bash");
                let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
                assert_eq!(output.status.code(), Some(*code), "{name}\n{command}\n{out:.4000}\n{err:.4000}");
                assert!(out.contains(text), "{name}\n{command}\nno {text:?} in\n{out:.4000}\n{err:.4000}");
            }
            Outcome::Interrupted(text) => interrupt(name, shows(name, self.start(command), text)),
            Outcome::Follows(text) => drop(shows(name, self.start(command), text).kill()),
            Outcome::OnTerminal(text) => {
                let screen = self.path("screen");
                // A terminal without a size shows nothing.
                self.script("in-terminal", &format!("stty cols 150 rows 40\n{command}"));
                let script = "exec script --quiet --flush --return --command in-terminal screen";
                let program = Program::start(name, &mut self.shell(script));
                wait_for_text(&screen, text, &program);
                drop(program.kill());
                fs::remove_file(&screen).expect("it was written");
            }
            Outcome::Writes(file) => {
                let (program, file) = (self.start(command), self.path(file));
                wait::until_true(&format!("{name}: {}", file.display()), || {
                    assert!(program.is_running(), "{name} has ended");
                    fs::metadata(&file).is_ok_and(|file| file.len() > 0)
                });
                interrupt(name, program);
            }
        }
    }
}

fn interrupt(name: &str, program: Program) {
    program.signal(Signal::INT);
    program.join(wait::WAIT_TIMEOUT).expect_success(name);
}

/// Waits until a program has written this to its outputs.
fn shows(name: &str, program: Program, text: &str) -> Program {
    wait::until_true(&format!("{name}: {text:?}"), || {
        let is_running = program.is_running();
        let is_shown = program.out().iter().chain(&program.err()).any(|line| line.contains(text));
        assert!(is_shown || is_running, "{name} has ended without {text:?}: {:?}", program.err());
        is_shown
    });
    program
}

fn wait_for_text(file: &Path, text: &str, program: &Program) {
    wait::until_true(&format!("{text:?} on the screen"), || {
        let is_running = program.is_running();
        let screen = fs::read(file).unwrap_or_default();
        let is_shown = String::from_utf8_lossy(&screen).contains(text);
        assert!(is_shown || is_running, "it has ended: {}", String::from_utf8_lossy(&screen));
        is_shown
    });
}
