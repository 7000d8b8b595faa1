//! The profiler's threads, on a probe that says what the test tells it to and a `/proc` of files.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use chainscope_ebpf::{
    Error,
    memory::{Frame, MemoryEvent, Module, ModuleId, Node, Scope},
};
use chainscope_testing::wait;
use crossbeam_channel as channel;
use parking_lot::Mutex;

use super::*;
use crate::{
    memory::{
        naming,
        probe::Probe,
        watcher::{Command, Watcher},
    },
    targets::proc::Proc,
};

/// A probe that says what the test tells it to.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Scripted>>);

#[derive(Default)]
struct Scripted {
    watched: Vec<u32>,
    /// So many more are refused.
    refuse: u32,
    forgotten: Vec<u32>,
    events: Vec<MemoryEvent>,
    reading: Option<Reading>,
    targets: Vec<TargetReading>,
}

impl Probe for Script {
    fn watch(&mut self, pid: u32) -> Result<TargetId, Error> {
        let mut script = self.0.lock();
        if script.refuse > 0 {
            script.refuse -= 1;
            return Err(Error::TableFull { table: "calls" });
        }
        script.watched.push(pid);
        Ok(TargetId(pid))
    }

    fn unwatch(&mut self, target: TargetId) {
        self.0.lock().forgotten.push(target.0);
    }

    fn poll(&mut self, timeout: Duration) -> Result<Vec<MemoryEvent>, Error> {
        std::thread::park_timeout(timeout / 10);
        Ok(std::mem::take(&mut self.0.lock().events))
    }

    fn read(&mut self, _: Scope) -> Result<Reading, Error> {
        let mut script = self.0.lock();
        let mut reading = script.reading.take().unwrap_or_else(|| reading(vec![], vec![]));
        reading.targets = script.targets.clone();
        Ok(reading)
    }
}

/// The two threads of the profiler, on a probe with a script and processes that are files in a folder.
struct Stage {
    script: Script,
    board: Board,
    commands: channel::Sender<Command>,
    threads: [std::thread::JoinHandle<()>; 2],
}

impl Stage {
    fn new(proc: &Path) -> Self {
        let script = Script::default();
        let board = Board::default();
        board.begin_stream(true);
        let (commands, taken) = channel::unbounded();
        let (news, told) = channel::bounded(1);
        let load = {
            let script = script.clone();
            Box::new(move || Ok(script.clone()))
        };
        let watcher = Watcher::new(load, Proc::at(proc), board.clone(), taken, news);
        let names = board.clone();
        let threads = [
            std::thread::spawn(move || watcher.run()),
            std::thread::spawn(move || naming::run(&told, &names, Proc::default())),
        ];
        Self { script, board, commands, threads }
    }

    fn watch(&self, pid: u32) {
        let label = format!("pid {pid}").into();
        self.commands.send(Command::Watch { pid, node: "node".into(), label }).unwrap();
    }

    /// Tells the threads to end, and waits until they have.
    fn end(self) {
        drop(self.commands);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// A process of `/proc`, with its parent.
fn put_process(proc: &Path, pid: u32, parent: u32) {
    let folder = proc.join(pid.to_string());
    std::fs::create_dir(&folder).unwrap();
    let rest = " 0".repeat(48);
    std::fs::write(folder.join("stat"), format!("{pid} (octez-node) S {parent}{rest}\n")).unwrap();
}

#[test]
fn children_that_are_there_already_are_profiled_too() {
    let proc = tempfile::tempdir().unwrap();
    for (pid, parent) in [(10, 1), (11, 10), (12, 1), (13, 11), (14, 12)] {
        put_process(proc.path(), pid, parent);
    }
    let stage = Stage::new(proc.path());
    stage.script.0.lock().targets = vec![target(10, 10, 1), target(11, 11, 2), target(13, 13, 3)];
    stage.watch(10);
    let mut merged = BTreeMap::new();
    wait::until_true("the profiles", || {
        drain(&stage.board, &mut merged);
        merged.len() == 3
    });
    let mut labels: Vec<&str> = merged.values().map(|profile| &*profile.last.target).collect();
    labels.sort_unstable();
    assert_eq!(labels, ["pid 10", "pid 10, child 11", "pid 10, child 13"]);
    assert_eq!(stage.script.0.lock().watched, [10, 11, 13]);
    stage.commands.send(Command::Forget { pid: 10 }).unwrap();
    wait::until_true("the family to be let go", || stage.script.0.lock().forgotten == [10, 11, 13]);
    stage.end();
}

#[test]
fn a_process_for_which_there_was_no_room_is_tried_again() {
    let proc = tempfile::tempdir().unwrap();
    let stage = Stage::new(proc.path());
    {
        let mut script = stage.script.0.lock();
        (script.refuse, script.targets) = (2, vec![target(10, 10, 1)]);
    }
    stage.watch(10);
    let mut merged = BTreeMap::new();
    wait::until_true("the profile", || {
        drain(&stage.board, &mut merged);
        merged.len() == 1
    });
    assert_eq!(stage.script.0.lock().watched, [10]);
    stage.end();
}

#[test]
fn children_are_profiled_and_let_go_with_the_last_of_the_family() {
    let nobody = tempfile::tempdir().unwrap();
    let stage = Stage::new(nobody.path());
    let Stage { script, board, commands, .. } = &stage;
    let me = std::process::id();
    let node = |id: u32, parent: u32, frame| Node { id: NodeId(id), parent: NodeId(parent), frame };
    {
        let mut script = script.0.lock();
        script.targets = vec![target(me, me, 3)];
        let mut first = reading(vec![count(me, 1, 3), count(me, 3, 1)], vec![]);
        let path = std::env::current_exe().unwrap();
        first.modules =
            vec![Module { id: ModuleId(0), path, device: (0, 0), inode: 0, pid: me, range: (0, 0), deleted: false }];
        first.nodes = vec![
            node(1, 0, Frame::Code { module: ModuleId(0), offset: u64::MAX, exact: true }),
            node(2, 0, Frame::Incomplete(StackEnd::Truncated)),
            node(3, 2, Frame::Anonymous { pc: 77, exact: true }),
        ];
        script.reading = Some(first);
    }
    commands.send(Command::Watch { pid: me, node: "node".into(), label: "pid".into() }).unwrap();
    let mut merged = BTreeMap::new();
    wait::until_true("the profile", || {
        drain(board, &mut merged);
        !merged.is_empty()
    });
    let executable: PathBuf = std::env::current_exe().unwrap();
    let executable = executable.file_name().unwrap().to_str().unwrap();
    let expected = BTreeMap::from([(stack(&[executable]), 3), (stack(&["[stack truncated]", "[anon]"]), 1)]);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous), expected);

    // A child of which there is a reading, and one that ends before.
    let child = TargetId(me + 1);
    {
        let mut script = script.0.lock();
        script.events = vec![
            MemoryEvent::Forked { target: child, parent: TargetId(me), pid: 1 },
            MemoryEvent::Forked { target: TargetId(me + 2), parent: TargetId(me), pid: 2 },
            MemoryEvent::Exited { target: TargetId(me + 2), pid: 2 },
        ];
        script.targets.push(TargetReading { parent: Some(TargetId(me)), ..target(child.0, 1, 2) });
    }
    wait::until_true("the child's profile", || {
        drain(board, &mut merged);
        merged.values().any(|profile| profile.last.target == "pid, child 1")
    });
    assert_eq!(merged.len(), 2);

    // The parent ends first: the family is let go with the child.
    let end = |target: TargetId| {
        let mut script = script.0.lock();
        script.events = vec![MemoryEvent::Exited { target, pid: 0 }];
        for of in script.targets.iter_mut().filter(|of| of.target == target) {
            (of.alive, of.attributed) = (false, [0; 3]);
        }
    };
    let ended = |merged: &BTreeMap<u64, Merged>| {
        merged
            .values()
            .filter(|profile| profile.last.process.as_ref().is_some_and(|process| process.ended_ns > 0))
            .count()
    };
    end(TargetId(me));
    wait::until_true("the parent's end", || {
        drain(board, &mut merged);
        ended(&merged) == 1
    });
    assert_eq!(script.0.lock().forgotten, [me + 2], "its first child is not over");
    end(child);
    wait::until_true("the child's end", || {
        drain(board, &mut merged);
        ended(&merged) == 2 && script.0.lock().forgotten == [me + 2, me, me + 1]
    });

    // One that is no longer observed ends at once; what is observed when the agent ends, then.
    for pid in [50, 51] {
        script.0.lock().targets = vec![target(pid, pid, 1)];
        stage.watch(pid);
        wait::until_true("another profile", || {
            drain(board, &mut merged);
            merged.values().any(|profile| profile.last.process.as_ref().is_some_and(|process| process.pid == pid))
        });
        if pid == 50 {
            commands.send(Command::Forget { pid }).unwrap();
            wait::until_true("its end", || {
                drain(board, &mut merged);
                ended(&merged) == 3
            });
            assert_eq!(script.0.lock().forgotten, [me + 2, me, me + 1, 50]);
        }
    }
    let board = board.clone();
    stage.end();
    drain(&board, &mut merged);
    let mut how: Vec<String> = merged.values().map(|profile| profile.last.process.clone().unwrap().ended_by).collect();
    how.sort();
    assert_eq!(how, ["agent stopped", "exited", "exited", "not observed any more"]);
}
