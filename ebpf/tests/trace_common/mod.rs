//! Shared support of the tracepoint probe's tests: a program that hits tracepoints as commands say, and a probe with the
//! events that it delivered.
//!
//! The tests need root. Without it they fail with the probe's error.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use chainscope_ebpf::trace::{
    ArgumentValue, AttachmentId, Counts, Data, End, Event, Fetch, Location, LocationId, TraceOptions, TraceProbe, Value,
};
use chainscope_testing::wait::{WAIT_TIMEOUT, until_true};
use chainscope_usdt::Image;

/// Compiles a program of `trace_common/programs`, or of `testing/programs`, to the file `name`.
pub fn compile(compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = crate_folder.join("tests/trace_common/programs").join(source);
    let source = if own.exists() { own } else { crate_folder.join("../testing/programs").join(source) };
    chainscope_testing::program::compile(compiler, &source, Path::new(env!("CARGO_TARGET_TMPDIR")), name, flags)
}

/// Compiles the program that hits tracepoints. Each test has a file of its own, because tracers of one file share its
/// semaphores.
pub fn target_program(name: &str) -> PathBuf {
    compile("gcc", "trace_target.c", name, &["-O2", "-pthread"])
}

/// A process that runs it.
pub struct Target {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Target {
    pub fn start(program: &Path) -> Self {
        let mut child =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let commands = child.stdin.take().expect("piped");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        let mut target = Self { child, commands, replies };
        assert_eq!(target.call("ready"), 0);
        target
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until all semaphores of the process are 0, as they are when the last descriptor of the links is closed. A
    /// process that another test spawns has a copy of each descriptor until it executes its program.
    pub fn wait_for_detach(&mut self) {
        until_true("the semaphores to be 0", || self.call("semaphores") == 0);
    }

    /// Executes a command and returns the number of the reply.
    pub fn call(&mut self, command: &str) -> i64 {
        self.send(command);
        self.reply()
    }

    pub fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the program runs");
    }

    pub fn reply(&mut self) -> i64 {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the program replies");
        line.trim().parse().expect("a number: the program has not ended")
    }
}

/// Ends with its input.
impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Locations of a tracepoint, with what is to be fetched of its arguments.
pub fn locations(image: &Image, provider: &str, name: &str, fetches: &[Fetch]) -> Vec<Location> {
    let tracepoint = image.tracepoints.iter().find(|found| found.provider == provider && found.name == name);
    let found = tracepoint.expect("the tracepoint").locations.iter().map(|location| {
        let fetches = fetches.iter().copied().chain(std::iter::repeat(Fetch::Value));
        Location {
            offset: location.offset.expect("in executable code"),
            semaphore: location.semaphore.map(|semaphore| semaphore.offset.expect("in a writable segment")),
            arguments: location.arguments.iter().cloned().zip(fetches).collect(),
        }
    });
    found.collect()
}

pub fn image(program: &Path) -> Image {
    Image::read(std::fs::read(program).expect("compiled").as_slice()).expect("an ELF file")
}

/// A probe that is attached to tracepoints of one file, and what it delivered.
pub struct Watcher {
    pub probe: TraceProbe,
    pub attachment: AttachmentId,
    pub locations: Vec<LocationId>,
    pub events: Vec<Event>,
}

impl Watcher {
    /// Attaches to tracepoints of the provider `target`.
    pub fn attach(program: &Path, pid: Option<u32>, tracepoints: &[(&str, &[Fetch])], options: &TraceOptions) -> Self {
        let image = image(program);
        let points = tracepoints.iter().flat_map(|(name, fetches)| locations(&image, "target", name, fetches));
        Self::attach_to(program, pid, &points.collect::<Vec<_>>(), options)
    }

    pub fn attach_to(program: &Path, pid: Option<u32>, points: &[Location], options: &TraceOptions) -> Self {
        let mut probe = TraceProbe::load(options).expect("root");
        let file = File::open(program).expect("compiled");
        let (attachment, locations) = probe.attach(&file, pid, points).expect("attachable");
        Self { probe, attachment, locations, events: Vec::new() }
    }

    pub fn poll(&mut self) -> usize {
        let events = &mut self.events;
        self.probe.poll(Duration::from_millis(20), &mut |event| events.push(event)).expect("a ring")
    }

    /// Polls without a pause until a condition holds.
    pub fn poll_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "timed out waiting for {what}: {:?}", self.total());
            self.poll();
        }
    }

    /// Polls until everything that was hit by now is delivered or dropped, and returns the events.
    pub fn settle(&mut self) -> Vec<Event> {
        self.poll_until("all hits to be delivered", |watcher| {
            let total = watcher.total();
            total.hits == total.received + total.dropped() && !watcher.probe.has_events_waiting()
        });
        assert_eq!(self.probe.invalid_records(), 0);
        std::mem::take(&mut self.events)
    }

    /// Counts of all locations together.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for location in &self.locations {
            let counts = self.probe.counts(*location).expect("counters");
            total.hits += counts.hits;
            total.delivered += counts.delivered;
            total.ring_full += counts.ring_full;
            total.no_slot += counts.no_slot;
            total.incomplete += counts.incomplete;
            total.received += counts.received;
        }
        total
    }
}

/// The values of an event whose arguments all have one.
pub fn values(event: &Event) -> Vec<i64> {
    event.arguments.iter().map(known).collect()
}

pub fn known(argument: &ArgumentValue) -> i64 {
    match argument.value {
        Value::Known(value) => value.cast_signed(),
        other => panic!("{other:?}"),
    }
}

/// What the argument with this index points to.
pub fn data(event: &Event, index: usize) -> &Data {
    event.arguments[index].data.as_ref().expect("fetched")
}

/// Whole data.
pub fn whole(event: &Event, index: usize) -> &[u8] {
    let data = data(event, index);
    assert_eq!(data.end, End::Whole, "{} bytes", data.bytes.len());
    &data.bytes
}

/// The text that `trace_target.c` writes.
pub fn letters(length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + (at % 26) as u8).collect()
}

/// The bytes that `trace_target.c` writes.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let byte = |at: u64| {
        (at.wrapping_mul(31) ^ (at >> 8).wrapping_mul(17) ^ (at >> 16).wrapping_mul(73) ^ seed.wrapping_mul(57)) as u8
    };
    (0..length as u64).map(byte).collect()
}
