//! Watcher and symbolizer threads on a fake probe and a `/proc` made of files.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use chainscope_ebpf::{
    Error,
    memory::{ForeignCalls, Frame, MemoryEvent, Module, ModuleId, Node, Scope},
};
use chainscope_testing::wait;
use crossbeam_channel as channel;
use parking_lot::Mutex;

use super::*;
use crate::{
    memory::{
        probe::Probe,
        symbolizer,
        watcher::{Command, Watcher},
    },
    symbols::Symbols,
    targets::proc::Proc,
};

/// A probe that returns what the test sets.
#[derive(Clone, Default)]
struct FakeProbe(Arc<Mutex<FakeState>>);

#[derive(Default)]
struct FakeState {
    watched: Vec<u32>,
    /// Number of further `watch` calls to refuse.
    refuse: u32,
    unwatched: Vec<u32>,
    events: Vec<MemoryEvent>,
    reading: Option<Reading>,
    targets: Vec<TargetReading>,
}

impl Probe for FakeProbe {
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
        self.0.lock().unwatched.push(target.0);
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

/// The watcher and symbolizer threads on a fake probe and process files in a directory.
struct Fixture {
    script: FakeProbe,
    store: ProfileStore,
    commands: channel::Sender<Command>,
    threads: [std::thread::JoinHandle<()>; 2],
}

impl Fixture {
    fn new(proc: &Path) -> Self {
        let script = FakeProbe::default();
        let store = ProfileStore::default();
        store.begin_stream(true);
        let (commands, received) = channel::bounded(16);
        let (updates, pending) = channel::bounded(1);
        let load = {
            let script = script.clone();
            Box::new(move || Ok(script.clone()))
        };
        let watcher = Watcher::new(load, Proc::at(proc), store.clone(), received, updates);
        let profiles = store.clone();
        let threads = [
            std::thread::spawn(move || watcher.run()),
            std::thread::spawn(move || {
                symbolizer::run(&pending, &profiles, Symbols::new(Proc::default(), ForeignCalls::threads()))
            }),
        ];
        Self { script, store, commands, threads }
    }

    fn watch(&self, pid: u32) {
        let label = format!("pid {pid}").into();
        self.commands.send(Command::Watch { pid, node: "node".into(), label }).unwrap();
    }

    /// Stops the threads and waits for them.
    fn end(self) {
        drop(self.commands);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Writes the `/proc` files of a process.
fn put_process(proc: &Path, pid: u32, parent: u32) {
    let folder = proc.join(pid.to_string());
    std::fs::create_dir(&folder).unwrap();
    let rest = " 0".repeat(48);
    std::fs::write(folder.join("stat"), format!("{pid} (octez-node) S {parent}{rest}\n")).unwrap();
}

#[test]
fn existing_descendants_are_profiled() {
    let proc = tempfile::tempdir().unwrap();
    for (pid, parent) in [(10, 1), (11, 10), (12, 1), (13, 11), (14, 12)] {
        put_process(proc.path(), pid, parent);
    }
    let fixture = Fixture::new(proc.path());
    fixture.script.0.lock().targets = vec![target(10, 10, 1), target(11, 11, 2), target(13, 13, 3)];
    fixture.watch(10);
    let mut merged = BTreeMap::new();
    wait::until_true("the profiles", || {
        drain(&fixture.store, &mut merged);
        merged.len() == 3
    });
    let mut labels: Vec<&str> = merged.values().map(|profile| &*profile.last.target).collect();
    labels.sort_unstable();
    assert_eq!(labels, ["pid 10", "pid 10, child 11", "pid 10, child 13"]);
    assert_eq!(fixture.script.0.lock().watched, [10, 11, 13]);
    fixture.commands.send(Command::Unwatch { pid: 10 }).unwrap();
    wait::until_true("the process tree to be unwatched", || fixture.script.0.lock().unwatched == [10, 11, 13]);
    fixture.end();
}

#[test]
fn watch_is_retried_when_the_table_was_full() {
    let proc = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(proc.path());
    {
        let mut script = fixture.script.0.lock();
        (script.refuse, script.targets) = (2, vec![target(10, 10, 1)]);
    }
    fixture.watch(10);
    let mut merged = BTreeMap::new();
    wait::until_true("the profile", || {
        drain(&fixture.store, &mut merged);
        merged.len() == 1
    });
    assert_eq!(fixture.script.0.lock().watched, [10]);
    fixture.end();
}

#[test]
fn process_tree_is_unwatched_when_its_last_member_exits() {
    let empty_proc = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(empty_proc.path());
    let Fixture { script, store, commands, .. } = &fixture;
    let own_pid = std::process::id();
    let node = |id: u32, parent: u32, frame| Node { id: NodeId(id), parent: NodeId(parent), frame };
    {
        let mut script = script.0.lock();
        script.targets = vec![target(own_pid, own_pid, 3)];
        let mut first = reading(vec![count(own_pid, 1, 3), count(own_pid, 3, 1)], vec![]);
        let path = std::env::current_exe().unwrap();
        first.modules = vec![Module {
            id: ModuleId(0),
            path,
            device: (0, 0),
            inode: 0,
            pid: own_pid,
            range: (0, 0),
            deleted: false,
        }];
        first.nodes = vec![
            node(1, 0, Frame::Code { module: ModuleId(0), offset: u64::MAX, exact: true }),
            node(2, 0, Frame::Incomplete(StackEnd::Truncated)),
            node(3, 2, Frame::Anonymous { pc: 77, exact: true }),
        ];
        script.reading = Some(first);
    }
    commands.send(Command::Watch { pid: own_pid, node: "node".into(), label: "pid".into() }).unwrap();
    let mut merged = BTreeMap::new();
    wait::until_true("the profile", || {
        drain(store, &mut merged);
        !merged.is_empty()
    });
    let executable: PathBuf = std::env::current_exe().unwrap();
    let executable = executable.file_name().unwrap().to_str().unwrap();
    let expected = BTreeMap::from([(stack(&[executable]), 3), (stack(&["[stack truncated]", "[anon]"]), 1)]);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous), expected);

    // One child with a reading, and one that exits before its first.
    let child = TargetId(own_pid + 1);
    {
        let mut script = script.0.lock();
        script.events = vec![
            MemoryEvent::Forked { target: child, parent: TargetId(own_pid), pid: 1 },
            MemoryEvent::Forked { target: TargetId(own_pid + 2), parent: TargetId(own_pid), pid: 2 },
            MemoryEvent::Exited { target: TargetId(own_pid + 2), pid: 2 },
        ];
        script.targets.push(TargetReading { parent: Some(TargetId(own_pid)), ..target(child.0, 1, 2) });
    }
    wait::until_true("the child's profile", || {
        drain(store, &mut merged);
        merged.values().any(|profile| profile.last.target == "pid, child 1")
    });
    assert_eq!(merged.len(), 2);

    // The parent exits first: both are unwatched when the child exits.
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
    end(TargetId(own_pid));
    wait::until_true("the parent's end", || {
        drain(store, &mut merged);
        ended(&merged) == 1
    });
    assert_eq!(script.0.lock().unwatched, [own_pid + 2], "its first child is not over");
    end(child);
    wait::until_true("the child's end", || {
        drain(store, &mut merged);
        ended(&merged) == 2 && script.0.lock().unwatched == [own_pid + 2, own_pid, own_pid + 1]
    });

    // A process that is no longer observed ends at once; the others end with the agent.
    for pid in [50, 51] {
        script.0.lock().targets = vec![target(pid, pid, 1)];
        fixture.watch(pid);
        wait::until_true("another profile", || {
            drain(store, &mut merged);
            merged.values().any(|profile| profile.last.process.as_ref().is_some_and(|process| process.pid == pid))
        });
        if pid == 50 {
            commands.send(Command::Unwatch { pid }).unwrap();
            wait::until_true("its end", || {
                drain(store, &mut merged);
                ended(&merged) == 3
            });
            assert_eq!(script.0.lock().unwatched, [own_pid + 2, own_pid, own_pid + 1, 50]);
        }
    }
    let store = store.clone();
    fixture.end();
    drain(&store, &mut merged);
    let mut how: Vec<String> = merged.values().map(|profile| profile.last.process.clone().unwrap().ended_by).collect();
    how.sort();
    assert_eq!(how, ["agent stopped", "exited", "exited", "not observed any more"]);
}
