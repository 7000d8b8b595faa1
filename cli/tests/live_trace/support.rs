//! The tool and the program that it traces.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use chainscope_testing::{
    fakenode::{FakeNode, Flavour, build_with},
    wait,
};
use chainscope_usdt::Image;
use rustix::process::{Pid, Signal, kill_process};

/// A running `chainscope trace`.
pub(crate) struct Tool {
    child: Child,
    output: Option<JoinHandle<String>>,
    /// What it said on standard error so far.
    notes: Arc<Mutex<String>>,
}

impl Tool {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chainscope"));
        command.arg("trace").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let output = std::thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            text
        });
        let notes = Arc::<Mutex<String>>::default();
        let (said, shared) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&notes));
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                shared.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        Self { child, output: Some(output), notes }
    }

    /// What it said on standard error so far.
    pub(crate) fn notes(&self) -> String {
        self.notes.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it.
    pub(crate) fn stop(&self) {
        stop(&self.child);
    }

    /// Interrupts it and returns what it printed.
    pub(crate) fn interrupt(self) -> String {
        self.signal(Signal::INT);
        self.output()
    }

    /// Waits for its end and returns what it printed.
    pub(crate) fn output(mut self) -> String {
        let text = self.output.take().unwrap().join().unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {text}{}", self.notes());
        text
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stops a process and waits until each of its threads has stopped: the signal goes to one of them, others run on meanwhile.
pub(crate) fn stop(process: &Child) {
    kill_process(Pid::from_child(process), Signal::STOP).unwrap();
    let threads = format!("/proc/{}/task", process.id());
    let has_stopped = |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'));
    wait::until_true("all threads to be stopped", || {
        let stats = fs::read_dir(&threads).unwrap().map(|thread| thread.unwrap().path().join("stat"));
        stats.map(fs::read_to_string).all(|stat| stat.is_ok_and(|stat| has_stopped(&stat)))
    });
}

/// A fake node and its program.
pub(crate) struct Node {
    pub(crate) node: FakeNode,
    pub(crate) program: PathBuf,
    // Removed after the process has ended.
    _folder: tempfile::TempDir,
}

impl Node {
    pub(crate) fn start(flavour: Flavour) -> Self {
        Self::start_built(flavour, "g++", &["-O2"])
    }

    pub(crate) fn start_built(flavour: Flavour, compiler: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = build_with(folder.path(), flavour, compiler, flags);
        Self { node: FakeNode::start(&program), program, _folder: folder }
    }

    /// Starts the tool on this process, and waits until it is attached.
    pub(crate) fn trace(&self, arguments: &[&str], tracepoints: &[&str]) -> Tool {
        let pid = self.node.pid().to_string();
        self.wait_for(Tool::start(&[arguments, &["--pid", &pid]].concat()), tracepoints)
    }

    /// Waits until breakpoints are at all locations of these tracepoints.
    pub(crate) fn wait_for(&self, mut tool: Tool, tracepoints: &[&str]) -> Tool {
        wait::until_true(&format!("breakpoints at {tracepoints:?}"), || {
            assert!(!tool.has_ended(), "the tool has ended: {}", tool.notes());
            self.breakpoints(tracepoints).iter().all(|is_set| *is_set)
        });
        tool
    }

    /// Of each location of these tracepoints, whether a breakpoint is set in the memory of the process.
    pub(crate) fn breakpoints(&self, tracepoints: &[&str]) -> Vec<bool> {
        const NOP: u8 = 0x90;
        let memory = File::open(format!("/proc/{}/mem", self.node.pid())).unwrap();
        let mut set = Vec::new();
        for tracepoint in image(&self.program).tracepoints {
            if !tracepoints.contains(&&*tracepoint.full_name()) {
                continue;
            }
            for location in tracepoint.locations {
                let mut code = [0];
                let address = mapped_at(self.node.pid(), &self.program, location.offset.unwrap());
                memory.read_exact_at(&mut code, address).unwrap();
                set.push(code[0] != NOP);
            }
        }
        assert!(set.len() >= tracepoints.len(), "{tracepoints:?} in {}", self.program.display());
        set
    }
}

fn image(program: &Path) -> Image {
    Image::read(fs::read(program).unwrap().as_slice()).unwrap()
}

/// Address of an offset of a file's code in a process.
fn mapped_at(pid: u32, program: &Path, offset: u64) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    for line in maps.lines().filter(|line| line.ends_with(program.to_str().unwrap())) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (from, until) = fields[0].split_once('-').unwrap();
        let (from, until, start) = (hex(from), hex(until), hex(fields[2]));
        if fields[1].contains('x') && (start..start + (until - from)).contains(&offset) {
            return from + offset - start;
        }
    }
    panic!("offset {offset:#x} of {} in {maps}", program.display());
}

/// The last line, after one event was delivered for each hit.
pub(crate) fn nothing_lost(hits: usize) -> String {
    format!("{hits} hits = {hits} delivered + 0 dropped")
}

/// Lines from the first that is `first`, as many as `expected`, compared; and the last line.
#[track_caller]
pub(crate) fn assert_lines(output: &str, heading: &[&str], expected: &[String], hits: usize) {
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.len() > heading.len() + expected.len(), "{output}");
    let (found, rest) = lines.split_at(heading.len());
    assert_eq!(found, heading);
    let found = &rest[..expected.len()];
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(found == expected, "line {number}:\n{found:.300}\ninstead of\n{expected:.300}");
    }
    assert_eq!(lines.last().copied(), Some(&*nothing_lost(hits)));
}
