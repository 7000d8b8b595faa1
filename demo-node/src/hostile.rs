//! Protocol violations of a peer, which a recorder must survive.

use std::time::Instant;

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use serde_json::json;

use crate::behaviour::{Behaviour, Next, Role};
use crate::messages::{Message, frame, with_length};
use crate::report::Report;
use crate::session::{Session, SessionOptions};
use crate::wire::MAX_PLAIN;

/// The violation that the peer commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Violation {
    /// 1 MiB of random bytes instead of a handshake.
    Garbage,
    /// A well-formed connection message of 65,537 bytes, nearly all of it chain name; then a normal session.
    LongConnectionMessage,
    /// A connection message that announces 65,535 bytes and stops after 100.
    UnfinishedHandshake,
    /// After the handshake, a chunk that announces 65,535 bytes and stops after 10.
    UnfinishedChunk,
    /// After the handshake, a message that announces 100 MiB and stops after its first chunk.
    UnfinishedMessage,
    /// After the handshake, a chunk that is not sealed with the session key.
    ForgedChunk,
    /// After the handshake, a message whose length is beyond every bound (4 GiB), then valid ones.
    AbsurdLength,
    /// Connects and sends nothing.
    HalfOpen,
    /// Terminal escapes, NUL, newlines and invalid UTF-8 in chain name and points; then a normal session.
    ControlCharacters,
    /// One message of 100 MiB, the largest that Octez allows.
    HugeMessage,
    /// An operation that ends in the middle of its branch, and a known tag with an empty body.
    BrokenBodies,
}

/// Text that must never reach a terminal unescaped.
pub const CONTROL: &[u8] = b"TEZOS\x1b[2J\x1b]0;owned\x07\r\n\0\"<script>\xe2\x80\xae\xe2\x80\x8b\xff\xfe";

/// Largest value of a message's length field.
const MAX_MESSAGE: usize = 100 << 20;

/// The behaviour of a connection with that violation.
#[must_use]
pub fn behaviour(
    violation: Violation,
    options: SessionOptions,
    number: u64,
    role: Role,
    report: Report,
) -> Box<dyn Behaviour> {
    let mut random = StdRng::seed_from_u64(options.seed ^ number);
    let mut options = SessionOptions { keep_open: true, ..options };
    let mut bytes = |length: usize| {
        let mut bytes = vec![0; length];
        random.fill_bytes(&mut bytes);
        bytes
    };
    let raw = |message: Vec<u8>| Message { kind: "unknown", framed: message };
    let messages: Vec<Message> = match violation {
        Violation::Garbage => return Box::new(Stall::after(bytes(1 << 20))),
        Violation::HalfOpen => return Box::new(Stall::after(Vec::new())),
        Violation::UnfinishedHandshake => {
            return Box::new(Stall::after([vec![0xff, 0xff], bytes(100)].concat()));
        }
        Violation::UnfinishedChunk => {
            return Box::new(UnsealedTail {
                session: Session::new(options, number, role, Box::new(std::iter::empty()), report),
                tail: Some([vec![0xff, 0xff], bytes(10)].concat()),
            });
        }
        Violation::ForgedChunk => {
            return Box::new(UnsealedTail {
                session: Session::new(options, number, role, Box::new(std::iter::empty()), report),
                tail: Some([vec![0, 48], bytes(48)].concat()),
            });
        }
        Violation::LongConnectionMessage => {
            options.chain_name = vec![b'T'; 65_535 - 90];
            vec![frame(0x10, "get_current_branch", vec![0x7a, 0x06, 0xa7, 0x70])]
        }
        Violation::ControlCharacters => {
            options.chain_name = CONTROL.to_vec();
            let point = with_length([b"198.51.100.1:9732".as_slice(), CONTROL].concat());
            vec![
                frame(0x03, "advertise", [point.clone(), point.clone()].concat()),
                frame(0x04, "swap_request", [point, bytes(16)].concat()),
            ]
        }
        Violation::UnfinishedMessage => {
            let length = (MAX_MESSAGE as u32).to_be_bytes().to_vec();
            vec![raw([length, vec![0, 0x31], bytes(MAX_PLAIN - 6)].concat())]
        }
        Violation::AbsurdLength => vec![
            raw([vec![0xff; 4], vec![0, 0x31], bytes(100)].concat()),
            frame(0x10, "get_current_branch", vec![0x7a, 0x06, 0xa7, 0x70]),
        ],
        Violation::HugeMessage => vec![frame(0x31, "operation", bytes(MAX_MESSAGE - 2))],
        Violation::BrokenBodies => {
            vec![
                frame(0x31, "operation", bytes(20)),
                frame(0x11, "current_branch", Vec::new()),
                frame(0x10, "get_current_branch", bytes(9)),
            ]
        }
    };
    Box::new(Session::new(options, number, role, Box::new(messages.into_iter()), report))
}

/// Sends some bytes, then nothing until it is to finish, whatever arrives.
struct Stall {
    bytes: Option<Vec<u8>>,
    finished: bool,
}

impl Stall {
    fn after(bytes: Vec<u8>) -> Self {
        Self { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()), finished: false }
    }
}

impl Behaviour for Stall {
    fn next(&mut self, _now: Instant, _released: bool) -> Next {
        match self.bytes.take() {
            Some(bytes) => Next::Write(bytes),
            None if self.finished => Next::Close,
            None => Next::Wait,
        }
    }

    fn read_size(&mut self) -> usize {
        16_384
    }

    fn received(&mut self, _bytes: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn finish(&mut self) {
        self.finished = true;
    }
}

/// A session followed by bytes that are not sealed.
struct UnsealedTail {
    session: Session,
    tail: Option<Vec<u8>>,
}

impl Behaviour for UnsealedTail {
    fn next(&mut self, now: Instant, released: bool) -> Next {
        match self.session.next(now, released) {
            Next::Wait if self.session.summary().get("established") == Some(&json!(true)) => {
                self.tail.take().map_or(Next::Wait, Next::Write)
            }
            next => next,
        }
    }

    fn read_size(&mut self) -> usize {
        self.session.read_size()
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.session.received(bytes)
    }

    fn end_of_stream(&mut self) -> Result<bool, String> {
        self.session.end_of_stream()
    }

    fn finish(&mut self) {
        self.session.finish();
    }

    fn summary(&self) -> serde_json::Value {
        self.session.summary()
    }
}
