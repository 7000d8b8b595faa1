//! Messages as packets, as Wireshark's dissector reads them.

use std::{
    collections::BTreeMap,
    io::Write as _,
    process::{Command, Stdio},
};

use chainscope_trace::{Accounting, Counts, Event, Incomplete, Timestamp, Value, pcapng::Writer};
use pcap_file::pcapng::{
    Block, PcapNgReader,
    blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption},
};
use proptest::prelude::*;

use crate::support::{START, accounting, attachment, event, text};

fn message(ms: u64, direction: &str, peer: (i64, &str), kind: &str, payload: Value) -> Event {
    let attachment = attachment("bitcoin-core-v31", &format!("net:{direction}_message"));
    let size = match &payload {
        Value::Bytes { claimed, .. } => *claimed,
        _ => 77,
    };
    let arguments = [Value::Signed(peer.0), text(peer.1), text("inbound"), text(kind), Value::Unsigned(size), payload];
    event(&attachment, ms, arguments.into())
}

fn of_process(event: Event, pid: u32) -> Event {
    Event { pid, ..event }
}

fn file(events: &[Event], accounting: &Accounting) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "chainscope test").unwrap();
    events.iter().for_each(|event| writer.event(event).unwrap());
    assert_eq!(writer.messages(), events.len() as u64);
    writer.finish(accounting).unwrap();
    std::mem::take(writer.get_mut())
}

/// What tshark prints of the packets that a filter selects, by its fields.
fn tshark(file: &[u8], filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-r", "-", "-Y", filter, "-T", "fields", "-E", "occurrence=a"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("tshark starts: run `make setup`");
    let mut input = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(file).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

const V4: (i64, &str) = (1, "203.0.113.5:51234");
const V6: (i64, &str) = (2, "[2001:db8:7::9]:8333");
const ONION: (i64, &str) = (3, "pg6mmjiyjmcrsslvykfwnntlaru7p5svn6y2ymmju6nubxndf4pscryd.onion:18333");

/// Each with its type, its length and its own stream, in both directions; the largest whole.
#[test]
fn messages_are_dissected() {
    let hash = [&[0x11; 31][..], &[0x22]].concat();
    let inventory = [&[1, 2, 0, 0, 0][..], &hash].concat();
    // A transaction with a script of 4 MB.
    let script = vec![0x51; 3_999_000];
    let mut large = vec![1, 0, 0, 0, 1];
    large.extend([&[7; 32][..], &[5, 0, 0, 0, 0xfe], &3_999_000_u32.to_le_bytes(), &script, &[0xff; 4]].concat());
    large.extend([&[1][..], &1234_u64.to_le_bytes(), &[1, 0x51], &[0; 4]].concat());
    let again = (9, V4.1);
    let events = [
        message(1, "inbound", V4, "ping", Value::bytes(vec![8, 7, 6, 5, 4, 3, 2, 1])),
        message(2, "outbound", V4, "pong", Value::bytes(vec![8, 7, 6, 5, 4, 3, 2, 1])),
        message(3, "inbound", V6, "inv", Value::bytes(inventory)),
        message(4, "inbound", V4, "tx", Value::bytes(large.clone())),
        message(5, "outbound", ONION, "verack", Value::bytes(vec![])),
        // The address of an earlier connection, and that of another node's.
        message(6, "inbound", again, "verack", Value::bytes(vec![])),
        of_process(message(7, "inbound", V4, "sendheaders", Value::bytes(vec![])), 5000),
    ];
    let file = file(&events, &accounting(&events));
    let found =
        tshark(&file, "bitcoin", &["bitcoin.command", "bitcoin.length", "tcp.stream", "ip.src", "frame.time_epoch"]);
    let row = |command: &str, length: usize, stream: u32, source: &str, ms: u64| {
        let time = format!("1626255000.{ms:03}000000");
        [command.to_owned(), length.to_string(), stream.to_string(), source.to_owned(), time].to_vec()
    };
    let expected = [
        row("ping", 8, 0, "203.0.113.5", 1),
        row("pong", 8, 0, "192.0.2.1", 2),
        row("inv", 37, 1, "", 3),
        row("tx", large.len(), 0, "203.0.113.5", 4),
        row("verack", 0, 2, "", 5),
        row("verack", 0, 3, "203.0.113.5", 6),
        row("sendheaders", 0, 4, "203.0.113.5", 7),
    ];
    assert_eq!(found, expected);
    let content = [
        "bitcoin.ping.nonce",
        "bitcoin.inv.type",
        "bitcoin.inv.hash",
        "bitcoin.tx.out.value",
        "bitcoin.tx.in.sig_script",
    ];
    let found = tshark(&file, "bitcoin.ping || bitcoin.inv || bitcoin.tx", &content);
    assert_eq!(found[0][0], "0x0102030405060708");
    assert_eq!((&*found[1][1], &*found[1][2]), ("2", &*hex::encode(&hash)));
    assert_eq!(found[2][3], "1234");
    assert!(found[2][4] == hex::encode(&script), "{:.100}", found[2][4]);
    assert_eq!(
        tshark(
            &file,
            "tcp.analysis.lost_segment || tcp.analysis.retransmission || tcp.analysis.out_of_order || _ws.malformed",
            &["frame.number"]
        ),
        Vec::<Vec<String>>::new()
    );

    let comments = tshark(&file, "frame.comment", &["frame.comment", "ipv6.dst"]);
    let address = ONION.1;
    let onion = format!("peer 3 (inbound, {address}, shown as [2001:db8:1::3]:18333) of process 4711");
    assert_eq!(comments[0][0], "peer 1 (inbound, 203.0.113.5:51234) of process 4711");
    assert_eq!(comments[2], [onion, "2001:db8:1::3".to_owned()]);
    assert_eq!(comments.len(), 5);
}

/// What is missing has a comment, and messages after it are dissected.
#[test]
fn what_is_missing_is_marked() {
    let cut = |captured: usize, claimed, cause| Value::Bytes {
        bytes: vec![5; captured].into(),
        claimed,
        incomplete: Some(cause),
    };
    let events = [
        message(1, "inbound", V4, "block", cut(70_000, 100_000, Incomplete::Limit)),
        message(2, "inbound", V4, "ping", Value::bytes(vec![1; 8])),
        message(3, "inbound", V4, "tx", Value::Unreadable { address: 0 }),
        message(4, "inbound", V4, "tx", cut(10, u64::MAX, Incomplete::Dropped)),
        message(5, "inbound", V4, "pong", Value::bytes(vec![2; 8])),
        message(6, "inbound", V4, "\u{1b}[31m", Value::bytes(vec![3; 8])),
    ];
    let file = file(&events, &accounting(&events));
    let found = tshark(&file, "bitcoin.command in {\"ping\", \"pong\"}", &["bitcoin.command", "bitcoin.length"]);
    assert_eq!(found, [["ping", "8"], ["pong", "8"]]);
    let comments: Vec<String> = tshark(&file, "frame.comment", &["frame.comment"]).concat();
    let expected = [
        "peer 1 (inbound, 203.0.113.5:51234) of process 4711",
        "only 70000 of 100000 bytes of the payload were captured: limit",
        "only 0 of 77 bytes of the payload were captured: unreadable",
        "only 10 of 18446744073709551615 bytes of the payload were captured: dropped",
        "a header cannot have the message type '\\u{1b}[31m'",
    ];
    assert_eq!(comments, expected);
}

/// By comments of the packets, and in the statistics at the end.
#[test]
fn losses_are_marked() {
    let lost = |dropped| {
        let counts = Counts {
            hits: 2 + dropped,
            delivered: 2,
            incomplete: 0,
            dropped: BTreeMap::from([("ring_full".into(), dropped)]),
        };
        let until = Timestamp { monotonic_ns: START.monotonic_ns + 1, wall_ns: START.wall_ns + 2_000_000_000 };
        Accounting { from: START, until, tracepoints: [("net:inbound_message".to_owned(), counts)].into() }
    };
    let mut writer = Writer::new(Vec::new(), "chainscope test").unwrap();
    for (ms, dropped) in [(1, 0), (2, 5), (3, 5), (4, 12)] {
        writer.account(&lost(dropped));
        writer.event(&message(ms, "inbound", V4, "verack", Value::bytes(vec![]))).unwrap();
    }
    writer.finish(&lost(12)).unwrap();
    let file = std::mem::take(writer.get_mut());
    let comments = tshark(&file, "bitcoin", &["frame.comment"]).concat();
    let comment = |count| format!("{count} hits of tracepoints were lost up to here");
    assert_eq!(comments, [String::new(), comment(5), String::new(), comment(12)]);

    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let mut last = None;
    while let Some(block) = reader.next_block() {
        last = Some(block.unwrap().into_owned());
    }
    let Some(Block::InterfaceStatistics(InterfaceStatisticsBlock { timestamp, options, .. })) = last else {
        panic!("{last:?}")
    };
    assert_eq!(timestamp, 1_626_255_002_000_000_000);
    assert!(options.contains(&InterfaceStatisticsOption::IsbIfRecv(14)), "{options:?}");
    assert!(options.contains(&InterfaceStatisticsOption::IsbIfDrop(12)), "{options:?}");
    let line = "14 hits = 2 delivered + 12 dropped (net:inbound_message: ring_full 12)";
    assert!(options.contains(&InterfaceStatisticsOption::Comment(line.into())), "{options:?}");
}

proptest! {
    /// Whatever peers send, the file can be read, and has a packet for each message.
    #[test]
    fn any_message(
        address in any::<String>(), kind in any::<Vec<u8>>(), captured in prop::collection::vec(any::<u8>(), 0..100),
        claimed in any::<u64>(), is_whole in any::<bool>(), id in any::<i64>(),
    ) {
        let payload = if is_whole {
            Value::bytes(captured)
        } else {
            Value::Bytes { bytes: captured.into(), claimed, incomplete: Some(Incomplete::Unreadable) }
        };
        let mut event = message(1, "inbound", (id, &address), "", payload);
        event.arguments[3] = Value::text(kind);
        let file = file(&[event.clone(), event.clone()], &accounting(&[event]));
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut packets = 0;
        while let Some(block) = reader.next_block() {
            packets += usize::from(matches!(block.unwrap(), Block::EnhancedPacket(_)));
        }
        prop_assert_eq!(packets, 4);
    }
}
