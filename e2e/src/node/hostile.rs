//! Peers that no honest node is: what a recorder must bear without harm.

use std::time::Instant;

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use serde_json::json;

use super::messages::{Message, frame, sized};
use super::reactor::{Behaviour, Next, Role};
use super::report::Report;
use super::session::{Manner, Session};

/// What is wrong with the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Vice {
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
    /// After the handshake, a chunk that is sealed with nothing.
    ForgedChunk,
    /// After the handshake, a message whose length is beyond every bound (4 GiB), then valid ones.
    AbsurdLength,
    /// Connects and says nothing.
    HalfOpen,
    /// Terminal escapes, NUL, newlines and invalid UTF-8 in chain name and points; then a normal session.
    ControlCharacters,
    /// One message of 100 MiB, the most that Octez allows.
    HugeMessage,
    /// An operation that ends in the middle of its branch, a known tag with a body of nothing.
    BrokenBodies,
}

/// Text that must never reach a terminal as it is.
pub const CONTROL: &[u8] = b"TEZOS\x1b[2J\x1b]0;owned\x07\r\n\0\"<script>\xff\xfe";

/// Most bytes after a message's length field.
const LARGEST_MESSAGE: usize = 100 << 20;

/// Makes a connection of that kind.
#[must_use]
pub fn behaviour(vice: Vice, manner: Manner, number: u64, role: Role, report: Report) -> Box<dyn Behaviour> {
    let mut random = StdRng::seed_from_u64(manner.seed ^ number);
    let mut manner = Manner { linger: true, ..manner };
    let mut bytes = |length: usize| {
        let mut bytes = vec![0; length];
        random.fill_bytes(&mut bytes);
        bytes
    };
    let head = |message: Vec<u8>| Message { kind: "unknown", framed: message };
    let messages: Vec<Message> = match vice {
        Vice::Garbage => return Box::new(Stalls::after(bytes(1 << 20))),
        Vice::HalfOpen => return Box::new(Stalls::after(Vec::new())),
        Vice::UnfinishedHandshake => {
            return Box::new(Stalls::after([vec![0xff, 0xff], bytes(100)].concat()));
        }
        Vice::UnfinishedChunk => {
            return Box::new(Spoils {
                session: Session::new(manner, number, role, Box::new(std::iter::empty()), report),
                tail: Some([vec![0xff, 0xff], bytes(10)].concat()),
            });
        }
        Vice::ForgedChunk => {
            return Box::new(Spoils {
                session: Session::new(manner, number, role, Box::new(std::iter::empty()), report),
                tail: Some([vec![0, 48], bytes(48)].concat()),
            });
        }
        Vice::LongConnectionMessage => {
            manner.chain_name = vec![b'T'; 65_535 - 90];
            vec![frame(0x10, "get_current_branch", vec![0x7a, 0x06, 0xa7, 0x70])]
        }
        Vice::ControlCharacters => {
            manner.chain_name = CONTROL.to_vec();
            let point = sized([b"198.51.100.1:9732".as_slice(), CONTROL].concat());
            vec![
                frame(0x03, "advertise", [point.clone(), point.clone()].concat()),
                frame(0x04, "swap_request", [point, bytes(16)].concat()),
            ]
        }
        Vice::UnfinishedMessage => {
            let length = (LARGEST_MESSAGE as u32).to_be_bytes().to_vec();
            vec![head([length, vec![0, 0x31], bytes(super::wire::LARGEST_PLAIN - 6)].concat())]
        }
        Vice::AbsurdLength => vec![
            head([vec![0xff; 4], vec![0, 0x31], bytes(100)].concat()),
            frame(0x10, "get_current_branch", vec![0x7a, 0x06, 0xa7, 0x70]),
        ],
        Vice::HugeMessage => vec![frame(0x31, "operation", bytes(LARGEST_MESSAGE - 2))],
        Vice::BrokenBodies => {
            vec![
                frame(0x31, "operation", bytes(20)),
                frame(0x11, "current_branch", Vec::new()),
                frame(0x10, "get_current_branch", bytes(9)),
            ]
        }
    };
    Box::new(Session::new(manner, number, role, Box::new(messages.into_iter()), report))
}

/// Says something and then nothing, whatever it hears, until asked to finish.
struct Stalls {
    says: Option<Vec<u8>>,
    finished: bool,
}

impl Stalls {
    fn after(bytes: Vec<u8>) -> Self {
        Self { says: (!bytes.is_empty()).then_some(bytes), finished: false }
    }
}

impl Behaviour for Stalls {
    fn next(&mut self, _now: Instant, _released: bool) -> Next {
        match self.says.take() {
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

/// A session whose last words are not sealed.
struct Spoils {
    session: Session,
    tail: Option<Vec<u8>>,
}

impl Behaviour for Spoils {
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
