//! Bounds on the contents of records. What an agent says is not trusted: the work that a record causes, here and in each query
//! that reads it, is bounded by what the agent had to send.
//!
//! An invalid record is replaced by a loss of the stage `ingest`: the sequence of the stream stays dense, the other records are
//! stored, and the agent does not send it again.

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::v1::{
    Chunk, ConnectionEvent, LatencyBlock, LogMessage, Loss, Message, NetworkAccount, Record, SocketAddress, TraceEvent,
    connection_event::Event, record::Kind,
};
use prost::Message as _;

use crate::metrics::{IngestMetrics, ReasonLabels};

/// Maximum bytes of a name: a kind, a peer's identity, a stage.
const MAX_NAME_BYTES: usize = 512;
/// Maximum bytes of a text: an error, a remark, a detail.
const MAX_TEXT_BYTES: usize = 16 << 10;
/// Maximum bytes of a preview. Agents send a hundred.
const MAX_PREVIEW_BYTES: usize = 512;
/// Maximum bytes of a chunk: its length, and what two bytes of length can count.
const MAX_CHUNK_BYTES: usize = 2 + 0xffff;
/// Maximum length of a message. Agents decode up to 100 MiB.
const MAX_MESSAGE_BYTES: u64 = 128 << 20;
/// Maximum number of chunks of a message: forty times those of the longest in full chunks.
const MAX_MESSAGE_CHUNKS: u64 = 1 << 16;
/// Maximum length of a log message. Agents split longer ones.
const MAX_LOG_MESSAGE_BYTES: usize = chainscope_logs::MAX_MESSAGE_BYTES;
/// Maximum size of the description of a tracepoint.
const MAX_ATTACHMENT_BYTES: usize = 64 << 10;
/// Maximum number of arguments of a tracepoint.
const MAX_ARGUMENTS: usize = 64;
/// Maximum number of peers of an event.
const MAX_PEERS: usize = 8;
/// Maximum number of tags of a run.
const MAX_TAGS: usize = 64;
/// Maximum number of reasons in an account.
const MAX_REASONS: usize = 256;
/// Maximum number of chunks that messages may refer to before more are sent.
const MAX_CREDIT: u64 = 1 << 20;

/// Validates the records of one session.
#[derive(Debug)]
pub(super) struct Validator {
    /// How many chunks beyond their first messages may still refer to. Each chunk that is sent adds one: searching the chunks
    /// of messages takes no more time than storing them took. Chunks of earlier sessions are part of it.
    credit: u64,
}

/// What is wrong with a record: a label of the metric, and part of the reason of the loss.
type Defect = &'static str;

impl Default for Validator {
    fn default() -> Self {
        Self { credit: MAX_MESSAGE_CHUNKS }
    }
}

impl Validator {
    /// Replaces and counts invalid records.
    pub(super) fn replace_invalid(&mut self, agent: &str, records: &mut [Record], metrics: &IngestMetrics) {
        for record in records {
            let Err(defect) = self.check(record) else { continue };
            warn_limited!(agent = %EscapedTruncated(agent), defect, "an invalid record of an agent is not stored");
            metrics.invalid_records.get_or_create(&ReasonLabels { reason: defect }).inc();
            *record = loss(record, defect);
        }
    }

    fn check(&mut self, record: &Record) -> Result<(), Defect> {
        name("target", &record.target)?;
        match &record.kind {
            Some(Kind::Chunk(chunk)) => self.chunk(chunk),
            Some(Kind::Message(message)) => self.message(message),
            Some(Kind::Connection(event)) => connection(event),
            Some(Kind::Loss(loss)) => name("loss", &loss.stage).and_then(|()| name("loss", &loss.reason)),
            Some(Kind::TargetEvent(event)) => name("event", &event.event).and_then(|()| text("event", &event.detail)),
            Some(Kind::NetworkAccount(terms)) => account(terms),
            Some(Kind::LogMessage(message)) => log_message(message),
            Some(Kind::TraceEvent(event)) => trace_event(event),
            Some(Kind::LatencyBlock(block)) => latency_block(block),
            Some(Kind::LatencyTransaction(transaction)) => {
                chainscope_latency::record::decode_transaction(0, transaction).map(drop)
            }
            None => Ok(()),
        }
    }

    fn chunk(&mut self, chunk: &Chunk) -> Result<(), Defect> {
        require("chunk size", chunk.wire.len() <= MAX_CHUNK_BYTES && chunk.plain.len() <= MAX_CHUNK_BYTES)?;
        self.credit = self.credit.saturating_add(1).min(MAX_CREDIT);
        Ok(())
    }

    fn message(&mut self, message: &Message) -> Result<(), Defect> {
        for part in [&message.protocol, &message.category, &message.kind, &message.peer_id] {
            name("message name", part)?;
        }
        text("message error", &message.error)?;
        require("preview", message.preview.as_ref().is_none_or(|preview| preview.len() <= MAX_PREVIEW_BYTES))?;
        require("message length", message.length <= MAX_MESSAGE_BYTES)?;
        require("message digest", matches!(message.sha256.len(), 0 | 32))?;
        address(message.remote.as_ref())?;
        let further = message.last_chunk.checked_sub(message.first_chunk).ok_or("chunk range")?;
        require("chunk range", further < MAX_MESSAGE_CHUNKS)?;
        self.credit = self.credit.checked_sub(further).ok_or("chunks that were not sent")?;
        Ok(())
    }
}

fn connection(event: &ConnectionEvent) -> Result<(), Defect> {
    match &event.event {
        Some(Event::Opened(opened)) => {
            address(opened.remote.as_ref())?;
            address(opened.local.as_ref())
        }
        Some(Event::Identified(peer)) => {
            [&peer.peer_id, &peer.protocol, &peer.network].into_iter().try_for_each(|part| name("peer", part))
        }
        Some(Event::Comment(comment)) => text("comment", comment),
        Some(Event::Gap(gap)) => text("gap", &gap.reason),
        Some(Event::StateChanged(state)) => {
            text("connection state", &state.reason)?;
            text("connection state", &state.remedy)
        }
        Some(Event::Closed(closed)) => name("close", &closed.by),
        // Written by the aggregator alone.
        Some(Event::Summary(_)) => Err("summary"),
        None => Ok(()),
    }
}

fn log_message(message: &LogMessage) -> Result<(), Defect> {
    require("log message", message.raw.len() <= MAX_LOG_MESSAGE_BYTES)?;
    name("log source", &message.source)
}

fn trace_event(event: &TraceEvent) -> Result<(), Defect> {
    [&event.provider, &event.name, &event.comm].into_iter().try_for_each(|part| name("tracepoint", part))?;
    require("peers of an event", event.peers.len() <= MAX_PEERS)?;
    event.peers.iter().try_for_each(|peer| text("peers of an event", peer))?;
    require("attachment", event.attachment.len() <= MAX_ATTACHMENT_BYTES)?;
    require("arguments", event.arguments.len() <= MAX_ARGUMENTS)
}

fn latency_block(block: &LatencyBlock) -> Result<(), Defect> {
    chainscope_latency::record::check(block)?;
    let Some(run) = &block.run else { return Ok(()) };
    let optional = [&run.build_id, &run.commit, &run.version].into_iter().flatten();
    optional.chain([&run.executable, &run.host, &run.kernel]).try_for_each(|part| text("a run", part))?;
    require("tags of a run", run.tags.len() <= MAX_TAGS)?;
    run.tags.iter().try_for_each(|tag| name("tags of a run", tag))?;
    run.functions.iter().try_for_each(|function| text("functions of a run", &function.name))
}

fn account(terms: &NetworkAccount) -> Result<(), Defect> {
    for counts in [&terms.bytes_dropped, &terms.messages_dropped] {
        require("account", counts.len() <= MAX_REASONS)?;
        counts.iter().try_for_each(|count| name("account", &count.reason))?;
    }
    Ok(())
}

fn address(address: Option<&SocketAddress>) -> Result<(), Defect> {
    let is_valid = |address: &SocketAddress| matches!(address.ip.len(), 4 | 16) && u16::try_from(address.port).is_ok();
    require("address", address.is_none_or(is_valid))
}

fn name(defect: Defect, text: &str) -> Result<(), Defect> {
    require(defect, text.len() <= MAX_NAME_BYTES)
}

fn text(defect: Defect, text: &str) -> Result<(), Defect> {
    require(defect, text.len() <= MAX_TEXT_BYTES)
}

fn require(defect: Defect, holds: bool) -> Result<(), Defect> {
    if holds { Ok(()) } else { Err(defect) }
}

/// The loss of an invalid record.
fn loss(record: &Record, defect: Defect) -> Record {
    let Record { time_ns, target, .. } = record;
    let loss = Loss {
        stage: "ingest".to_owned(),
        reason: format!("invalid record: {defect}"),
        records: 1,
        bytes: record.encoded_len() as u64,
        from_ns: *time_ns,
        to_ns: *time_ns,
        amount_unknown: false,
    };
    let target = if target.len() <= MAX_NAME_BYTES { target.clone() } else { String::new() };
    Record { time_ns: *time_ns, target, kind: Some(Kind::Loss(loss)) }
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::{Chunk, Message, Record, record::Kind};

    use super::{MAX_CREDIT, MAX_MESSAGE_CHUNKS, Validator};

    fn message(first_chunk: u64, last_chunk: u64) -> Record {
        let message = Message { first_chunk, last_chunk, ..Message::default() };
        Record { kind: Some(Kind::Message(message)), ..Record::default() }
    }

    #[test]
    fn messages_refer_to_no_more_chunks_than_were_sent() {
        let chunk = Record { kind: Some(Kind::Chunk(Chunk::default())), ..Record::default() };
        let mut validator = Validator::default();
        let longest = message(7, 7 + MAX_MESSAGE_CHUNKS - 1);
        assert_eq!(validator.check(&longest), Ok(()), "of an earlier session");
        assert_eq!(validator.check(&message(0, 1)), Ok(()));
        assert_eq!(validator.check(&message(0, 1)), Err("chunks that were not sent"));
        assert_eq!(validator.check(&message(5, 5)), Ok(()));
        for _ in 0..2 * MAX_CREDIT {
            assert_eq!(validator.check(&chunk), Ok(()));
        }
        let accepted = (0..100).filter(|_| validator.check(&longest).is_ok()).count() as u64;
        assert_eq!(accepted, MAX_CREDIT / (MAX_MESSAGE_CHUNKS - 1));
    }

    #[test]
    fn impossible_ranges_are_refused() {
        for (first, last) in [(0, u64::MAX), (1, 0), (u64::MAX, 0), (5, 5 + MAX_MESSAGE_CHUNKS)] {
            assert_eq!(Validator::default().check(&message(first, last)), Err("chunk range"), "{first} {last}");
        }
        assert_eq!(Validator::default().check(&message(u64::MAX, u64::MAX)), Ok(()));
    }
}
