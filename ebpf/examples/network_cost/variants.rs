//! The ways to capture that are compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::Ebpf;
use chainscope_ebpf::network::{CaptureMode, Event, NetworkProbe, Verdict};

use crate::floor::{self, Floor};
use crate::load;
use crate::tools::{Tool, ToolKind};

/// What is attached while the sender runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    /// Nothing.
    Off,
    /// A program that returns at once, at the tracepoint of the product.
    Empty,
    /// A program that copies, and a reader that copies again.
    Floor,
    Sock,
    Syscall,
    Tool(ToolKind),
}

impl Variant {
    pub(crate) const ALL: [Self; 8] = [
        Self::Off,
        Self::Empty,
        Self::Floor,
        Self::Sock,
        Self::Syscall,
        Self::Tool(ToolKind::TcpdumpNull),
        Self::Tool(ToolKind::TcpdumpFile),
        Self::Tool(ToolKind::DumpcapFile),
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Empty => "empty",
            Self::Floor => "floor",
            Self::Sock => "sock",
            Self::Syscall => "syscall",
            Self::Tool(tool) => tool.name(),
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
    }

    /// Begins to capture what a process writes, `write` bytes at a time.
    pub(crate) fn start(self, pid: u32, write: usize) -> Capture {
        match self {
            Self::Off => Capture::Off,
            Self::Empty => Capture::Empty { _program: Box::new(floor::attach_empty()) },
            Self::Floor => {
                let floor = Floor::attach(pid, write);
                Capture::Reader(Reader::start(move |stop| read_floor(floor, stop)))
            }
            Self::Sock | Self::Syscall => {
                let mode = if self == Self::Sock { CaptureMode::Sock } else { CaptureMode::Syscall };
                let mut probe = load(Some(mode));
                probe.add_process(pid).expect("map update");
                Capture::Reader(Reader::start(move |stop| read_probe(probe, pid, stop)))
            }
            Self::Tool(tool) => Capture::Tool(tool.start()),
        }
    }
}

/// A capture that is running.
pub(crate) enum Capture {
    Off,
    Empty { _program: Box<Ebpf> },
    Reader(Reader),
    Tool(Tool),
}

/// What a capture found in the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Captured {
    /// Bytes that the program saw; none of a tool, which counts packets.
    pub(crate) seen: Option<u64>,
    /// Bytes that were read.
    pub(crate) bytes: u64,
    /// Bytes, or packets of a tool, that were lost.
    pub(crate) lost: u64,
}

impl Capture {
    /// Ends the capture after the sender, which has sent `sent` bytes.
    pub(crate) fn finish(self, sent: u64) -> Captured {
        let captured = match self {
            Self::Off | Self::Empty { .. } => Captured::default(),
            Self::Reader(reader) => reader.finish(),
            Self::Tool(tool) => Captured { lost: tool.finish(), ..Captured::default() },
        };
        if let Some(seen) = captured.seen {
            assert_eq!(seen, sent, "the kernel saw every sent byte");
            assert_eq!(captured.bytes + captured.lost, sent, "every byte was delivered or counted as lost");
        }
        captured
    }
}

/// A thread that reads a ring.
pub(crate) struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Captured>,
}

impl Reader {
    fn start(read: impl FnOnce(&AtomicBool) -> Captured + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || read(&stop)
        });
        Self { stop, thread }
    }

    fn finish(self) -> Captured {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the reader")
    }
}

const POLL_TIMEOUT: Duration = Duration::from_millis(10);

/// Copies every byte, as a consumer reads each byte once.
fn read_floor(mut floor: Floor, stop: &AtomicBool) -> Captured {
    let (mut copy, mut bytes) = (Vec::new(), 0_u64);
    loop {
        let last = stop.load(Ordering::Relaxed);
        let records = floor.poll(POLL_TIMEOUT, &mut |record| {
            copy.clear();
            copy.extend_from_slice(record);
            bytes += copy.len() as u64;
        });
        if last && records == 0 {
            break;
        }
    }
    let sums = floor.sums();
    assert_eq!(sums.copied, bytes, "every copied byte was delivered");
    Captured { seen: Some(sums.sent), bytes, lost: sums.lost }
}

fn read_probe(mut probe: NetworkProbe, pid: u32, stop: &AtomicBool) -> Captured {
    let (mut copy, mut bytes, mut opened) = (Vec::new(), 0_u64, Vec::new());
    loop {
        let last = stop.load(Ordering::Relaxed);
        let events = probe.poll(POLL_TIMEOUT, &mut |event| match event {
            Event::Data(data) => {
                copy.clear();
                copy.extend_from_slice(data.bytes);
                bytes += copy.len() as u64;
            }
            Event::Opened(event) => opened.push(event.socket),
            _ => {}
        });
        // A consumer sets the verdict after the first bytes.
        for socket in opened.drain(..) {
            probe.set_verdict(socket, Verdict::Keep).expect("map update");
        }
        if last && events.expect("the ring") == 0 {
            break;
        }
    }
    let account = probe.account(pid).expect("watched");
    assert_eq!(account.captured, bytes, "every captured byte was delivered");
    Captured { seen: Some(account.seen), bytes, lost: account.dropped_bytes() }
}
