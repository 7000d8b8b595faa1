//! A plain file, followed through everything that happens to log files.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_spec::Redaction;
use chainscope_testing::logs;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::TestSink;
use crate::{
    folder::Folder,
    logs::{
        figures::Figures,
        files::{
            follow::Progress,
            location::LogLocation,
            positions::Positions,
            source::{Source, SourceOptions},
        },
    },
};

/// A source with its agent's folder. The time is that of the test.
pub(super) struct Stage {
    pub(super) dir: tempfile::TempDir,
    pub(super) sink: TestSink,
    location: LogLocation,
    redact: Redaction,
    folder: Folder,
    positions: Arc<Positions>,
    source: Source<TestSink>,
    now: Instant,
}

impl Stage {
    fn file() -> Self {
        Self::new(|dir| LogLocation::File(dir.join("node.log")), &[])
    }

    pub(super) fn new(location: impl FnOnce(PathBuf) -> LogLocation, redact: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(&dir.path().join("data")).unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        let location = location(dir.path().join("logs"));
        let patterns: Vec<String> = redact.iter().map(|pattern| (*pattern).to_owned()).collect();
        let redact = Redaction::new(&patterns).unwrap();
        let (sink, now) = (TestSink::default(), Instant::now());
        let (positions, source) = start(&folder, &location, &redact, &sink);
        Self { dir, sink, location, redact, folder, positions, source, now }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("logs").join(name)
    }

    pub(super) fn append(&self, name: &str, text: &[u8]) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap();
        file.write_all(text).unwrap();
    }

    pub(super) fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    pub(super) fn poll(&mut self) -> Progress {
        self.source.poll(self.now).0
    }

    /// Polls until nothing is left to read, and the last message is taken to be complete.
    pub(super) fn drain(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            match self.poll() {
                Progress::Idle { was_busy: false } => quiet += 1,
                Progress::Full => panic!("the sink has no space"),
                _ => quiet = 0,
            }
        }
    }

    /// Until files that were rotated are closed.
    pub(super) fn pass_grace(&mut self) {
        self.now += Duration::from_secs(60);
    }

    pub(super) fn finish(&mut self) {
        assert!(self.source.finish());
    }

    /// The agent is killed and starts again, with the positions that it has saved so far.
    pub(super) fn kill(&mut self) {
        (self.positions, self.source) = start(&self.folder, &self.location, &self.redact, &self.sink);
    }

    pub(super) fn save(&self) {
        self.positions.save().unwrap();
    }

    pub(super) fn texts(&self) -> Vec<String> {
        self.sink.texts("node")
    }
}

fn start(
    folder: &Folder,
    location: &LogLocation,
    redact: &Redaction,
    sink: &TestSink,
) -> (Arc<Positions>, Source<TestSink>) {
    let positions = Arc::new(Positions::load(folder.clone()).unwrap());
    let options = Arc::new(Mutex::new(SourceOptions { target: "pod".into(), redact: redact.clone() }));
    let figures = Arc::<Figures>::default();
    let source = Source::new("node".into(), location.clone(), options, sink.clone(), Arc::clone(&positions), figures);
    (positions, source)
}

#[test]
fn the_lines_of_a_file_have_their_levels_and_times() {
    let mut stage = Stage::file();
    let lines: Vec<_> = logs::lines(0..logs::LINES).collect();
    for line in &lines {
        stage.append("node.log", format!("{}\n", line.octez()).as_bytes());
    }
    stage.drain();
    let stored = stage.sink.records();
    assert_eq!(stored.len(), lines.len());
    for ((record, message), line) in stored.iter().zip(stage.sink.stored("node")).zip(&lines) {
        let level = chainscope_logs::Level::from_number(message.level as u8 - 1).unwrap();
        assert_eq!((record.time_ns, level.name()), (line.time_ns(), line.level), "{line:?}");
        assert_eq!((message.raw, message.source.as_str()), (line.octez().into_bytes(), "file"));
        assert_eq!(record.target, "pod");
    }
}

#[test]
fn a_renamed_file_is_read_to_its_end() {
    let mut stage = Stage::file();
    stage.append("node.log", b"one\ntwo\nthr");
    stage.drain();
    stage.rename("node.log", "node.log.1");
    stage.append("node.log", b"four\n");
    stage.append("node.log.1", b"ee\n");
    stage.drain();
    assert_eq!(stage.texts(), ["one", "two", "three", "four"]);
    // A line without an end is a line once nobody writes to the file any more.
    stage.append("node.log.1", b"last");
    stage.pass_grace();
    stage.drain();
    assert_eq!(stage.texts(), ["one", "two", "three", "four", "last"]);
}

#[test]
fn files_rotated_while_no_agent_ran_are_read() {
    // Positions may not have been saved since the file was begun.
    for is_saved in [false, true] {
        let mut stage = Stage::file();
        stage.append("node.log.1", b"before the first start\n");
        stage.append("node.log", b"one\n");
        stage.drain();
        if is_saved {
            stage.save();
        }
        stage.append("node.log", b"two\n");
        stage.rename("node.log", "node.log.3");
        stage.append("node.log", b"three\n");
        let later = File::open(stage.path("node.log")).unwrap();
        later.set_modified(later.metadata().unwrap().modified().unwrap() + Duration::from_secs(1)).unwrap();
        stage.rename("node.log", "node.log.2");
        stage.append("node.log", b"four\n");
        stage.kill();
        stage.drain();
        assert_eq!(stage.texts(), ["one", "two", "three", "four"]);
    }
}

#[test]
fn a_file_that_begins_anew_is_another_one() {
    for first in ["banner", "another line"] {
        let mut stage = Stage::file();
        stage.append("node.log", b"banner\none\ntwo");
        stage.drain();
        // As long as before, and longer: seen by the bytes before the position.
        let again = format!("{first}\nthree\nfour\nfive\n");
        fs::write(stage.path("node.log"), &again).unwrap();
        stage.drain();
        assert_eq!(stage.texts(), ["banner", "one", "two", first, "three", "four", "five"]);
        stage.save();
        fs::write(stage.path("node.log"), "").unwrap();
        stage.kill();
        stage.drain();
        stage.append("node.log", format!("{first}\nsix\n").as_bytes());
        stage.drain();
        assert_eq!(stage.texts()[7..], [first, "six"]);
        // The same while no agent ran.
        stage.save();
        fs::write(stage.path("node.log"), format!("{first}\n")).unwrap();
        stage.kill();
        stage.drain();
        assert_eq!(stage.texts()[9..], [first]);
    }
}

#[test]
fn a_replaced_file_is_another_one() {
    let mut stage = Stage::file();
    stage.append("node.log", b"banner\none\n");
    stage.drain();
    stage.append("new", b"banner\ntwo\n");
    stage.rename("new", "node.log");
    stage.drain();
    fs::remove_file(stage.path("node.log")).unwrap();
    stage.drain();
    stage.append("node.log", b"banner\nthree\n");
    stage.drain();
    assert_eq!(stage.texts(), ["banner", "one", "banner", "two", "banner", "three"]);
}

#[test]
fn lines_of_a_message_are_joined_and_stay_so_after_a_kill() {
    let first = "Apr 27 08:29:09.000: Error:";
    for kill_before_next in [false, true] {
        let mut stage = Stage::file();
        stage.append("node.log", format!("{first}\n  caused by\n").as_bytes());
        stage.drain();
        let joined = format!("{first}\n  caused by");
        assert_eq!(stage.texts(), [joined.as_str()]);
        // The message has ended although a line follows that would have continued it.
        stage.append("node.log", b"  late\n");
        if kill_before_next {
            stage.kill();
        }
        stage.drain();
        assert_eq!(stage.texts(), [joined.as_str(), "  late"]);
        stage.kill();
        stage.drain();
        assert_eq!(stage.texts(), [joined.as_str(), "  late"]);
    }
}

#[test]
fn a_full_stream_makes_the_file_wait() {
    let mut stage = Stage::file();
    let lines: Vec<String> = logs::lines(0..1000).map(|line| line.octez()).collect();
    stage.append("node.log", (lines.join("\n") + "\n").as_bytes());
    stage.sink.set_durable(Some(50));
    for space in [0, 1, 10, 100] {
        stage.sink.set_space(Some(space));
        assert_eq!(stage.poll(), Progress::Full);
    }
    assert_eq!(stage.sink.len(), 111);
    // What waits is not forgotten, and what is queued is not durable.
    stage.save();
    stage.sink.set_durable(None);
    stage.kill();
    stage.sink.set_space(None);
    stage.drain();
    assert_eq!(stage.sink.len(), 111 + 950, "read again from the first message that was not durable");
    assert_eq!(stage.texts(), lines);
}

#[test]
fn long_lines_and_bytes_of_any_kind_are_kept() {
    let mut stage = Stage::file();
    let long = [&b"<006> 2021-07-14T12:00:00.000-00:00 [p2p] "[..], &[b'x'; 700_000]].concat();
    let bytes = b"\xff\x00\x1b[31m \xe2\x28";
    stage.append("node.log", &[&long[..], b"\n", bytes, b"\n"].concat());
    stage.drain();
    let stored = stage.sink.stored("node");
    let raw: Vec<&[u8]> = stored.iter().map(|message| message.raw.as_slice()).collect();
    assert_eq!(raw.len(), 4);
    assert_eq!((raw[..3].concat(), raw[3]), (long, &bytes[..]));
    // Longer than a line may be.
    stage.append("node.log", &vec![b'y'; 3 << 20]);
    stage.append("node.log", b"\nend\n");
    stage.drain();
    let raw: Vec<Vec<u8>> = stage.sink.stored("node").into_iter().map(|message| message.raw).collect();
    assert_eq!(raw[4..raw.len() - 1].concat(), vec![b'y'; 3 << 20]);
    assert_eq!(raw[raw.len() - 1], b"end");
    stage.kill();
    stage.drain();
    assert_eq!(stage.sink.stored("node").len(), raw.len());
}

#[test]
fn secrets_are_redacted() {
    let mut stage = Stage::new(|dir| LogLocation::File(dir.join("node.log")), &["edsk[0-9a-zA-Z]+", "token=\\S+"]);
    stage.append("node.log", b"key edsk3abc, token=secret \xff\nApr 27 08:29:09.000: a\n  edsk1\n");
    stage.drain();
    let raw: Vec<Vec<u8>> = stage.sink.stored("node").into_iter().map(|message| message.raw).collect();
    assert_eq!(raw, [&b"key [redacted], [redacted] \xff"[..], b"Apr 27 08:29:09.000: a\n  [redacted]"]);
}

/// What may happen between two polls.
#[derive(Debug, Clone)]
enum Step {
    /// Lines are appended; the last one without its end.
    Append(Vec<bool>, bool),
    Rotate,
    Poll,
    Drain,
    PassGrace,
    Save,
    /// With the records durable so far, and the space of the stream.
    Bound(u64, usize),
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (prop::collection::vec(any::<bool>(), 0..5), any::<bool>()).prop_map(|(lines, part)| Step::Append(lines, part)),
        1 => Just(Step::Rotate),
        4 => Just(Step::Poll),
        1 => Just(Step::Drain),
        1 => Just(Step::PassGrace),
        2 => Just(Step::Save),
        2 => (0..50_u64, 0..10_usize).prop_map(|(durable, space)| Step::Bound(durable, space)),
        2 => Just(Step::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Rotation waits until the agent has seen the file, as it does when files are rotated less often than they are polled.
    #[test]
    fn every_line_is_stored_once(steps in prop::collection::vec(step(), 1..60)) {
        let mut stage = Stage::file();
        let (mut written, mut part, mut number) = (Vec::new(), String::new(), 0);
        let (mut rotations, mut has_line) = (0, false);
        for step in steps {
            match step {
                Step::Append(lines, has_part) => {
                    let mut text = String::new();
                    if !part.is_empty() {
                        text.push_str(" end\n");
                        written.push(format!("{part} end"));
                        part.clear();
                        has_line = true;
                    }
                    has_line |= !lines.is_empty();
                    for is_continued in lines {
                        number += 1;
                        let line = match is_continued {
                            true => format!("  line {number}"),
                            false => format!("Apr 27 08:29:09.{:03}: line {number}", number % 1000),
                        };
                        text.push_str(&format!("{line}\n"));
                        written.push(line);
                    }
                    if has_part {
                        number += 1;
                        part = format!("part {number}");
                        text.push_str(&part);
                    }
                    stage.append("node.log", text.as_bytes());
                }
                Step::Rotate => {
                    stage.sink.set_space(None);
                    stage.drain();
                    rotations += 1;
                    // A file is known by its first line.
                    if std::mem::take(&mut has_line) {
                        stage.rename("node.log", &format!("node.log.{rotations}"));
                        if !part.is_empty() {
                            written.push(std::mem::take(&mut part));
                        }
                    }
                }
                Step::Poll => {
                    stage.poll();
                }
                Step::Drain => {
                    stage.sink.set_space(None);
                    stage.drain();
                }
                Step::PassGrace => stage.pass_grace(),
                Step::Save => stage.save(),
                Step::Bound(durable, space) => {
                    stage.sink.set_durable(Some(durable));
                    stage.sink.set_space(Some(space));
                }
                Step::Kill => stage.kill(),
            }
        }
        stage.sink.set_space(None);
        stage.drain();
        stage.pass_grace();
        stage.drain();
        if !part.is_empty() {
            stage.append("node.log", b"\n");
            written.push(part);
            stage.drain();
        }
        let mut lines: Vec<String> = stage.texts().join("\n").lines().map(str::to_owned).collect();
        lines.sort();
        written.sort();
        prop_assert_eq!(lines, written);
    }
}
