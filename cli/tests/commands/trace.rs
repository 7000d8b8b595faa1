//! `chainscope trace`: recordings in every form of output.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use chainscope_trace::{Accounting, Attachment, Counts, Event, Timestamp, Value, archive::Writer};
use chainscope_usdt::{Argument, Location, Operand, built_in};
use tempfile::TempDir;

use crate::tmux::Terminal;

/// 09:30:00 UTC.
const START: Timestamp = Timestamp { monotonic_ns: 1_000_000_000, wall_ns: 1_626_255_000_000_000_000 };

/// A tracepoint of Bitcoin Core v31.
fn attachment(provider: &str, name: &str) -> Arc<Attachment> {
    let contract = built_in().iter().find(|known| known.name() == "bitcoin-core-v31").expect("valid");
    let known = contract.tracepoint(provider, name).expect("valid");
    let note = |argument: &chainscope_usdt::ArgumentContract| Argument {
        raw: "8@%rax".to_owned(),
        shape: Some(argument.kind.shape()),
        operand: Ok(Operand::Constant(0)),
    };
    let arguments = known.arguments.iter().map(note).collect();
    let location = Location { address: 1, offset: Some(1), base: 0, semaphore: None, arguments };
    Arc::new(Attachment::new(provider, name, "/usr/bin/bitcoind", &location, Some((&contract.name(), known))))
}

fn event(attachment: &Arc<Attachment>, sequence: u64, arguments: Vec<Value>) -> Event {
    let time = Timestamp {
        monotonic_ns: START.monotonic_ns + sequence * 1_000_000,
        wall_ns: START.wall_ns + sequence.cast_signed() * 1_000_000,
    };
    let (pid, tid, comm) = (4711, 4712, "b-msghand".to_owned());
    Event { sequence, time, pid, tid, cpu: 0, comm, attachment: Arc::clone(attachment), arguments }
}

/// Four messages of two peers and two transactions; one event was lost.
fn events() -> Vec<Event> {
    let directions = ["inbound_message", "outbound_message"].map(|name| attachment("net", name));
    let added = attachment("mempool", "added");
    let message = |sequence, direction: usize, peer, kind: &str, payload: &'static [u8]| {
        let texts = [&format!("10.0.0.{peer}:8333"), "inbound", kind].map(|text| Value::text(text.to_owned()));
        let size = Value::Unsigned(payload.len() as u64);
        let arguments = [Value::Signed(peer)].into_iter().chain(texts).chain([size, Value::bytes(payload)]);
        event(&directions[direction], sequence, arguments.collect())
    };
    let transaction = |sequence, fee| {
        event(&added, sequence, vec![Value::bytes(vec![0xab; 32]), Value::Signed(100), Value::Signed(fee)])
    };
    vec![
        message(0, 0, 3, "ping", b"12345678"),
        message(1, 1, 3, "pong", b"12345678"),
        message(2, 0, 9, "tx\x1b[31m", b"\x02\x00"),
        transaction(3, 150),
        transaction(4, 250),
        message(5, 1, 9, "verack", b""),
    ]
}

fn accounting() -> Accounting {
    let counts = |hits, delivered, dropped: u64| Counts {
        hits,
        delivered,
        incomplete: 0,
        dropped: BTreeMap::from([("ring_full".into(), dropped)]),
    };
    let until = Timestamp { monotonic_ns: 11_000_000_000, wall_ns: START.wall_ns + 10_000_000_000 };
    let tracepoints = [
        ("net:inbound_message", counts(2, 2, 0)),
        ("net:outbound_message", counts(3, 2, 1)),
        ("mempool:added", counts(2, 2, 0)),
    ];
    let tracepoints = tracepoints.map(|(name, counts)| (name.to_owned(), counts)).into();
    Accounting { from: START, until, tracepoints }
}

const LAST_LINE: &str = "7 hits = 6 delivered + 1 dropped (net:outbound_message: ring_full 1)";

pub(crate) fn recording(directory: &TempDir) -> PathBuf {
    write(directory.path().join("node.trace"), &events(), &accounting())
}

fn write(path: PathBuf, events: &[Event], accounting: &Accounting) -> PathBuf {
    let mut writer = Writer::new(fs::File::create(&path).expect("valid"), "test", START, &[]).expect("valid");
    for event in events {
        writer.event(event).expect("valid");
        writer.flush().expect("valid");
    }
    writer.finish(accounting).expect("valid");
    path
}

/// A recording of two blocks, coins, a flush and a transaction of a wallet.
pub(crate) fn chain_recording(directory: &TempDir) -> PathBuf {
    let hash = |byte: u8| Value::bytes(vec![byte; 32]);
    let block = |byte: u8, height: i64, duration_ns: i64| {
        let counts = [Value::Unsigned(3_000), Value::Signed(7_000), Value::Signed(9_000)];
        [hash(byte), Value::Signed(height)].into_iter().chain(counts).chain([Value::Signed(duration_ns)]).collect()
    };
    let coin = |index: u64, value: i64| {
        let place = [hash(0xcd), Value::Unsigned(index), Value::Unsigned(840_001)];
        place.into_iter().chain([Value::Signed(value), Value::Bool(index == 0)]).collect()
    };
    let (wallet, flushed) = (Value::text("hot"), [Value::Unsigned(100), Value::Unsigned(123_456), Value::Bool(false)]);
    let hits: [(&str, &str, Vec<Value>); 8] = [
        ("validation", "block_connected", block(0x11, 840_000, 150_000_000)),
        ("validation", "block_connected", block(0x22, 840_001, 40_000_000)),
        ("utxocache", "add", coin(0, 5_000_000_000)),
        ("utxocache", "spent", coin(1, 1_000)),
        ("utxocache", "uncache", coin(2, 2_000)),
        ("utxocache", "flush", [Value::Signed(1_500), Value::Unsigned(2)].into_iter().chain(flushed).collect()),
        (
            "coin_selection",
            "selected_coins",
            vec![wallet.clone(), Value::text("bnb"), Value::Signed(1_000), Value::Signed(20), Value::Signed(1_200)],
        ),
        (
            "coin_selection",
            "normal_create_tx_internal",
            vec![wallet, Value::Bool(true), Value::Signed(141), Value::Signed(-1)],
        ),
    ];
    let hit = |(sequence, (provider, name, arguments))| event(&attachment(provider, name), sequence, arguments);
    let events: Vec<Event> = (0..).zip(hits).map(hit).collect();
    let mut nothing_lost = Accounting { tracepoints: BTreeMap::new(), ..accounting() };
    for event in &events {
        let counts = nothing_lost.tracepoints.entry(event.attachment.full_name()).or_default();
        counts.hits += 1;
        counts.delivered += 1;
    }
    write(directory.path().join("chain.trace"), &events, &nothing_lost)
}

fn trace(arguments: &[&str], file: &Path) -> Output {
    let (command, rest) = arguments.split_first().expect("valid");
    Command::new(env!("CARGO_BIN_EXE_chainscope"))
        .args(["trace", command])
        .arg(file)
        .args(rest)
        .output()
        .expect("valid")
}

fn lines(output: &Output) -> Vec<&str> {
    assert!(output.status.success(), "{output:?}");
    str::from_utf8(&output.stdout).expect("valid").lines().collect()
}

#[test]
fn a_replay_prints_the_lines_of_a_script_and_the_accounting() {
    let directory = tempfile::tempdir().unwrap();
    let file = recording(&directory);
    let output = trace(&["replay", "p2p"], &file);
    let shown = lines(&output);
    let expected = [
        "Logging P2P traffic",
        "inbound 'ping' msg from peer 3 (inbound, 10.0.0.3:8333) with 8 bytes",
        "outbound 'pong' msg to peer 3 (inbound, 10.0.0.3:8333) with 8 bytes",
        "inbound 'tx\\u{1b}[31m' msg from peer 9 (inbound, 10.0.0.9:8333) with 2 bytes",
        "outbound 'verack' msg to peer 9 (inbound, 10.0.0.9:8333) with 0 bytes",
    ];
    assert_eq!(shown[..5], expected);
    assert_eq!(shown.last(), Some(&LAST_LINE));
    assert!(output.stderr.is_empty(), "{output:?}");

    // The script's name works, too.
    assert_eq!(trace(&["replay", "log_p2p_traffic"], &file).stdout, output.stdout);
    let filtered = trace(&["replay", "p2p", "--filter", "size>2", "--filter", "message_type=pong"], &file);
    assert_eq!(lines(&filtered)[1], expected[2]);
    let json = trace(&["replay", "raw", "--json"], &file);
    let objects: Vec<serde_json::Value> =
        lines(&json).into_iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 5);
    assert_eq!(objects[0]["arguments"]["payload"], "3132333435363738");
    assert_eq!(objects[2]["time"], "2021-07-14T09:30:00.002000000Z");
    assert_eq!(objects[4]["accounting"]["tracepoints"]["net:outbound_message"]["dropped"]["ring_full"], 1);
    let any = trace(&["replay", "any", "mempool:*", "--filter", "fee>=200", "--format", "{sequence} {fee}"], &file);
    assert_eq!(lines(&any), ["4 250", LAST_LINE]);
}

#[test]
fn wrong_arguments_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = recording(&directory);
    for (arguments, problem) in [
        (&["replay", "blocks", "5", "0", "0"][..], "start height (5) larger than end height (0)!"),
        (&["replay", "any", "net"], "not PROVIDER:NAME"),
        (&["replay", "p2p", "--filter", "size"], "no operator"),
        (&["replay", "any", "*:*", "--format", "{open"], "{open has no closing brace"),
    ] {
        let output = trace(arguments, &file);
        assert!(!output.status.success());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(problem), "{error}");
    }
    let output = trace(&["info"], Path::new("/dev/null"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/null: the file was cut within its header"));
}

#[test]
fn info_and_a_recording_that_was_cut() {
    let directory = tempfile::tempdir().unwrap();
    let file = recording(&directory);
    let output = trace(&["info"], &file);
    let shown = lines(&output);
    for expected in [
        "State:           complete",
        "Start:           2021-07-14T09:30:00.000000000Z",
        "Duration:        10.000 s",
        "Events:          6",
        "Processes:       4711",
        "Program:         /usr/bin/bitcoind (contract bitcoin-core-v31)",
        "         2          0          0          1  net:outbound_message",
        LAST_LINE,
    ] {
        assert!(shown.contains(&expected), "{expected}: {shown:#?}");
    }
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 60]).unwrap();
    let output = trace(&["info", "--json"], &file);
    let info: serde_json::Value = serde_json::from_str(lines(&output)[0]).unwrap();
    assert_eq!(info["complete"], false);
    let events = info["events"].as_u64().unwrap();
    assert!((1..=6).contains(&events), "{info}");
    let output = trace(&["replay", "any", "*:*"], &file);
    assert_eq!(lines(&output).len() as u64, events + 1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("was cut"), "{output:?}");
}

#[test]
fn selected_events_are_copied_and_no_file_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let file = recording(&directory);
    let copy = directory.path().join("copy.trace");
    let copied = trace(&["copy", copy.to_str().unwrap(), "--tracepoint", "net:*", "--filter", "peer_id=9"], &file);
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!(copied.stderr, b"2 of 6 events copied\n");
    let output = trace(&["replay", "any", "*:*", "--format", "{sequence}"], &copy);
    assert_eq!(lines(&output), ["2", "5", LAST_LINE]);
    let again = trace(&["copy", copy.to_str().unwrap()], &file);
    assert!(!again.status.success(), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists"), "{again:?}");
}

fn on_a_terminal(file: &Path, view: &str) -> Terminal {
    let program = env!("CARGO_BIN_EXE_chainscope");
    let shell =
        format!("{program} trace replay {} {view}; echo \"exit $?\"; stty -a | grep -ow isig; cat", file.display());
    Terminal::start(160, 36, &shell)
}

#[test]
fn the_peers_fill_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let terminal = on_a_terminal(&recording(&directory), "p2p-monitor");
    let screen = terminal.wait_for("ended");
    assert_eq!(screen[0], " P2P Message Monitor");
    assert!(screen[1].starts_with(" Navigate with UP/DOWN"), "{screen:#?}");
    assert!(screen[3].starts_with("  PEER  OUTBOUND              INBOUND               TYPE"), "{screen:#?}");
    assert!(screen[4].starts_with("     3  1             8 byte  1             8 byte  inbound"), "{screen:#?}");
    assert!(screen[5].starts_with("     9  1             0 byte  1             2 byte  inbound"), "{screen:#?}");
    assert!(screen[35].contains(LAST_LINE), "{screen:#?}");

    terminal.press(&["Down", "j", "k", "Enter"]);
    let screen = terminal.wait_for("PEER 3 (10.0.0.3:8333)");
    assert!(screen[5].contains("<--- ping (8 bytes) │"), "{screen:#?}");
    assert!(screen[6].contains("│ pong (8 byte) --->"), "{screen:#?}");
    terminal.press(&["Up", "Right"]);
    let screen = terminal.wait_for("00000000  31 32 33 34 35 36 37 38");
    assert!(
        screen[2].contains("<--- ping (8 bytes)") && screen[3].contains("nonce: 4050765991979987505"),
        "{screen:#?}"
    );
    // Smaller than the panel.
    terminal.resize(40, 10);
    terminal.wait("resized", |screen| screen.len() == 10 && screen[2].contains('┌'));
    terminal.press(&["Left", "Space"]);
    terminal.wait("closed", |screen| !screen.iter().any(|line| line.contains('┌')));
    terminal.resize(160, 36);
    terminal.press(&["C-c"]);
    let screen = terminal.wait_for("isig");
    assert!(screen.contains(&"exit 0".to_owned()) && screen.contains(&LAST_LINE.to_owned()), "{screen:#?}");
}

#[test]
fn the_mempool_fills_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let terminal = on_a_terminal(&recording(&directory), "mempool");
    let screen = terminal.wait_for("ended");
    assert_eq!(screen[0], " Mempool Monitor");
    assert!(screen[2].contains("Event count") && screen[2].contains("Event rate"), "{screen:#?}");
    assert!(screen[4].starts_with("│ added         2tx     2tx     2tx"), "{screen:#?}");
    let newest = format!("│09:30:00Z added {} with feerate 2.50 sat/vB (250 sat, 100 vbytes)", "ab".repeat(32));
    assert!(screen[11].starts_with(&newest), "{screen:#?}");
    terminal.press(&["q"]);
    terminal.wait_for("exit 0");
}
