//! A whole session of its own: handshake, then messages from a source, sealed, one write a chunk.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::messages::Message;
use super::plain::Pieces;
use super::reactor::{Behaviour, Next, Role};
use super::report::{Line, Report};
use super::wire::{Chunks, Cipher, Identity, LARGEST_PLAIN, ciphers, peer_id, public_key_of};

/// How a session is to be.
#[derive(Clone)]
pub struct Manner {
    /// Who speaks.
    pub identity: Rc<Identity>,
    /// Announced P2P port.
    pub port: u16,
    /// Announced chain; bytes, because a hostile one need not be text.
    pub chain_name: Vec<u8>,
    /// Of nonces and sizes; the number of the connection is added.
    pub seed: u64,
    /// Time between two messages; `None`: as fast as the socket takes them.
    pub interval: Option<Duration>,
    /// One write a chunk, as Octez does, or pieces that mind no chunk.
    pub pieces: Option<Pieces>,
    /// Open what arrives and drop the connection if it does not open.
    pub verify: bool,
    /// When the source is empty: say nothing more, but keep the connection until asked to finish.
    pub linger: bool,
    /// Refuse with a Nack of that motive, and no points, instead of an Ack.
    pub nack: Option<u16>,
}

/// Where messages come from.
pub type Source = Box<dyn Iterator<Item = Message>>;

/// The behaviour.
pub struct Session {
    manner: Manner,
    number: u64,
    role: Role,
    random: StdRng,
    source: Source,
    report: Report,
    ours: Vec<u8>,
    ciphers: Option<(Cipher, Cipher)>,
    peer: Option<String>,
    // Whole chunks to be written, and, where pieces are asked for, the bytes of those on their way.
    queue: VecDeque<Vec<u8>>,
    pending: Vec<u8>,
    due: Instant,
    finishing: bool,
    source_is_dry: bool,
    // Encrypted chunks; metadata is 0.
    sent_chunks: u64,
    sent_messages: u64,
    incoming: Chunks,
    opened_chunks: u64,
    received_messages: u64,
    partial: Vec<u8>,
    partial_start: u64,
    ended: bool,
}

/// Octez reads 16,384 bytes into its ring, sometimes 2,000 into a fresh buffer; other clients read as they like.
pub fn read_size(random: &mut impl Rng) -> usize {
    match random.random_range(0..8) {
        0..4 => 16_384,
        4..6 => 2000,
        6 => random.random_range(1..100),
        _ => random.random_range(1..65_536),
    }
}

impl Session {
    /// A session that will say what `source` gives it.
    #[must_use]
    pub fn new(manner: Manner, number: u64, role: Role, source: Source, report: Report) -> Self {
        let random = StdRng::seed_from_u64(manner.seed ^ (number << 32));
        // The nonce must differ from run to run: with the identity's static key a repeated one would be a repeated key stream.
        let ours = manner.identity.connection_message(&mut rand::rng(), manner.port, &manner.chain_name);
        let queue = VecDeque::from([ours.clone()]);
        Self {
            manner,
            number,
            role,
            random,
            source,
            report,
            ours,
            queue,
            ciphers: None,
            peer: None,
            pending: Vec::new(),
            due: Instant::now(),
            finishing: false,
            source_is_dry: false,
            sent_chunks: 0,
            sent_messages: 0,
            incoming: Chunks::default(),
            opened_chunks: 0,
            received_messages: 0,
            partial: Vec::new(),
            partial_start: 0,
            ended: false,
        }
    }

    fn established(&self) -> bool {
        self.opened_chunks >= 2
    }

    fn seal(&mut self, plain: &[u8]) {
        if let Some((cipher, _)) = &mut self.ciphers {
            self.queue.push_back(cipher.seal(plain));
            self.sent_chunks += 1;
        }
    }

    fn say(&mut self, message: &Message) {
        self.note(true, message.kind, self.sent_chunks, &message.framed);
        for plain in message.framed.chunks(LARGEST_PLAIN) {
            self.seal(plain);
        }
        self.sent_messages += 1;
    }

    fn note(&self, sent: bool, kind: &str, chunk: u64, framed: &[u8]) {
        if self.report.keeps_transcript() {
            self.report.message(&Line {
                connection: self.number,
                sent,
                kind: kind.to_owned(),
                chunk,
                length: framed.len(),
                sha256: hex::encode(Sha256::digest(framed)),
            });
        }
    }

    /// Fills the queue if it is empty and there is more to say now. True if it did.
    fn fill(&mut self, now: Instant, released: bool) -> bool {
        if !self.queue.is_empty() {
            return true;
        }
        if !self.established() || !released || self.finishing || self.source_is_dry || now < self.due {
            return false;
        }
        let Some(message) = self.source.next() else {
            self.source_is_dry = true;
            return false;
        };
        if let Some(interval) = self.manner.interval {
            self.due = (self.due + interval).max(now.checked_sub(Duration::from_secs(1)).unwrap_or(now));
        }
        self.say(&message);
        true
    }

    fn piece(&mut self, pieces: Pieces, now: Instant, released: bool) -> Option<Vec<u8>> {
        let length = pieces.pick(&mut self.random);
        while self.pending.len() < length && self.fill(now, released) {
            self.pending.extend(self.queue.pop_front()?);
        }
        let later = self.pending.split_off(length.min(self.pending.len()));
        let piece = std::mem::replace(&mut self.pending, later);
        (!piece.is_empty()).then_some(piece)
    }

    fn chunk(&mut self, chunk: &[u8]) -> Result<(), String> {
        let Some((_, cipher)) = &mut self.ciphers else {
            let key = public_key_of(chunk).ok_or("the connection message is too short")?;
            self.peer = Some(peer_id(&key));
            self.ciphers = ciphers(self.manner.identity.secret_key(), self.role, &self.ours, chunk);
            self.seal(&[0, 0]);
            return Ok(());
        };
        if self.opened_chunks >= 2 && !self.manner.verify {
            self.opened_chunks += 1;
            return Ok(());
        }
        let counter = self.opened_chunks;
        let plain =
            cipher.open(chunk.get(2..).unwrap_or_default()).ok_or_else(|| format!("chunk {counter} does not open"))?;
        self.opened_chunks += 1;
        match (counter, plain.first()) {
            (0, _) => match self.manner.nack {
                Some(motive) => {
                    let nack = [vec![1], motive.to_be_bytes().to_vec(), vec![0; 4]].concat();
                    self.seal(&nack);
                    self.source_is_dry = true;
                    self.finishing = true;
                }
                None => self.seal(&[0]),
            },
            (1, Some(0)) => {
                self.due = Instant::now();
                self.report.event(&json!({
                    "event": "established", "connection": self.number, "role": self.role.name(), "peer_id": self.peer,
                }));
            }
            (1, _) => self.finishing = true,
            _ => self.assemble(counter, plain),
        }
        Ok(())
    }

    fn assemble(&mut self, counter: u64, plain: Vec<u8>) {
        if self.partial.is_empty() {
            self.partial_start = counter;
        }
        self.partial.extend(plain);
        let Some(length) = self.partial.first_chunk::<4>().map(|l| 4 + u32::from_be_bytes(*l) as usize) else { return };
        if self.partial.len() >= length {
            let message = std::mem::take(&mut self.partial);
            let tag = message.get(4..6).and_then(|t| t.try_into().ok()).map_or(0, u16::from_be_bytes);
            let kind = super::messages::KINDS.iter().find(|k| k.0 == tag).map_or("unknown", |k| k.1);
            self.note(false, kind, self.partial_start, &message);
            self.received_messages += 1;
        }
    }
}

impl Behaviour for Session {
    fn next(&mut self, now: Instant, released: bool) -> Next {
        let bytes = match self.manner.pieces {
            None => self.fill(now, released).then(|| self.queue.pop_front()).flatten(),
            Some(pieces) => self.piece(pieces, now, released),
        };
        match bytes {
            Some(bytes) => Next::Write(bytes),
            None if self.finishing || (self.source_is_dry && !self.manner.linger) => Next::Done,
            None if self.source_is_dry || !self.established() || !released => Next::Wait,
            None => Next::At(self.due),
        }
    }

    fn read_size(&mut self) -> usize {
        read_size(&mut self.random)
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut incoming = std::mem::take(&mut self.incoming);
        incoming.push(bytes);
        let outcome = std::iter::from_fn(|| incoming.pop().map(|chunk| self.chunk(chunk))).find(Result::is_err);
        self.incoming = incoming;
        outcome.unwrap_or(Ok(()))
    }

    fn end_of_stream(&mut self) -> Result<bool, String> {
        self.ended = true;
        if !self.incoming.is_empty() || !self.partial.is_empty() {
            return Err("the peer left in the middle of a message".to_owned());
        }
        if !self.established() {
            return Err("the peer left before the handshake was complete".to_owned());
        }
        // A peer that has said everything waits for our end; an endless source ends with it.
        let (_, more) = self.source.size_hint();
        self.finishing |= more.is_none() || self.manner.linger;
        Ok(false)
    }

    fn finish(&mut self) {
        self.finishing = true;
    }

    fn summary(&self) -> Value {
        json!({
            "peer_id": self.peer, "established": self.established(),
            "sent_messages": self.sent_messages, "sent_chunks": self.sent_chunks,
            "received_messages": self.received_messages, "received_chunks": self.opened_chunks,
        })
    }
}
