//! Profiles from made-up readings, merged as an aggregator merges them.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use chainscope_ebpf::{
    Error,
    memory::{
        Count, Frame, Health, Kind, MemoryEvent, Module, ModuleId, Node, NodeId, Reading, Resident, Scope, StackEnd,
        TargetId, TargetReading,
    },
};
use chainscope_proto::v1::{MemoryAck, MemoryState};
use chainscope_testing::wait;
use crossbeam_channel as channel;
use parking_lot::Mutex;
use proptest::prelude::*;
use prost::Message as _;

use super::{
    board::{Board, Update},
    naming,
    probe::Probe,
    profile::Subject,
    tree::{Call, Named},
    watcher::{Command, Watcher},
};
use crate::{
    clock::Clock,
    symbols::{Category, Function, Place},
    targets::proc::Proc,
};

/// A profile as an aggregator knows it.
#[derive(Debug, Default, Clone)]
struct Merged {
    sequence: u64,
    strings: Vec<String>,
    frames: Vec<chainscope_proto::v1::MemoryFrame>,
    nodes: Vec<(u32, u32)>,
    pages: BTreeMap<(i32, u32), u64>,
    last: MemoryState,
    parts: u32,
    keyframes: u32,
}

impl Merged {
    /// Takes a message; an acknowledgement with the last part of a state.
    fn take(&mut self, state: &MemoryState) -> Option<MemoryAck> {
        assert!(state.encoded_len() <= 1 << 20, "{} bytes", state.encoded_len());
        assert_eq!(state.part, self.parts, "parts follow one another");
        if state.part == 0 {
            assert!(state.sequence > self.sequence);
            if state.base == 0 {
                *self = Self { keyframes: self.keyframes + 1, ..Self::default() };
            } else {
                assert_eq!(state.base, self.sequence, "a delta of what was acknowledged");
            }
        }
        extend(&mut self.strings, state.first_string, state.strings.iter().cloned());
        extend(&mut self.frames, state.first_frame, state.frames.iter().copied());
        let nodes = state.node_parents.iter().copied().zip(state.node_frames.iter().copied());
        extend(&mut self.nodes, state.first_node, nodes);
        for frame in &state.frames {
            assert!(frame.executable as usize <= self.strings.len() && frame.function as usize <= self.strings.len());
        }
        for (index, (parent, frame)) in self.nodes.iter().enumerate() {
            assert!(*parent as usize <= index && (1..=self.frames.len()).contains(&(*frame as usize)));
        }
        for counts in &state.counts {
            for (node, pages) in counts.nodes.iter().zip(&counts.pages) {
                assert!(*node as usize <= self.nodes.len());
                self.pages.insert((counts.kind, *node), *pages);
            }
        }
        self.parts += 1;
        if state.more {
            return None;
        }
        assert!(state.process.is_some() && state.totals.is_some());
        self.parts = 0;
        self.sequence = state.sequence;
        self.last = state.clone();
        Some(ack(state))
    }

    /// Pages by the names from the outermost function inward.
    fn by_stack(&self, kind: Kind) -> BTreeMap<Vec<String>, u64> {
        let mut stacks = BTreeMap::new();
        for ((of, node), pages) in &self.pages {
            if *of == i32::from(super::profile::wire(kind)) && *pages > 0 {
                *stacks.entry(self.stack(*node)).or_default() += pages;
            }
        }
        stacks
    }

    fn stack(&self, node: u32) -> Vec<String> {
        let mut stack = VecDeque::new();
        let mut at = node;
        while at != 0 {
            let (parent, frame) = self.nodes[at as usize - 1];
            let frame = self.frames[frame as usize - 1];
            let text = |id: u32| if id == 0 { String::new() } else { self.strings[id as usize - 1].clone() };
            let name = if frame.function == 0 { text(frame.executable) } else { text(frame.function) };
            stack.push_front(name);
            at = parent;
        }
        stack.into()
    }
}

fn extend<T: PartialEq + std::fmt::Debug>(table: &mut Vec<T>, first: u32, new: impl ExactSizeIterator<Item = T>) {
    if new.len() > 0 {
        assert_eq!(first as usize, table.len() + 1, "a hole, or twice");
        table.extend(new);
    }
}

fn ack(state: &MemoryState) -> MemoryAck {
    MemoryAck {
        node: state.node.clone(),
        profile: state.profile,
        sequence: state.sequence,
        keyframe_wanted: false,
        refused: String::new(),
    }
}

fn subject(pid: u32) -> Subject {
    Subject { node: "node".into(), label: format!("pid {pid}").into(), pid, name: "octez-node".to_owned() }
}

/// A call of the functions named by its number; every third has an inlined one.
fn call(number: u32, parent: u32) -> (u32, Call) {
    let function = |name: String| Function { name: name.into(), category: Category::NodeRust };
    let mut functions = vec![function(format!("f{number}"))];
    if number.is_multiple_of(3) {
        functions.push(function(format!("i{number}")));
    }
    let place = Place {
        executable: "octez-node".into(),
        functions: functions.into(),
        category: Category::NodeCpp,
        is_deleted: false,
    };
    (number, Call { parent, named: Named::Code { offset: u64::from(number) * 16, place: Arc::new(place) } })
}

fn count(target: u32, node: u32, pages: u64) -> Count {
    Count { target: TargetId(target), node: NodeId(node), kind: Kind::Anonymous, pages }
}

fn target(target: u32, pid: u32, anon: u64) -> TargetReading {
    TargetReading {
        target: TargetId(target),
        parent: None,
        pid,
        start_time: 1,
        alive: true,
        shares_pages: false,
        control: Resident { anon, ..Resident::default() },
        attributed: [anon, 0, 0],
        before_attach: Resident::default(),
        at_attach: Vec::new(),
        before_exact: None,
        stacks: vec![(StackEnd::Complete, anon)],
    }
}

fn reading(counts: Vec<Count>, targets: Vec<TargetReading>) -> Reading {
    Reading { at_ns: 5, modules: Vec::new(), nodes: Vec::new(), counts, targets, health: Health::default() }
}

/// Takes everything that the board has to say now.
fn drain(board: &Board, merged: &mut BTreeMap<u64, Merged>) {
    while let Some(state) = board.next() {
        if let Some(ack) = merged.entry(state.profile).or_default().take(&state) {
            board.acknowledge(&ack);
        }
    }
}

fn update(board: &Board, update: Update) {
    board.update(update, &Clock::with_offset(1_000));
}

/// A board with one profile and three calls, one below the other.
fn small() -> Board {
    let board = Board::default();
    board.begin_stream(true);
    update(
        &board,
        Update {
            calls: vec![call(1, 0), call(2, 1), call(3, 2)],
            began: vec![(7, subject(70))],
            reading: Some(reading(vec![count(7, 3, 10), count(7, 2, 5)], vec![target(7, 70, 15)])),
            ..Update::default()
        },
    );
    board
}

fn only(merged: &BTreeMap<u64, Merged>) -> &Merged {
    assert_eq!(merged.len(), 1);
    merged.values().next().unwrap()
}

fn stack(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_profile_begins_with_a_keyframe_and_goes_on_with_what_changed() {
    let board = small();
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    assert!(board.is_settled());
    let first = only(&merged).clone();
    let expected = BTreeMap::from([(stack(&["f1", "f2"]), 5), (stack(&["f1", "f2", "f3", "i3"]), 10)]);
    assert_eq!(first.by_stack(Kind::Anonymous), expected);
    let (process, totals) = (first.last.process.unwrap(), first.last.totals.unwrap());
    assert_eq!((process.pid, process.name.as_str(), process.ended_ns), (70, "octez-node", 0));
    assert_eq!((totals.control_anon, totals.kinds[0].attributed, totals.kinds[0].unattributed), (15, 15, 0));
    // Freed at one place, grown at another that is new.
    let counts = vec![count(7, 3, 0), count(7, 4, 2)];
    update(
        &board,
        Update { calls: vec![call(4, 1)], reading: Some(reading(counts, vec![target(7, 70, 7)])), ..Update::default() },
    );
    drain(&board, &mut merged);
    let second = only(&merged);
    assert_eq!((second.last.base, second.keyframes), (1, 1));
    assert_eq!(second.last.counts[0].nodes.len(), 2, "only what changed");
    let expected = BTreeMap::from([(stack(&["f1", "f2"]), 5), (stack(&["f1", "f4"]), 2)]);
    assert_eq!(second.by_stack(Kind::Anonymous), expected);
    // The same again is nothing to tell.
    update(&board, Update { reading: Some(reading(vec![], vec![target(7, 70, 7)])), ..Update::default() });
    assert_eq!(board.next(), None);
}

#[test]
fn one_state_is_on_its_way_and_the_next_has_what_changed_meanwhile() {
    let board = small();
    let mut merged = BTreeMap::<u64, Merged>::new();
    let first = board.next().unwrap();
    for pages in [1, 2, 3] {
        update(&board, Update { reading: Some(reading(vec![count(7, 3, pages)], vec![])), ..Update::default() });
        assert_eq!(board.next(), None, "the first is not acknowledged");
    }
    assert!(!board.is_settled());
    board.acknowledge(&merged.entry(first.profile).or_default().take(&first).unwrap());
    drain(&board, &mut merged);
    let merged = only(&merged);
    assert_eq!((merged.last.sequence, merged.last.base), (2, 1));
    assert_eq!(merged.by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 3);
}

#[test]
fn a_new_stream_and_an_aggregator_that_asks_get_everything() {
    let board = small();
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    let before = only(&merged).by_stack(Kind::Anonymous);
    board.begin_stream(true);
    drain(&board, &mut merged);
    assert_eq!((only(&merged).keyframes, only(&merged).by_stack(Kind::Anonymous)), (2, before.clone()));
    let wanted = MemoryAck { keyframe_wanted: true, ..ack(&only(&merged).last) };
    board.acknowledge(&wanted);
    drain(&board, &mut merged);
    assert_eq!((only(&merged).keyframes, only(&merged).by_stack(Kind::Anonymous)), (3, before));
    // One that takes no states, as an older one, gets none.
    board.begin_stream(false);
    assert_eq!(board.next(), None);
    assert!(board.is_settled());
}

#[test]
fn a_refused_profile_is_left_alone_until_the_next_stream() {
    let board = small();
    let state = board.next().unwrap();
    board.acknowledge(&MemoryAck { refused: "not yours".to_owned(), sequence: 0, ..ack(&state) });
    update(
        &board,
        Update { reading: Some(reading(vec![count(7, 3, 1)], vec![target(7, 70, 9)])), ..Update::default() },
    );
    assert_eq!(board.next(), None);
    assert!(board.is_settled());
    board.begin_stream(true);
    assert_eq!(board.next().unwrap().base, 0);
    // One that refuses whatever it asked for is not asked for ever.
    let refused =
        |state: &MemoryState| MemoryAck { refused: "?".to_owned(), keyframe_wanted: true, sequence: 0, ..ack(state) };
    board.begin_stream(true);
    let mut asked = 0;
    while let Some(state) = board.next() {
        board.acknowledge(&refused(&state));
        asked += 1;
    }
    assert_eq!(asked, 3);
}

#[test]
fn an_ended_profile_is_told_once_more_and_then_forgotten() {
    let board = small();
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    assert_eq!(board.figures().nodes["node"].attributed_bytes, [15 * 4096, 0, 0]);
    let gone = TargetReading { alive: false, ..target(7, 70, 0) };
    let counts = vec![count(7, 3, 0), count(7, 2, 0)];
    update(
        &board,
        Update { ended: vec![(7, "exited")], reading: Some(reading(counts, vec![gone])), ..Update::default() },
    );
    drain(&board, &mut merged);
    let process = only(&merged).last.process.clone().unwrap();
    assert_eq!((process.ended_by.as_str(), only(&merged).by_stack(Kind::Anonymous).len()), ("exited", 0));
    assert!(process.ended_ns > 0 && board.is_settled());
    board.begin_stream(true);
    assert_eq!(board.next(), None);
    assert!(board.figures().nodes.is_empty());
}

#[test]
fn ended_profiles_that_nobody_takes_are_bounded() {
    let board = Board::default();
    for id in 0..200 {
        let began = vec![(id, subject(id))];
        update(&board, Update { began, reading: Some(reading(vec![], vec![target(id, id, 1)])), ..Update::default() });
        update(&board, Update { ended: vec![(id, "exited")], ..Update::default() });
    }
    board.begin_stream(true);
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    assert_eq!(merged.len(), 64);
}

#[test]
fn a_large_state_comes_in_parts_of_a_mebibyte() {
    let board = Board::default();
    board.begin_stream(true);
    let many = 60_000;
    let calls = (1..=many).map(|number| call(number, number / 2)).collect();
    let counts = (1..=many).map(|number| count(1, number, u64::from(number))).collect();
    let targets = vec![target(1, 1, 1)];
    update(
        &board,
        Update { calls, began: vec![(1, subject(1))], reading: Some(reading(counts, targets)), ..Update::default() },
    );
    let mut merged = Merged::default();
    let mut messages = 0;
    while let Some(state) = board.next() {
        messages += 1;
        merged.take(&state);
    }
    assert!(messages > 2, "{messages}");
    let all: u64 = merged.by_stack(Kind::Anonymous).values().sum();
    assert_eq!(all, (1..=u64::from(many)).sum::<u64>());
}

#[test]
fn calls_of_one_name_are_one_node() {
    let board = small();
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    // The same place as call 3 has, twice.
    let again = |number: u32| (number, Call { parent: 2, ..call(3, 2).1 });
    let counts = vec![count(7, 8, 1), count(7, 9, 4)];
    let calls = vec![again(8), again(9)];
    update(&board, Update { calls, reading: Some(reading(counts, vec![])), ..Update::default() });
    drain(&board, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 15);
    assert_eq!(only(&merged).nodes.len(), 4);
    update(&board, Update { reading: Some(reading(vec![count(7, 9, 0)], vec![])), ..Update::default() });
    drain(&board, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 11);
}

#[test]
fn pages_of_an_unknown_call_are_the_root_s() {
    let board = small();
    let counts = vec![count(7, 900, 4), count(7, 901, 3)];
    update(&board, Update { reading: Some(reading(counts, vec![])), ..Update::default() });
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&[])], 7);
    update(&board, Update { reading: Some(reading(vec![count(7, 900, 0)], vec![])), ..Update::default() });
    drain(&board, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&[])], 3);
}

proptest! {
    /// Whatever is acknowledged, lost or asked for again: what was merged is what is held.
    #[test]
    fn what_is_merged_is_what_is_held(
        steps in prop::collection::vec((prop::collection::vec((1_u32..40, 0_u64..5), 0..6), 0_u8..8), 1..40),
    ) {
        let board = Board::default();
        board.begin_stream(true);
        let calls = (1..40).map(|number| call(number, number / 2)).collect();
        update(&board, Update { calls, began: vec![(1, subject(1))], ..Update::default() });
        let mut held: BTreeMap<u32, u64> = BTreeMap::new();
        let mut merged = Merged::default();
        for (changes, event) in steps {
            let counts = changes.iter().map(|(node, pages)| count(1, *node, *pages)).collect();
            held.extend(changes);
            update(&board, Update { reading: Some(reading(counts, vec![target(1, 1, 1)])), ..Update::default() });
            match event {
                0 => board.begin_stream(true),
                // The acknowledgement is lost with its stream.
                1 => {
                    if let Some(state) = board.next() {
                        merged.take(&state);
                    }
                    board.begin_stream(true);
                }
                2 => board.acknowledge(&MemoryAck { keyframe_wanted: true, ..ack(&merged.last) }),
                3 => {}
                _ => while let Some(state) = board.next() {
                    if let Some(ack) = merged.take(&state) {
                        board.acknowledge(&ack);
                    }
                },
            }
        }
        while let Some(state) = board.next() {
            if let Some(ack) = merged.take(&state) {
                board.acknowledge(&ack);
            }
        }
        let mut expected: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for (node, pages) in held.into_iter().filter(|(_, pages)| *pages > 0) {
            let mut names = VecDeque::new();
            let mut at = node;
            while at != 0 {
                if at.is_multiple_of(3) {
                    names.push_front(format!("i{at}"));
                }
                names.push_front(format!("f{at}"));
                at /= 2;
            }
            *expected.entry(names.into()).or_default() += pages;
        }
        prop_assert_eq!(merged.by_stack(Kind::Anonymous), expected);
    }
}

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

    fn forget(&mut self, target: TargetId) {
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
            node(2, 0, Frame::Incomplete(StackEnd::Cut)),
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
    let expected = BTreeMap::from([(stack(&[executable]), 3), (stack(&["[stack cut]", "[anon]"]), 1)]);
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
