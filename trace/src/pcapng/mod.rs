//! P2P messages as packets of a pcap-ng file, for Wireshark and its relatives.
//!
//! A tracepoint passes a message's type and payload, not packets. The file has them as the packets that could have carried them
//! over TCP, each peer's in a stream of its own: the bytes of payloads, the times, and the addresses that the node says are
//! real, the headers of IP and TCP are not, nor is the start of a message's header, which is that of Bitcoin's main network. The
//! node's own address is one of those that are reserved for documentation.
//!
//! What is missing of a message is missing in the stream as well: the sequence numbers go on behind it, and a comment of the
//! packet says so.

mod stream;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{self, Write},
    time::Duration,
};

use chainscope_hygiene::EscapedTruncated;
use pcap_file::{
    DataLink, Endianness, PcapError,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};

use self::stream::{Sender, Stream};
use crate::{
    accounting::Accounting,
    content::wire,
    event::{Event, Incomplete, Value},
    view::{Direction, accounting_line},
};

/// What is to know about the file, in its header.
const COMMENT: &str = "P2P messages captured at static tracepoints of a node. Payloads, times and the addresses of peers are as \
    the node passed them; the headers of IP, TCP and messages are made up, with the magic bytes of Bitcoin's main network.";
/// Processes that have an address of their own.
const MAX_PROCESSES: usize = 254;
/// Payload of a packet. The greatest IP packet is of 65535 bytes.
const SEGMENT: usize = 60_000;
/// Peers whose streams go on; beyond it all begin new ones.
const MAX_STREAMS: usize = 65_536;
/// Longest comment, in bytes; an option can have 65535.
const MAX_COMMENT: usize = 32_768;
/// Timestamps are in units of 10⁻⁹ seconds.
const NANOSECONDS: u8 = 9;

/// Writes a file.
pub struct Writer<W: Write> {
    file: PcapNgWriter<W>,
    /// Processes in the order in which they came; each has an address.
    processes: Vec<u32>,
    /// By process and number of the peer.
    streams: BTreeMap<(u32, Option<i64>), Stream>,
    /// Number of streams that were begun.
    begun: u32,
    messages: u64,
    /// Hits that were lost, as far as it was said.
    lost: u64,
    /// Those that no packet mentions yet.
    unmentioned: u64,
}

impl<W: Write> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("messages", &self.messages).finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Begins a file. `program` is the name and version of what writes it.
    ///
    /// # Errors
    /// Those of `file`.
    pub fn new(file: W, program: &str) -> io::Result<Self> {
        let section = SectionHeaderBlock {
            // The library writes the times of statistics right in this order only.
            endianness: Endianness::Big,
            options: vec![
                SectionHeaderOption::Comment(COMMENT.into()),
                SectionHeaderOption::UserApplication(program.to_owned().into()),
            ],
            ..SectionHeaderBlock::default()
        };
        let mut file = PcapNgWriter::with_section_header(file, section).map_err(cause)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName("tracepoints".into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        file.write_pcapng_block(interface).map_err(cause)?;
        Ok(Self {
            file,
            processes: Vec::new(),
            streams: BTreeMap::new(),
            begun: 0,
            messages: 0,
            lost: 0,
            unmentioned: 0,
        })
    }

    /// Number of messages that were written.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// The file.
    pub fn get_mut(&mut self) -> &mut W {
        self.file.get_mut()
    }

    /// Says what was lost so far: the next packet has a comment about it.
    pub fn account(&mut self, accounting: &Accounting) {
        let lost = accounting.total().all_dropped();
        self.unmentioned += lost.saturating_sub(self.lost);
        self.lost = lost;
    }

    /// Writes the message of an event; nothing if it has none.
    ///
    /// # Errors
    /// Those of the file.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let Some(direction) = Direction::of(event) else { return Ok(()) };
        let time = Duration::from_nanos(u64::try_from(event.time.wall_ns).unwrap_or(0));
        let sender = match direction {
            Direction::Inbound => Sender::Peer,
            Direction::Outbound => Sender::Node,
        };
        let message = Message::of(event);
        let key = (event.pid, event.integer("peer_id").and_then(|id| i64::try_from(id).ok()));
        if !self.streams.contains_key(&key) {
            self.begin(key, event, sender, time)?;
        }
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(()) };
        let mut comments = message.comments;
        if std::mem::take(&mut self.unmentioned) > 0 {
            comments.insert(0, format!("{} hits of tracepoints were lost up to here", self.lost));
        }
        let bytes = [&message.header[..], message.payload].concat();
        for segment in bytes.chunks(SEGMENT) {
            let packet = stream.packet(sender, segment)?;
            write(&mut self.file, time, packet, std::mem::take(&mut comments))?;
        }
        stream.skip(sender, message.missing);
        self.messages += 1;
        Ok(())
    }

    /// The start of a connection, so that it is not taken for an earlier one between the same addresses.
    fn begin(&mut self, key: (u32, Option<i64>), event: &Event, first: Sender, time: Duration) -> io::Result<()> {
        if self.streams.len() >= MAX_STREAMS {
            self.streams.clear();
        }
        let known = self.processes.iter().position(|pid| *pid == event.pid);
        let process = known.unwrap_or_else(|| {
            self.processes.truncate(MAX_PROCESSES - 1);
            self.processes.push(event.pid);
            self.processes.len() - 1
        });
        let node = u8::try_from(process + 1).unwrap_or(u8::MAX);
        let address = event.show("address").to_string();
        let mut stream = Stream::new(node, self.begun, &address, key.1);
        self.begun = self.begun.wrapping_add(1);
        let shown = if stream.has_own_address() { String::new() } else { format!(", shown as {}", stream.peer()) };
        let comment = format!(
            "peer {} ({}, {}{shown}) of process {}",
            event.show("peer_id"),
            EscapedTruncated(&event.show("connection_type").to_string()),
            EscapedTruncated(&address),
            event.pid,
        );
        let mut comments = vec![comment];
        for packet in stream.handshake(first)? {
            write(&mut self.file, time, packet, std::mem::take(&mut comments))?;
        }
        self.streams.insert(key, stream);
        Ok(())
    }

    /// Ends the file: its statistics are the accounting.
    ///
    /// # Errors
    /// Those of the file.
    pub fn finish(&mut self, accounting: &Accounting) -> io::Result<()> {
        let total = accounting.total();
        let nanoseconds = |wall_ns: i64| u64::try_from(wall_ns).unwrap_or(0);
        let statistics = InterfaceStatisticsBlock {
            interface_id: 0,
            timestamp: nanoseconds(accounting.until.wall_ns),
            options: vec![
                InterfaceStatisticsOption::Comment(bounded(accounting_line(accounting))),
                InterfaceStatisticsOption::IsbStartTime(nanoseconds(accounting.from.wall_ns)),
                InterfaceStatisticsOption::IsbEndTime(nanoseconds(accounting.until.wall_ns)),
                InterfaceStatisticsOption::IsbIfRecv(total.hits),
                InterfaceStatisticsOption::IsbIfDrop(total.all_dropped()),
            ],
        };
        self.file.write_pcapng_block(statistics).map_err(cause)?;
        self.file.get_mut().flush()
    }
}

/// A message as it is on the wire.
struct Message<'a> {
    header: [u8; wire::HEADER],
    payload: &'a [u8],
    /// Bytes of the payload that were not captured.
    missing: u64,
    comments: Vec<String>,
}

impl<'a> Message<'a> {
    fn of(event: &'a Event) -> Self {
        let size = event.integer("size").and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
        let (payload, claimed, cause) = match event.get("payload") {
            Some(Value::Bytes { bytes, claimed, incomplete }) => (&bytes[..], *claimed, *incomplete),
            _ => (&[][..], size, (size > 0).then_some(Incomplete::Unreadable)),
        };
        let mut comments = Vec::new();
        let checksum = match cause {
            None => wire::checksum(payload),
            Some(cause) => {
                let cause = match cause {
                    Incomplete::Limit => "limit",
                    Incomplete::Unreadable => "unreadable",
                    Incomplete::Dropped => "dropped",
                };
                let captured = payload.len();
                comments.push(format!("only {captured} of {claimed} bytes of the payload were captured: {cause}"));
                [0; 4]
            }
        };
        let name = match event.get("message_type") {
            Some(Value::Text { bytes, is_truncated: false }) => wire::name(bytes),
            _ => None,
        };
        if name.is_none() {
            let message_type = event.show("message_type").to_string();
            comments.push(format!("a header cannot have the message type '{}'", EscapedTruncated(&message_type)));
        }
        let length = u32::try_from(claimed).unwrap_or(u32::MAX);
        Self {
            header: wire::header_with(name.unwrap_or_default(), length, checksum),
            payload,
            missing: claimed.saturating_sub(payload.len() as u64),
            comments,
        }
    }
}

fn write<W: Write>(
    file: &mut PcapNgWriter<W>,
    timestamp: Duration,
    packet: Vec<u8>,
    comments: Vec<String>,
) -> io::Result<()> {
    let packet = EnhancedPacketBlock {
        interface_id: 0,
        timestamp,
        original_len: u32::try_from(packet.len()).unwrap_or(u32::MAX),
        data: packet.into(),
        options: comments.into_iter().map(|comment| EnhancedPacketOption::Comment(bounded(comment))).collect(),
    };
    file.write_pcapng_block(packet).map(drop).map_err(cause)
}

/// A comment that fits its option.
fn bounded(mut comment: String) -> Cow<'static, str> {
    if comment.len() > MAX_COMMENT {
        comment.truncate(comment.floor_char_boundary(MAX_COMMENT));
        comment.push('…');
    }
    comment.into()
}

fn cause(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
