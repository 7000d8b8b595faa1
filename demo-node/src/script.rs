//! Recorded conversations and their replay in lock step: each side writes only after it has read what it had read in the recording.
//!
//! Formats (`vectors/tezos/INDEX.md`): `payloads.csv` has rows `direction,hex` of TCP payloads; `*.syscalls.jsonl` has the system calls of
//! the local side, with its partial writes, odd read sizes and `EAGAIN`.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::behaviour::{Behaviour, Next, Role};
use crate::wire::{Chunks, Cipher, Identity, ciphers};

/// One system call of one side of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// write(2) of these bytes.
    Send(Vec<u8>),
    /// read(2) that returns exactly these bytes.
    Receive(Vec<u8>),
}

/// One side of a recorded conversation.
#[derive(Debug, Clone)]
pub struct Script {
    /// Role of this side.
    pub role: Role,
    /// Its system calls, in order.
    pub steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Call {
    op: String,
    #[serde(default)]
    data: String,
}

impl Script {
    /// The local side of the folder's conversation: `payloads.csv`, or `<session>.syscalls.jsonl`.
    ///
    /// # Errors
    /// If there is no such file, or it is not in its format.
    pub fn load(folder: &Path, session: Option<&str>) -> Result<Self> {
        let path = match session {
            Some(session) => folder.join(format!("{session}.syscalls.jsonl")),
            None => folder.join("payloads.csv"),
        };
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let script = if session.is_some() { Self::calls(&text) } else { Self::payloads(&text) };
        script.with_context(|| format!("in {}", path.display()))
    }

    fn payloads(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        ensure!(lines.next() == Some("direction,hex"), "the first line is not \"direction,hex\"");
        let steps = lines.map(|line| match line.split_once(',') {
            Some(("sent", hex)) => Ok(Step::Send(hex::decode(hex)?)),
            Some(("received", hex)) => Ok(Step::Receive(hex::decode(hex)?)),
            _ => bail!("not a row: {line:.40}"),
        });
        Ok(Self { role: Role::Initiator, steps: steps.collect::<Result<_>>()? })
    }

    fn calls(text: &str) -> Result<Self> {
        let mut script = Self { role: Role::Initiator, steps: Vec::new() };
        for line in text.lines() {
            let call: Call = serde_json::from_str(line).with_context(|| format!("not a call: {line:.40}"))?;
            let data = hex::decode(&call.data)?;
            match call.op.as_str() {
                "connect" => script.role = Role::Initiator,
                "accept" => script.role = Role::Responder,
                "write" => script.steps.push(Step::Send(data)),
                // EAGAIN: the event loop has its own.
                "read" if data.is_empty() => {}
                "read" => script.steps.push(Step::Receive(data)),
                "close" => {}
                other => bail!("unknown call {other:?}"),
            }
        }
        Ok(script)
    }

    /// The same conversation with connector and acceptor exchanged: same messages, cut at the same places, sealed anew
    /// because the nonces depend on the role.
    ///
    /// # Errors
    /// If a chunk does not open with the local identity.
    pub fn swap_roles(&self, local: &Identity, remote: &Identity) -> Result<Self> {
        let role = match self.role {
            Role::Initiator => Role::Responder,
            Role::Responder => Role::Initiator,
        };
        let (mut sent, mut received) = (self.stream(true), self.stream(false));
        let first = |stream: &[u8]| -> Result<Vec<u8>> {
            let mut chunks = Chunks::default();
            chunks.push(stream);
            Ok(chunks.pop().context("no connection message")?.to_vec())
        };
        let (ours, theirs) = (first(&sent)?, first(&received)?);
        let keys = |secret: &Identity, role, ours: &[u8], theirs: &[u8]| {
            ciphers(secret.secret_key(), role, ours, theirs).context("connection message too short")
        };
        let (old_sent, old_received) = keys(local, self.role, &ours, &theirs)?;
        let (new_sent, _) = keys(local, role, &ours, &theirs)?;
        // The remote's own key seals what the remote sends.
        let (new_received, _) = keys(remote, self.role, &theirs, &ours)?;
        sent = reseal(&sent, old_sent, new_sent).context("sent")?;
        received = reseal(&received, old_received, new_received).context("received")?;
        let (mut sent, mut received) = (sent.as_slice(), received.as_slice());
        let steps = self.steps.iter().map(|step| {
            let (stream, length) = match step {
                Step::Send(bytes) => (&mut sent, bytes.len()),
                Step::Receive(bytes) => (&mut received, bytes.len()),
            };
            let (now, later) = stream.split_at_checked(length).context("shorter than before")?;
            *stream = later;
            Ok(match step {
                Step::Send(_) => Step::Send(now.to_vec()),
                Step::Receive(_) => Step::Receive(now.to_vec()),
            })
        });
        Ok(Self { role, steps: steps.collect::<Result<_>>()? })
    }

    /// The script of the other side: it sends what this one receives, one write per chunk.
    #[must_use]
    pub fn mirrored(&self) -> Self {
        let role = match self.role {
            Role::Initiator => Role::Responder,
            Role::Responder => Role::Initiator,
        };
        let mut steps = Vec::new();
        for run in self.steps.chunk_by(|a, b| matches!((a, b), (Step::Receive(_), Step::Receive(_)))) {
            match run.first() {
                Some(Step::Send(bytes)) => steps.push(Step::Receive(bytes.clone())),
                _ => steps.push(Step::Send(run.iter().flat_map(|s| s.bytes().iter().copied()).collect())),
            }
        }
        // Runs end where the recorded reads did, not always at the end of a chunk: what is left waits for the next run.
        let mut cut = Vec::new();
        let mut chunks = Chunks::default();
        let mut open = 0;
        for step in steps {
            match step {
                Step::Send(bytes) => {
                    // Each run is written at once to keep the recorded order; each whole chunk is a write of its own.
                    let mut rest = bytes.as_slice();
                    chunks.push(rest);
                    while let Some(chunk) = chunks.pop() {
                        let (now, later) = rest.split_at((chunk.len() - open).min(rest.len()));
                        cut.push(Step::Send(now.to_vec()));
                        (rest, open) = (later, 0);
                    }
                    open += rest.len();
                    if !rest.is_empty() {
                        cut.push(Step::Send(rest.to_vec()));
                    }
                }
                receive @ Step::Receive(_) => cut.push(receive),
            }
        }
        Self { role, steps: cut }
    }

    /// All bytes of one direction.
    #[must_use]
    pub fn stream(&self, sent: bool) -> Vec<u8> {
        let of = |step: &&Step| matches!(step, Step::Send(_)) == sent;
        self.steps.iter().filter(of).flat_map(|s| s.bytes().iter().copied()).collect()
    }
}

impl Step {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Send(bytes) | Self::Receive(bytes) => bytes,
        }
    }
}

fn reseal(stream: &[u8], mut old: Cipher, mut new: Cipher) -> Result<Vec<u8>> {
    let mut chunks = Chunks::default();
    chunks.push(stream);
    let mut sealed = chunks.pop().context("no connection message")?.to_vec();
    let mut counter = 0;
    while let Some(chunk) = chunks.pop() {
        let plain =
            old.open(chunk.get(2..).unwrap_or_default()).with_context(|| format!("chunk {counter} does not open"))?;
        sealed.extend(new.seal(&plain));
        counter += 1;
    }
    ensure!(chunks.is_empty(), "the last chunk is not whole");
    Ok(sealed)
}

/// Plays one side of a script and checks what it reads.
pub struct Player {
    steps: VecDeque<Step>,
    // Length of the prefix of the first step, a `Receive`, that has arrived.
    arrived: usize,
    // Request as many bytes as the recorded read returned instead of Octez's 16,384.
    exact_reads: bool,
}

impl Player {
    /// Plays `script`. `exact_reads`: each read requests the number of bytes that the recorded one returned.
    #[must_use]
    pub fn new(script: &Script, exact_reads: bool) -> Self {
        Self { steps: script.steps.iter().cloned().collect(), arrived: 0, exact_reads }
    }

    fn wanted(&self) -> usize {
        let ahead = self.steps.iter().take_while(|s| matches!(s, Step::Receive(_))).map(|s| s.bytes().len());
        if self.exact_reads { ahead.take(1).sum::<usize>() } else { ahead.sum() }
    }
}

impl Behaviour for Player {
    fn next(&mut self, _now: Instant, released: bool) -> Next {
        match self.steps.front() {
            Some(_) if !released => Next::Wait,
            Some(Step::Receive(_)) => Next::Wait,
            Some(Step::Send(_)) => match self.steps.pop_front() {
                Some(Step::Send(bytes)) => Next::Write(bytes),
                _ => Next::Wait,
            },
            None => Next::Done,
        }
    }

    fn read_size(&mut self) -> usize {
        match self.wanted() {
            // At the end: a read that detects surplus bytes.
            0 if self.steps.is_empty() => 2000,
            0 => 0,
            more => (more - self.arrived).min(16_384),
        }
    }

    fn received(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let Some(Step::Receive(expected)) = self.steps.front() else {
                return Err(format!("{} bytes more than recorded", bytes.len()));
            };
            let rest = expected.get(self.arrived..).unwrap_or_default();
            let (now, later) = bytes.split_at(rest.len().min(bytes.len()));
            if !rest.starts_with(now) {
                return Err(format!("other bytes than recorded, {} steps before the end", self.steps.len()));
            }
            self.arrived += now.len();
            if now.len() == rest.len() {
                self.arrived = 0;
                self.steps.pop_front();
            }
            bytes = later;
        }
        Ok(())
    }

    fn end_of_stream(&mut self) -> Result<bool, String> {
        match self.steps.len() {
            0 => Ok(true),
            left => Err(format!("the peer closed the connection {left} steps before the end")),
        }
    }
}
