//! Writes seeds for all targets, made from the test vectors, the message generator, the built-in contracts of tracepoints and a
//! system binary: `make_seeds VECTORS CORPUS`.
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use chainscope_agent::fuzzing::spool::segment;
use chainscope_fuzz::{SESSION, recorded, records, server::PATHS, trace};
use chainscope_proto::v1::{
    Journal, JournalDirection, JournalSession, MemoryState, RecordRequest, record_request::Request,
};
use chainscope_tezos::{generate::Generator, message::PEER_KINDS};
use chainscope_trace::{Event, Incomplete, Value};
use prost::Message as _;

/// A line of each form.
const LOG_LINES: [&str; 9] = [
    "Nov 24 13:56:38.469   WARN │ protocol\nNov 24 13:56:38.469   WARN │   PsGXQ",
    "\u{1b}[1mNov 24 13:56:37.285\u{1b}[0m NOTICE | read identity file edsk3abc",
    "Apr 27 08:29:09.000: message\n  continued",
    "Apr  8 16:49:28.172 - light_mode: message",
    "<005> 2025-10-10T12:33:27.197-00:00 [section.event] message",
    r#"{"fd-sink-item.v0":{"level":"info","hostname":"h","time_stamp":1759939740.311383,"section":["p2p"],"event":{"name.v0":{}}}}"#,
    "Mar 31 16:10:22.937 INFO Loading identity..., peer: idr",
    r#"{"pid":1,"hostname":"h","time":"2025-03-31T16:10:22.937Z","level":30,"module":"m","line":3,"msg":"Applied"}"#,
    "1 2021-07-14T12:00:00Z wsvl eb3fdbc716e5 665 eb3fdbc716e5 - Jul 14 12:00:00.000 ERROR some",
];

fn main() -> io::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(vectors), Some(corpus)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: make_seeds VECTORS CORPUS"));
    };
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    };
    let read = |path: &str| fs::read(vectors.join(Path::new(path)));
    let with_choice = |choice: usize, bytes: &[u8]| [&[choice as u8][..], bytes].concat();

    write("identity", "carthagenet", &read("tezos/carthagenet-2020/identity.json")?)?;
    write("identity", "synthetic", &read("tezos/synthetic-two-way/identity.json")?)?;

    write("handshake", "connection", &with_choice(0, &read("tezos/mainnet-bodies/connection.msg")?))?;
    write("handshake", "metadata", &with_choice(1, &[0, 0xff]))?;
    write("handshake", "ack", &with_choice(2, &[0]))?;
    write("handshake", "nack", &with_choice(2, b"\x01\0\x03\0\0\0\x12\0\0\0\x0e127.0.0.1:9832"))?;

    let mut generator = Generator::new(1);
    for (choice, (tag, kind)) in PEER_KINDS.iter().enumerate() {
        for number in 0..4 {
            write("message", &format!("{kind}-{number}"), &with_choice(choice, &generator.body(*tag)))?;
        }
    }
    for (direction, stream) in SESSION.streams.iter().enumerate() {
        write("chunks", &format!("stream-{direction}"), &with_choice(17, &stream[..4_000]))?;
    }
    // The handshake of both directions, in pieces.
    let mut opening = vec![1];
    for (direction, length) in [(0_u8, 105), (1, 105), (0, 39), (1, 39), (0, 200), (1, 200)] {
        let from = match length {
            105 => 0,
            39 => 105,
            _ => 144,
        };
        opening.extend([direction, 0, length as u8, 0]);
        opening.extend(&SESSION.streams[usize::from(direction)][from..from + length]);
    }
    write("opening", "handshake", &opening)?;
    write("opening", "http", &with_choice(0, b"\x01\0\x10\0GET / HTTP/1.1\r\n"))?;
    // Pieces of both directions and all sizes, with each operation of `script`.
    for operation in 0..8_u8 {
        for seed in 0..4_u64 {
            let mut generator = Generator::new(seed + 1);
            let mut steps = vec![seed as u8];
            for step in 0..60 {
                let what = if step % 7 == 3 { operation } else { 7 };
                let shift = generator.below(8) as u8;
                let direction = generator.below(2) as u8;
                steps.extend([shift << 4 | what << 1 | direction, generator.below(256) as u8]);
                steps.extend(generator.bytes(2));
            }
            write("conversation", &format!("operation-{operation}-{seed}"), &steps[1..])?;
            write("resume", &format!("operation-{operation}-{seed}"), &steps)?;
        }
    }
    // A system binary, small enough for the fuzzer.
    if let Ok(program) = fs::read("/usr/bin/true") {
        write("unwind", "true", &program)?;
        write("functions", "true", &program)?;
        write("symbols", "true", &program)?;
    }

    // A note of a tracepoint with a semaphore.
    let mut note = [8_u32, 72, 3].map(u32::to_le_bytes).concat();
    note.extend(b"stapsdt\0");
    note.extend([0x1000_u64, 0x2000, 0x3000].map(u64::to_le_bytes).concat());
    note.extend(b"net\0inbound_message\0-8@%r12 8@8+g(%rip) 4@(%rax,%rbx,4)");
    note.resize(20 + 72, 0);
    write("tracepoints", "note", &note)?;
    let contracts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../usdt/contracts");
    for node in ["bitcoin-core", "rippled", "tapyrus"] {
        write("contract", node, &fs::read(contracts.join(format!("{node}.toml")))?)?;
    }

    let recording = |name: &str, events: &[Event]| -> io::Result<()> {
        let file = trace::recording(events)?;
        write("recording", name, &file)?;
        // The target adds a header and the compression to its input.
        let decoded = zstd::decode_all(file.as_slice())?;
        let mut entries = decoded.as_slice();
        let header = prost::decode_length_delimiter(&mut entries).map_err(io::Error::other)?;
        write("recording", &format!("{name}-entries"), &entries[header..])
    };
    let events = trace::events();
    recording("whole", &events)?;
    for (name, value) in [
        ("truncated", Value::Text { bytes: "10.0".into(), is_truncated: true }),
        ("limited", Value::Bytes { bytes: vec![7].into(), claimed: 32, incomplete: Some(Incomplete::Limit) }),
        ("unreadable", Value::Unreadable { address: 16 }),
        ("unsupported", Value::Unsupported),
    ] {
        let without = |event: &Event| Event { arguments: vec![value.clone(); event.arguments.len()], ..event.clone() };
        recording(name, &events.iter().map(without).collect::<Vec<_>>())?;
    }

    // The first block of the main network, and a list of two addresses.
    let block = "010000000000000000000000000000000000000000000000000000000000000000000000\
        3ba3edfd7a7b12b27ac72c3e67768f617fc81bc3888a51323a9fb8aa4b1e5e4a29ab5f49ffff001d1dac2b7c\
        0101000000010000000000000000000000000000000000000000000000000000000000000000ffffffff4d\
        04ffff001d0104455468652054696d65732030332f4a616e2f32303039204368616e63656c6c6f72206f6e2062\
        72696e6b206f66207365636f6e64206261696c6f757420666f722062616e6b73ffffffff0100f2052a01000000\
        434104678afdb0fe5548271967f1a67130b7105cd6a828e03909a67962e0ea1f61deb649f6bc3f4cef38c4f355\
        04e51ec112de5c384df7ba0b8d578a4c702b6bf11d5fac00000000";
    let addresses = "027962768301010401020304208d79627683fd4804042011111111111111111111111111111111111111\
        111111111111111111111111110001";
    for (kind, name, hex) in [(10, "block", block), (11, "headers", block), (30, "addrv2", addresses)] {
        write("message_content", name, &[vec![kind], unhex(hex)].concat())?;
    }

    write("spool_segment", "records", &segment(7, 9, &records(&[b'r'; 100])))?;
    // Segments that were sent and ones that were not, then each damage in turn.
    for damage in 5..8_u8 {
        let sent = [0, 3, 20, 1].repeat(3);
        let unsent = [4, 2, 20, 1].repeat(3);
        write("spool_recovery", &format!("last-{damage}"), &[&sent[..], &unsent, &[damage, 9, 0, 60]].concat())?;
        write("spool_recovery", &format!("inner-{damage}"), &[&sent[..], &[damage, 9, 0, 60], &unsent].concat())?;
    }
    write("journal", "session", &journal().encode_to_vec())?;
    let delimited = |requests: &[RecordRequest]| -> Vec<u8> {
        requests.iter().flat_map(|request| request.encode_length_delimited_to_vec()).collect()
    };
    write("ingest", "recorded", &delimited(&recorded()))?;
    for request in recorded() {
        if let Some(Request::Memory(state)) = request.request {
            let delta = MemoryState { base: state.sequence, sequence: state.sequence + 1, ..state.clone() };
            let both = [state, delta].map(|state| state.encode_length_delimited_to_vec()).concat();
            write("profile", "keyframe-and-delta", &both)?;
        }
    }
    let queries = [
        "limit=7&cursor=9&direction=forward&types=metadata,unknown&incoming=true&source_type=remote&peer_id=idX",
        "remote_addr=[::ffff:1.2.3.4]:9732&from=1600000000&to=1700000000000&timestamp=1&target=pid+7&node_name=node",
        "cn=0.000000005&cursor=0.000000005-remote-3",
        "threshold=1&reverse=true&kind=all&since=1600000000&at=1700000000&pid=7&query=%22a%22",
        "log_level=NOTICE,error&query=+identity%20-(head%20OR%20%22a%20b%22)&query_no_quotes=true&cursor_id=9",
        "tracepoint=net:*,validation:block_connected&peer=10.0.0.1:8333&payload=true&filter=size%3E30&filter=cpu=1",
        "provider=net&name=inbound_message&from=1599999999&until=1600000001&limit=1",
        "a=old&b=new/host=host/kernel=6.18&margin=3.5&from=1599999999",
        "run=latest,old&slowest=true&id=01&type=7&result=125,0&tag=new&host=host&kernel=6.18&limit=10",
    ];
    for (number, query) in queries.iter().enumerate() {
        for choice in 0..PATHS.len() {
            write("query", &format!("{choice}-{number}"), &with_choice(choice, query.as_bytes()))?;
        }
    }
    for (number, line) in LOG_LINES.iter().enumerate() {
        write("log_message", &number.to_string(), line.as_bytes())?;
        let framed = format!("{} <27>{line}\n<27>{line}\n", line.len() + 4);
        write("syslog_frames", &number.to_string(), &with_choice(7, framed.as_bytes()))?;
        let container =
            format!("2016-10-06T00:17:09.669794202Z stdout P {line}\n2016-10-06T00:17:09.669794202Z stderr F {line}\n");
        write("container_lines", &number.to_string(), container.as_bytes())?;
    }
    let docker = r#"{"log":"line\n","stream":"stderr","time":"2016-10-06T00:17:09.669794202Z"}"#;
    write("container_lines", "docker", docker.as_bytes())?;
    write("config", "example", &fs::read(vectors.join("../docs/chainscope.example.toml"))?)?;
    let legacy =
        "http_v3 = 17732\n[[nodes]]\nname = \"a\"\naliases = [\"b\"]\np2p = { port = 9732 }\nlog = {}\ndb = \"/db\"\n";
    write("config", "legacy", legacy.as_bytes())?;
    Ok(())
}

/// A journal of the session, right after its handshake.
fn journal() -> Journal {
    let message = |direction: usize| SESSION.streams[direction][..SESSION.connection[direction]].to_vec();
    let position =
        |direction: usize| JournalDirection { chunks: 3, stream_offset: SESSION.handshake[direction] as u64 };
    let session = JournalSession {
        node: "node".to_owned(),
        connection: 5,
        local_is_initiator: true,
        sent_connection_message: message(0),
        received_connection_message: message(1),
        sent: Some(position(0)),
        received: Some(position(1)),
        ..JournalSession::default()
    };
    Journal { boot_id: "boot".to_owned(), sessions: vec![session] }
}

fn unhex(digits: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.as_bytes().chunks(2).map(byte).collect()
}
