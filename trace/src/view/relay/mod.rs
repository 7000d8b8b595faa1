//! Block relay: which peer announced a block first, which delivered it, which did not answer, and how long each stage took until
//! the block was connected. From `net:*_message` and `validation:block_connected` of Bitcoin Core, Tapyrus, and nodes with headers of
//! Bitcoin. Several processes are distinguished.

mod wire;

use std::{collections::VecDeque, sync::Arc};

use serde_json::{Value as Json, json};

use self::wire::{Hash, Step};
use super::{
    Lines, NS_PER_S, View, seconds_between,
    traffic::{Direction, Message},
};
use crate::{
    accounting::Accounting,
    attachment::Attachment,
    content::Protocol,
    event::{Event, Timestamp, Value},
    json::rfc3339,
    show::reversed_hex,
};

/// Blocks that are relayed at the same time. Peers can announce blocks that do not exist; the oldest ones are forgotten.
const MAX_BLOCKS: usize = 256;
/// Steps that are kept of a block.
const MAX_STEPS: usize = 1024;
/// Connected blocks of the summary: the last ones.
const MAX_CONNECTED: usize = 1000;
/// After this time without an answer a peer stalls (`BLOCK_STALLING_TIMEOUT_DEFAULT` of Bitcoin Core).
const STALLING_NS: u64 = 2 * NS_PER_S;

/// Blocks on their way to the node.
#[derive(Debug, Default)]
pub struct Relay {
    /// The one that was heard of last is the last.
    blocks: VecDeque<Block>,
    connected: VecDeque<Json>,
    /// Blocks that were connected last, by process: late announcements of them are no new blocks.
    known: VecDeque<(u32, Hash)>,
    /// The first process, and whether there are others: then lines name theirs.
    pid: Option<u32>,
    has_several: bool,
    forgotten: u64,
}

/// A block that is not connected.
#[derive(Debug)]
struct Block {
    /// The process that it is on its way to.
    pid: u32,
    hash: Hash,
    steps: Vec<Taken>,
}

/// What a peer did for a block, or was asked for.
#[derive(Debug)]
struct Taken {
    step: Step,
    time: Timestamp,
    message_type: String,
    peer_id: Option<i64>,
    /// Id, connection type and address of the peer.
    peer: String,
    /// Of a request: whether it was said that the peer stalls.
    is_reported: bool,
}

impl Relay {
    fn message(&mut self, message: &Message<'_>, event: &Event) {
        let Some(Value::Bytes { bytes, .. }) = event.get("payload") else { return };
        let message_type = message.message_type().to_string();
        let is_inbound = message.direction == Direction::Inbound;
        let protocol = Protocol::of(&event.attachment);
        for (step, hash) in wire::blocks(protocol, &message_type, is_inbound, bytes) {
            let peer = format!("{} ({}, {})", message.peer(), message.connection_type(), message.address());
            let taken = Taken {
                step,
                time: event.time,
                message_type: message_type.clone(),
                peer_id: message.peer_id(),
                peer,
                is_reported: false,
            };
            self.add(event.pid, hash, taken);
        }
    }

    fn add(&mut self, pid: u32, hash: Hash, taken: Taken) {
        if let Some(block) = self.blocks.iter_mut().find(|block| (block.pid, block.hash) == (pid, hash)) {
            if block.steps.len() < MAX_STEPS {
                block.steps.push(taken);
            }
            return;
        }
        // Of others, such as requested old blocks, there is no first announcement.
        if matches!(taken.step, Step::Announced | Step::Compact) && !self.known.contains(&(pid, hash)) {
            if self.blocks.len() == MAX_BLOCKS {
                self.blocks.pop_front();
                self.forgotten += 1;
            }
            self.blocks.push_back(Block { pid, hash, steps: vec![taken] });
        }
    }

    fn connect(&mut self, event: &Event, out: &mut Lines) {
        let Some(Value::Bytes { bytes, .. }) = event.get("hash") else { return };
        let Ok(hash) = Hash::try_from(bytes.as_ref()) else { return };
        self.known.push_back((event.pid, hash));
        while self.known.len() > MAX_BLOCKS {
            self.known.pop_front();
        }
        let found = self.blocks.iter().position(|block| (block.pid, block.hash) == (event.pid, hash));
        let Some(block) = found.and_then(|index| self.blocks.remove(index)) else { return };
        let height = event.show("height");
        block.print(&format!("{}Block {height}", of_process(event.pid, self.has_several)), Some(event.time), out);
        self.connected.push_back(block.json(event));
        while self.connected.len() > MAX_CONNECTED {
            self.connected.pop_front();
        }
    }

    fn report_stalls(&mut self, now: u64, out: &mut Lines) {
        let mut late: Vec<(u64, String)> = Vec::new();
        let several = self.has_several;
        for block in &mut self.blocks {
            let due: Vec<usize> = block
                .unanswered()
                .filter(|(_, request)| !request.is_reported)
                .filter(|(_, request)| request.time.monotonic_ns.saturating_add(STALLING_NS) < now)
                .map(|(index, _)| index)
                .collect();
            for index in due {
                let Some(request) = block.steps.get_mut(index) else { continue };
                request.is_reported = true;
                let process = of_process(block.pid, several);
                let hash = reversed_hex(&block.hash);
                let (time, peer, kind) = (rfc3339(request.time.wall_ns), &request.peer, &request.message_type);
                let line =
                    format!("{process}Block ({hash}): peer {peer} stalls: no answer to {kind} of {time} for 2 s");
                late.push((request.time.monotonic_ns, line));
            }
        }
        // In the order in which they became late, which may be long before this poll.
        late.sort_by_key(|(time, _)| *time);
        late.into_iter().for_each(|(_, line)| out.line(format_args!("{line}")));
    }
}

/// What precedes the lines of a process if there are several.
fn of_process(pid: u32, has_several: bool) -> String {
    if has_several { format!("Process {pid}: ") } else { String::new() }
}

impl Block {
    /// Who announced it, each peer once; the first one first.
    fn announcements(&self) -> Vec<&Taken> {
        let mut first: Vec<&Taken> = Vec::new();
        for step in self.steps.iter().filter(|step| matches!(step.step, Step::Announced | Step::Compact)) {
            if !first.iter().any(|known| known.peer_id == step.peer_id) {
                first.push(step);
            }
        }
        first
    }

    /// The message that completed it: a block, or missing transactions, or a compact block with none missing.
    fn delivery(&self) -> Option<&Taken> {
        let first = |step| self.steps.iter().find(|taken| taken.step == step);
        first(Step::Delivered).or_else(|| first(Step::Compact))
    }

    /// The first request to the peer that delivered it.
    fn request(&self, delivery: &Taken) -> Option<&Taken> {
        let is_to_it = |taken: &&Taken| taken.step == Step::Requested && taken.peer_id == delivery.peer_id;
        self.steps.iter().take_while(|taken| taken.time <= delivery.time).find(is_to_it)
    }

    /// Requests after which the peer delivered nothing, with their index.
    fn unanswered(&self) -> impl Iterator<Item = (usize, &Taken)> {
        let is_answered = |index: usize, request: &Taken| {
            let later = self.steps.iter().skip(index + 1);
            later
                .filter(|taken| taken.peer_id == request.peer_id)
                .any(|taken| matches!(taken.step, Step::Delivered | Step::Compact))
        };
        let requests = self.steps.iter().enumerate().filter(|(_, taken)| taken.step == Step::Requested);
        requests.filter(move |(index, request)| !is_answered(*index, request))
    }

    /// Its line, and one for each peer that did not answer. `connected`: when it was.
    fn print(&self, name: &str, connected: Option<Timestamp>, out: &mut Lines) {
        let announcements = self.announcements();
        let Some((first, others)) = announcements.split_first() else { return };
        let after = |time: Timestamp| seconds_between(first.time.monotonic_ns, time.monotonic_ns);
        let hash = reversed_hex(&self.hash);
        let (time, kind, peer) = (rfc3339(first.time.wall_ns), &first.message_type, &first.peer);
        out.line(format_args!("{name} ({hash}) announced {time} by peer {peer} with {kind}"));
        let delivery = self.delivery();
        if let Some(request) = delivery.and_then(|delivery| self.request(delivery)) {
            out.line(format_args!("  +{:.6} s requested with {}", after(request.time), request.message_type));
        }
        if let Some(delivery) = delivery {
            let (peer, kind) = (&delivery.peer, &delivery.message_type);
            out.line(format_args!("  +{:.6} s delivered by peer {peer} with {kind}", after(delivery.time)));
        }
        match connected {
            Some(connected) => out.line(format_args!("  +{:.6} s connected", after(connected))),
            None => out.line(format_args!("  not connected")),
        }
        for other in others {
            let (peer, kind) = (&other.peer, &other.message_type);
            out.line(format_args!("  +{:.6} s announced by peer {peer} with {kind}", after(other.time)));
        }
        for (_, request) in self.unanswered() {
            let (peer, kind) = (&request.peer, &request.message_type);
            out.line(format_args!("  +{:.6} s {kind} to peer {peer} without an answer", after(request.time)));
        }
    }

    fn json(&self, event: &Event) -> Json {
        let announcements = self.announcements();
        let first = announcements.first().map(|first| first.time).unwrap_or_default();
        let step = |taken: &Taken| {
            json!({
                "peer_id": taken.peer_id,
                "peer": taken.peer,
                "message_type": taken.message_type,
                "time": rfc3339(taken.time.wall_ns),
                "after_ns": taken.time.monotonic_ns.saturating_sub(first.monotonic_ns),
            })
        };
        let delivery = self.delivery();
        json!({
            "hash": reversed_hex(&self.hash),
            "pid": self.pid,
            "height": event.integer("height").and_then(|height| i64::try_from(height).ok()),
            "announcements": announcements.iter().map(|taken| step(taken)).collect::<Vec<_>>(),
            "request": delivery.and_then(|delivery| self.request(delivery)).map(step),
            "delivery": delivery.map(step),
            "connected_after_ns": event.time.monotonic_ns.saturating_sub(first.monotonic_ns),
            "unanswered": self.unanswered().map(|(_, taken)| step(taken)).collect::<Vec<_>>(),
        })
    }
}

impl View for Relay {
    fn patterns(&self) -> Vec<String> {
        Message::PATTERNS.into_iter().chain(["validation:block_connected"]).map(str::to_owned).collect()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        Message::is_passed_by(provider, name) || (provider, name) == ("validation", "block_connected")
    }

    fn needs_payloads(&self) -> bool {
        true
    }

    fn begin(&mut self, _start: Timestamp, _attachments: &[Arc<Attachment>], out: &mut Lines) {
        out.line(format_args!("Logging block relay"));
    }

    fn advance(&mut self, monotonic_ns: u64, out: &mut Lines) {
        self.report_stalls(monotonic_ns, out);
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        self.has_several |= *self.pid.get_or_insert(event.pid) != event.pid;
        match Message::of(event) {
            Some(message) => self.message(&message, event),
            None => self.connect(event, out),
        }
    }

    fn finish(&mut self, _accounting: &Accounting, out: &mut Lines) {
        for block in &self.blocks {
            block.print(&format!("{}Block", of_process(block.pid, self.has_several)), None, out);
        }
        if self.forgotten > 0 {
            out.line(format_args!("{} blocks that were announced and not connected are forgotten", self.forgotten));
        }
    }

    fn summary(&self) -> Option<Json> {
        let pending: Vec<String> = self.blocks.iter().map(|block| reversed_hex(&block.hash)).collect();
        Some(json!({ "blocks": self.connected, "not_connected": pending, "forgotten": self.forgotten }))
    }
}
