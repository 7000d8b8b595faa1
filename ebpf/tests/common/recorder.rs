//! Records a probe's events and verifies streams.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use chainscope_ebpf::network::{
    CaptureMode, Closed, Data, DataHeader, Direction, Event, KernelAccount, MissingReason, NetworkOptions,
    NetworkProbe, Opened, SocketId,
};
use chainscope_testing::wait::WAIT_TIMEOUT;

use super::pattern_byte;

/// One data event.
#[derive(Debug, Clone)]
pub struct Piece {
    pub header: DataHeader,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub struct Stream {
    pub pieces: Vec<Piece>,
}

impl Stream {
    pub fn captured(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
    }

    pub fn missing(&self, reason: MissingReason) -> u64 {
        self.pieces.iter().filter(|piece| piece.header.missing == Some(reason)).map(|piece| piece.header.covers).sum()
    }

    /// The stream sorted by offset: concurrent threads may submit to the ring in another order than to the socket.
    pub fn by_position(&self) -> Self {
        let mut pieces = self.pieces.clone();
        pieces.sort_by_key(|piece| piece.header.offset);
        Self { pieces }
    }

    /// Number of bytes in `begin..end` that no event covers; panics if events overlap or are out of order.
    pub fn holes(&self, begin: u64, end: u64) -> u64 {
        let (mut at, mut holes) = (begin, 0);
        for piece in &self.pieces {
            assert!(piece.header.offset >= at, "overlap at {}, already at {at}", piece.header.offset);
            holes += piece.header.offset - at;
            at = piece.header.offset + piece.header.covers;
        }
        assert!(end >= at, "ends at {at}, beyond {end}");
        holes + end - at
    }

    /// Checks every captured byte against the pattern.
    pub fn verify(&self, seed: u64) {
        for piece in &self.pieces {
            if piece.header.missing.is_some() {
                assert!(piece.bytes.is_empty());
                continue;
            }
            assert_eq!(piece.bytes.len() as u64, piece.header.covers);
            for (at, &byte) in (piece.header.offset..).zip(&piece.bytes) {
                assert_eq!(
                    byte,
                    pattern_byte(seed, at),
                    "stream {seed} at offset {at}, piece at {}",
                    piece.header.offset
                );
            }
        }
    }

    /// Checks that bytes `0..end` are captured completely and match the pattern.
    pub fn verify_whole(&self, seed: u64, end: u64) {
        self.verify(seed);
        assert_eq!(self.holes(0, end), 0, "holes");
        assert_eq!(self.captured(), end);
    }

    pub fn calls(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.header.call_start).count()
    }
}

/// A probe and all events it has reported.
pub struct Recorder {
    pub probe: NetworkProbe,
    pub mode: CaptureMode,
    pub listening: Vec<(u32, u32, SocketAddr)>,
    pub executed: Vec<u32>,
    pub opened: BTreeMap<SocketId, Opened>,
    pub inodes: HashMap<SocketId, u64>,
    pub closed: HashMap<SocketId, Closed>,
    pub streams: HashMap<(SocketId, Direction), Stream>,
}

impl Recorder {
    pub fn new(mode: CaptureMode) -> Self {
        Self::with(NetworkOptions { mode: Some(mode), ..NetworkOptions::default() })
    }

    pub fn with(options: NetworkOptions) -> Self {
        let probe = NetworkProbe::load(&options).unwrap_or_else(|error| panic!("these tests need root: {error}"));
        Self {
            mode: probe.mode(),
            probe,
            listening: Vec::new(),
            executed: Vec::new(),
            opened: BTreeMap::new(),
            inodes: HashMap::new(),
            closed: HashMap::new(),
            streams: HashMap::new(),
        }
    }

    /// Polls the probe once and checks the event order: no event of a socket precedes its open or follows its close.
    pub fn poll(&mut self) -> usize {
        let Self { probe, listening, executed, opened, inodes, closed, streams, .. } = self;
        probe
            .poll(Duration::from_millis(10), &mut |event| match event {
                Event::Listening { pid, netns, local, .. } => listening.push((pid, netns, local)),
                Event::Exec { pid, .. } => executed.push(pid),
                Event::Opened(event) => {
                    assert!(opened.insert(event.socket, event).is_none(), "opened twice: {event:?}");
                    assert!(event.time_ns > 0);
                }
                Event::Inode { socket, inode } => {
                    assert!(inodes.insert(socket, inode).is_none(), "two inodes for {socket:?}");
                }
                Event::Closed(event) => {
                    assert!(opened.contains_key(&event.socket), "closed but never opened: {event:?}");
                    assert!(closed.insert(event.socket, event).is_none(), "closed twice: {event:?}");
                }
                Event::Data(Data { header, bytes }) => {
                    assert!(opened.contains_key(&header.socket), "data before {:?} opened", header.socket);
                    assert!(!closed.contains_key(&header.socket), "data after {:?} closed", header.socket);
                    let stream = streams.entry((header.socket, header.direction)).or_default();
                    stream.pieces.push(Piece { header, bytes: bytes.to_vec() });
                }
            })
            .expect("the ring can be read")
    }

    /// Polls until `done` returns true.
    pub fn poll_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "timed out waiting for {what}: opened {:?} closed {:?}",
                self.opened,
                self.closed
            );
            self.poll();
        }
    }

    /// Polls until `count` sockets of process `pid` have opened, and returns the last one.
    pub fn wait_opened(&mut self, pid: u32, count: usize) -> Opened {
        self.poll_until("open events", |r| r.opened.values().filter(|o| o.pid == pid).count() >= count);
        self.opened.values().filter(|o| o.pid == pid).nth(count - 1).copied().expect("just counted")
    }

    pub fn wait_closed(&mut self, socket: SocketId) -> Closed {
        self.poll_until("a close event", |r| r.closed.contains_key(&socket));
        self.closed[&socket]
    }

    /// Polls until events cover `bytes` of the stream.
    pub fn wait_covered(&mut self, socket: SocketId, direction: Direction, bytes: u64) {
        self.poll_until("data", |r| {
            r.streams
                .get(&(socket, direction))
                .is_some_and(|s| s.pieces.iter().map(|p| p.header.covers).sum::<u64>() >= bytes)
        });
    }

    pub fn sent(&self, socket: SocketId) -> &Stream {
        self.streams.get(&(socket, Direction::Sent)).unwrap_or(&EMPTY)
    }

    pub fn received(&self, socket: SocketId) -> &Stream {
        self.streams.get(&(socket, Direction::Received)).unwrap_or(&EMPTY)
    }

    /// Returns the account after checking that its counters add up.
    pub fn account(&self, pid: u32) -> KernelAccount {
        let account = self.probe.account(pid).expect("a watched process");
        assert_eq!(account.seen, account.captured + account.left_alone + account.dropped_bytes(), "{account:?}");
        account
    }
}

static EMPTY: Stream = Stream { pieces: Vec::new() };
