//! A session with generated keys: handshake, then sealed messages from a source, one write per chunk.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::behaviour::{Behaviour, Next, Role};
use crate::io_sizes::{WriteSizes, random_read_size};
use crate::log::{self, Level};
use crate::messages::{KINDS, Message};
use crate::report::{Report, TranscriptLine};
use crate::subsystems::Subsystems;
use crate::wire::{Chunks, Cipher, Identity, MAX_PLAIN, ciphers, peer_id, public_key_of};

/// Options of a session.
#[derive(Clone)]
pub struct SessionOptions {
    /// Identity of the local node.
    pub identity: Rc<Identity>,
    /// Announced P2P port.
    pub port: u16,
    /// Announced chain; bytes, because a hostile peer may announce invalid UTF-8.
    pub chain_name: Vec<u8>,
    /// Seed of sizes; the number of the connection is added.
    pub seed: u64,
    /// Time between two messages; `None`: as fast as the socket takes them.
    pub interval: Option<Duration>,
    /// Sizes of writes that ignore the bounds of chunks; `None`: one write per chunk, as Octez does.
    pub write_sizes: Option<WriteSizes>,
    /// Decrypt what arrives and drop the connection if that fails.
    pub verify: bool,
    /// When the source is exhausted: send nothing more, but keep the connection open until it is to finish.
    pub keep_open: bool,
    /// Refuse the handshake with a Nack of this motive, without points.
    pub nack: Option<u16>,
    /// Handle what arrives; shared by all sessions.
    pub subsystems: Option<Rc<RefCell<Subsystems>>>,
}

/// A source of messages; an endless one has no upper size hint.
pub type Source = Box<dyn Iterator<Item = Message>>;

/// The behaviour of one session.
pub struct Session {
    options: SessionOptions,
    number: u64,
    role: Role,
    random: StdRng,
    source: Source,
    report: Report,
    ours: Vec<u8>,
    ciphers: Option<(Cipher, Cipher)>,
    peer: Option<String>,
    // Whole chunks to write, and with `write_sizes` the bytes of chunks that are partly written.
    queue: VecDeque<Vec<u8>>,
    pending: Vec<u8>,
    due: Instant,
    finishing: bool,
    source_is_exhausted: bool,
    // Counts encrypted chunks; metadata is 0.
    sent_chunks: u64,
    sent_messages: u64,
    incoming: Chunks,
    opened_chunks: u64,
    received_messages: u64,
    partial: Vec<u8>,
    partial_start: u64,
    ended: bool,
}

impl Session {
    /// A session that sends the messages of `source`.
    #[must_use]
    pub fn new(options: SessionOptions, number: u64, role: Role, source: Source, report: Report) -> Self {
        let random = StdRng::seed_from_u64(options.seed ^ (number << 32));
        // The nonce must differ from run to run: with the identity's static key a repeated one would be a repeated key stream.
        let ours = options.identity.connection_message(&mut rand::rng(), options.port, &options.chain_name);
        let queue = VecDeque::from([ours.clone()]);
        Self {
            options,
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
            source_is_exhausted: false,
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

    fn send_message(&mut self, message: &Message) {
        self.record(true, message.kind, self.sent_chunks, &message.framed);
        for plain in message.framed.chunks(MAX_PLAIN) {
            self.seal(plain);
        }
        self.sent_messages += 1;
    }

    fn record(&self, sent: bool, kind: &str, chunk: u64, framed: &[u8]) {
        if self.report.keeps_transcript() {
            self.report.message(&TranscriptLine {
                connection: self.number,
                sent,
                kind: kind.to_owned(),
                chunk,
                length: framed.len(),
                sha256: hex::encode(Sha256::digest(framed)),
            });
        }
    }

    /// Fills the queue if it is empty and a message is due. Returns true if the queue holds a chunk.
    fn fill(&mut self, now: Instant, released: bool) -> bool {
        if !self.queue.is_empty() {
            return true;
        }
        if !self.established() || !released || self.finishing || self.source_is_exhausted || now < self.due {
            return false;
        }
        let Some(message) = self.source.next() else {
            self.source_is_exhausted = true;
            return false;
        };
        if let Some(interval) = self.options.interval {
            self.due = (self.due + interval).max(now.checked_sub(Duration::from_secs(1)).unwrap_or(now));
        }
        self.send_message(&message);
        true
    }

    /// The next write of a random size, regardless of the bounds of chunks.
    fn next_write(&mut self, sizes: WriteSizes, now: Instant, released: bool) -> Option<Vec<u8>> {
        let length = sizes.pick(&mut self.random);
        while self.pending.len() < length && self.fill(now, released) {
            self.pending.extend(self.queue.pop_front()?);
        }
        let later = self.pending.split_off(length.min(self.pending.len()));
        let bytes = std::mem::replace(&mut self.pending, later);
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Handles a received chunk: connection message, metadata, Ack or Nack, then messages.
    fn handle_chunk(&mut self, chunk: &[u8]) -> Result<(), String> {
        let Some((_, cipher)) = &mut self.ciphers else {
            let key = public_key_of(chunk).ok_or("the connection message is too short")?;
            self.peer = Some(peer_id(&key));
            self.ciphers = ciphers(self.options.identity.secret_key(), self.role, &self.ours, chunk);
            self.seal(&[0, 0]);
            return Ok(());
        };
        if self.opened_chunks >= 2 && !self.options.verify {
            self.opened_chunks += 1;
            return Ok(());
        }
        let counter = self.opened_chunks;
        let plain =
            cipher.open(chunk.get(2..).unwrap_or_default()).ok_or_else(|| format!("chunk {counter} does not open"))?;
        self.opened_chunks += 1;
        match (counter, plain.first()) {
            (0, _) => match self.options.nack {
                Some(motive) => {
                    let nack = [vec![1], motive.to_be_bytes().to_vec(), vec![0; 4]].concat();
                    self.seal(&nack);
                    self.source_is_exhausted = true;
                    self.finishing = true;
                }
                None => self.seal(&[0]),
            },
            (1, Some(0)) => {
                self.due = Instant::now();
                self.report.log(|| {
                    Some((
                        Level::Notice,
                        format!("connected to peer {} as {}", self.peer.as_deref()?, self.role.name()),
                    ))
                });
                self.report.event(&json!({
                    "event": "established", "connection": self.number, "role": self.role.name(), "peer_id": self.peer,
                }));
            }
            (1, _) => self.finishing = true,
            _ => self.assemble(counter, plain)?,
        }
        Ok(())
    }

    /// Appends the plaintext of a chunk to the current message.
    fn assemble(&mut self, counter: u64, plain: Vec<u8>) -> Result<(), String> {
        if self.partial.is_empty() {
            self.partial_start = counter;
        }
        self.partial.extend(plain);
        let Some(length) = self.partial.first_chunk::<4>().map(|l| 4 + u32::from_be_bytes(*l) as usize) else {
            return Ok(());
        };
        if self.partial.len() >= length {
            let message = std::mem::take(&mut self.partial);
            let tag = message.get(4..6).and_then(|t| t.try_into().ok()).map_or(0, u16::from_be_bytes);
            let kind = KINDS.iter().find(|k| k.0 == tag).map_or("unknown", |k| k.1);
            self.record(false, kind, self.partial_start, &message);
            self.report.log(|| log::about(kind, &message, self.peer.as_deref()?));
            self.received_messages += 1;
            if let Some(subsystems) = &self.options.subsystems {
                subsystems
                    .borrow_mut()
                    .handle_message(kind, &message)
                    .map_err(|error| format!("block store: {error}"))?;
            }
        }
        Ok(())
    }
}

impl Behaviour for Session {
    fn next(&mut self, now: Instant, released: bool) -> Next {
        let bytes = match self.options.write_sizes {
            None => self.fill(now, released).then(|| self.queue.pop_front()).flatten(),
            Some(sizes) => self.next_write(sizes, now, released),
        };
        match bytes {
            Some(bytes) => Next::Write(bytes),
            None if self.finishing || (self.source_is_exhausted && !self.options.keep_open) => Next::Done,
            None if self.source_is_exhausted || !self.established() || !released => Next::Wait,
            None => Next::At(self.due),
        }
    }

    fn read_size(&mut self) -> usize {
        random_read_size(&mut self.random)
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut incoming = std::mem::take(&mut self.incoming);
        incoming.push(bytes);
        let outcome = std::iter::from_fn(|| incoming.pop().map(|chunk| self.handle_chunk(chunk))).find(Result::is_err);
        self.incoming = incoming;
        outcome.unwrap_or(Ok(()))
    }

    fn end_of_stream(&mut self) -> Result<bool, String> {
        self.ended = true;
        if !self.incoming.is_empty() || !self.partial.is_empty() {
            return Err("the peer closed the connection in the middle of a message".to_owned());
        }
        if !self.established() {
            return Err("the peer closed the connection before the handshake was complete".to_owned());
        }
        // A peer that has sent everything waits for this side to end; an endless source ends with it.
        let (_, more) = self.source.size_hint();
        self.finishing |= more.is_none() || self.options.keep_open;
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
