//! P2P messages: `log_p2p_traffic`, `log_raw_p2p_msgs`, `p2p_monitor`.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use chainscope_testing::{
    fakenode::{Fired, Flavour},
    wait::until_true,
};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};

use crate::support::{Node, Tool, assert_lines, nothing_lost};

const MESSAGES: [&str; 2] = ["net:inbound_message", "net:outbound_message"];

/// A Tor address of the greatest length.
const ONION: &str = "pg6mmjiyjmcrsslvykfwnntlaru7p5svn6y2ymmju6nubxndf4pscryd.onion:18333";

fn line(fired: &Fired) -> String {
    let is_inbound = fired.tracepoint == "net:inbound_message";
    let (direction, preposition) = if is_inbound { ("inbound", "from") } else { ("outbound", "to") };
    format!(
        "{direction} '{}' msg {preposition} peer {} ({}, {}) with {} bytes",
        fired.show("message_type"),
        fired.show("peer_id"),
        fired.show("connection_type"),
        fired.show("address"),
        fired.show("size"),
    )
}

/// The line of a whole message before its payload. The place of a warning is empty; "from" is in both directions.
fn raw_line(fired: &Fired) -> String {
    let direction = if fired.tracepoint == "net:inbound_message" { "inbound" } else { "outbound" };
    let [message_type, peer, size] = ["message_type", "peer_id", "size"].map(|name| fired.show(name));
    let [connection_type, address] = ["connection_type", "address"].map(|name| fired.show(name));
    format!(" {direction} msg '{message_type}' from peer {peer} ({connection_type}, {address}) with {size} bytes")
}

/// Messages in both directions, with texts of the greatest lengths and payloads of all sizes.
fn conversation(node: &mut Node) -> Vec<Fired> {
    let commands = [
        "net:inbound_message message_type=version size=102".to_owned(),
        format!("net:outbound_message peer_id=8 message_type=getcfcheckpt address={ONION} size=37"),
        format!("net:inbound_message peer_id=8 message_type=cfcheckpt address={ONION} connection_type=inbound size=0"),
        "net:inbound_message peer_id=-1 message_type=@length:20 connection_type=@length:20 size=1".to_owned(),
        "net:outbound_message peer_id=9223372036854775807 address=[2001:db8::1]:8333 size=32569".to_owned(),
        "net:inbound_message message_type=block size=4000000 seed=42".to_owned(),
        "net:inbound_message message_type=pong size=8 seed=3".to_owned(),
    ];
    commands.iter().map(|command| node.node.fire(command)).collect()
}

#[test]
fn traffic_of_every_flavour() {
    for flavour in [Flavour::Core(31), Flavour::Core(28), Flavour::Moneyrocket, Flavour::Tapyrus] {
        let mut node = Node::start(flavour);
        let tool = node.trace(&["p2p"], &MESSAGES);
        let fired = conversation(&mut node);
        let output = tool.interrupt();
        let expected: Vec<String> = fired.iter().map(line).collect();
        assert_lines(&output, &["Logging P2P traffic"], &expected, fired.len());
        assert!(node.breakpoints(&MESSAGES).iter().all(|is_set| !is_set), "{flavour:?}");
    }
}

/// The semaphores are raised while the tool runs; the other tracepoints stay off.
#[test]
fn semaphores_are_raised_and_given_back() {
    let mut node = Node::start(Flavour::Core(31));
    let tool = node.trace(&["p2p"], &MESSAGES);
    node.node.wait_for_semaphores(&MESSAGES, 1);
    assert_eq!(node.node.semaphores().values().filter(|value| **value > 0).count(), 2);
    assert_eq!(node.node.fire("mempool:added").active, 0);
    let fired = node.node.fire("net:inbound_message");
    assert_eq!(fired.active, 1);
    assert_lines(&tool.interrupt(), &["Logging P2P traffic"], &[line(&fired)], 1);
    node.node.wait_for_semaphores(&MESSAGES, 0);
}

#[test]
fn payloads_are_whole() {
    for flavour in [Flavour::Core(31), Flavour::Tapyrus] {
        let mut node = Node::start(flavour);
        let tool = node.trace(&["raw"], &MESSAGES);
        let mut fired = conversation(&mut node);
        for size in [255, 32_568, 65_535, 65_536, 65_537, 1 << 20, 3_999_999, 4_194_304] {
            fired.push(node.node.fire(&format!("net:inbound_message message_type=tx size={size} seed={size}")));
        }
        let output = tool.interrupt();
        let mut lines = output.lines();
        assert_eq!(lines.next(), Some("Logging raw P2P messages."));
        for (fired, found) in fired.iter().zip(lines.by_ref()) {
            let (start, payload) = found.split_once(" bytes: ").unwrap();
            assert_eq!(format!("{start} bytes"), raw_line(fired));
            let payload = hex(payload);
            assert_eq!(payload.len() as i64, fired.number_of("size"));
            assert_eq!(format!("{:x}", Sha256::digest(&payload)), fired.sha256(), "{start}");
        }
        assert_eq!(output.lines().next_back(), Some(&*nothing_lost(fired.len())));
    }
}

/// The greatest messages, as fast as the program passes them, while each takes longer to print.
#[test]
fn payloads_are_whole_at_full_speed() {
    const MESSAGES_FIRED: usize = 200;
    const SIZE: usize = 4_000_000;
    let mut node = Node::start(Flavour::Core(31));
    let mut command = Command::new(env!("CARGO_BIN_EXE_chainscope"));
    command.args(["trace", "raw", "--pid", &node.node.pid().to_string()]);
    let mut tool = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    node.node.wait_for_semaphores(&MESSAGES, 1);
    let settings = format!("net:inbound_message message_type=block size={SIZE} seed=42");
    let one = node.node.fire(&settings);
    node.node.execute(&format!("repeat {MESSAGES_FIRED} {settings} quiet=1"));

    let mut output = BufReader::with_capacity(1 << 20, tool.stdout.take().unwrap());
    let mut line = Vec::new();
    output.read_until(b'\n', &mut line).unwrap();
    assert_eq!(line, b"Logging raw P2P messages.\n");
    let mut first = Vec::new();
    output.read_until(b'\n', &mut first).unwrap();
    let text = str::from_utf8(&first).unwrap();
    let (start, digits) = text.trim_end().split_once(" bytes: ").unwrap();
    assert_eq!(format!("{start} bytes"), raw_line(&one));
    assert_eq!(format!("{:x}", Sha256::digest(hex(digits))), one.sha256());
    for number in 0..MESSAGES_FIRED {
        line.clear();
        output.read_until(b'\n', &mut line).unwrap();
        assert!(line == first, "line {number} of {} bytes", line.len());
    }
    kill_process(Pid::from_child(&tool), Signal::INT).unwrap();
    line.clear();
    output.read_until(b'\n', &mut line).unwrap();
    assert_eq!(String::from_utf8(line).unwrap(), format!("{}\n", nothing_lost(MESSAGES_FIRED + 1)));
    let ended = tool.wait_with_output().unwrap();
    assert_eq!((ended.status.success(), String::from_utf8(ended.stderr).unwrap()), (true, String::new()));
}

/// Ends of payloads for which a small ring has no room are marked, said and counted.
#[test]
fn payloads_that_do_not_fit_are_counted() {
    let mut node = Node::start(Flavour::Core(31));
    let tool = node.trace(&["raw", "--ring-pages", "64"], &MESSAGES);
    node.node.fire("net:inbound_message message_type=ping size=8");
    // The ring is not read meanwhile.
    tool.stop();
    let cut = node.node.fire("net:inbound_message message_type=block size=4000000 seed=42");
    tool.signal(Signal::CONT);
    until_true("a note", || {
        tool.notes().contains("of 1 events the end of a payload was lost, of 1 so far; --ring-pages")
    });
    let output = tool.interrupt();
    let lines: Vec<&str> = output.lines().collect();
    let captured = hex(payload(lines[2])).len();
    assert!(
        captured < 4_000_000
            && lines[2].starts_with(&format!("Warning: incomplete message (only {captured} out of 4000000 bytes)!"))
    );
    assert!(lines[2].contains(raw_line(&cut).trim_start()), "{:.200}", lines[2]);
    assert_eq!(lines[3], format!("{}; 1 delivered without the end of a payload", nothing_lost(2)));
}

/// Limits that cannot be kept are refused, not reduced.
#[test]
fn limits_beyond_the_possible_are_refused() {
    for (arguments, strlen, expected) in [
        (&["--max-text", "16385"][..], None, "invalid value '16385' for '--max-text <BYTES>'"),
        (&[], Some("20000"), "invalid value '20000' for '--max-text <BYTES>'"),
        (&["--max-payload", "1073741825"], None, "invalid value '1073741825' for '--max-payload <BYTES>'"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chainscope"));
        command.args(["trace", "raw", "--pid", "1"]).args(arguments).env_remove("BPFTRACE_STRLEN");
        let output = command.envs(strlen.map(|value| ("BPFTRACE_STRLEN", value))).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(expected), "{said}");
    }
    // The greatest one is kept.
    let mut node = Node::start(Flavour::Core(28));
    let tool =
        node.trace(&["any", "mempool:rejected", "--format", "{reason}", "--max-text", "16384"], &["mempool:rejected"]);
    let fired = [16_384, 16_385].map(|length| node.node.fire(&format!("mempool:rejected reason=@length:{length}")));
    let output = tool.interrupt();
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0] == fired[0].show("reason") && lines[1] == format!("{}…", &fired[1].show("reason")[..16_384]));
}

/// What cannot be read is said to be missing, and nothing of the message before is shown in its place.
#[test]
fn payloads_that_end_early_are_marked() {
    let mut node = Node::start(Flavour::Core(28));
    let tool = node.trace(&["raw"], &MESSAGES);
    let whole = node.node.fire("net:inbound_message size=100000 seed=1");
    let cut = node.node.fire("net:inbound_message size=100000 payload=@cut:70000 seed=2");
    let null = node.node.fire("net:inbound_message size=5000 payload=@null");
    let unreadable = node.node.fire("net:inbound_message size=5000 payload=@unreadable");
    let output = tool.interrupt();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(format!("{:x}", Sha256::digest(hex(payload(lines[1])))), whole.sha256());

    let found = hex(payload(lines[2]));
    let warning = format!("Warning: incomplete message (only {} out of 100000 bytes)! inbound ", found.len());
    assert!(lines[2].starts_with(&warning), "{:.200}", lines[2]);
    assert_eq!(cut.arguments["payload"]["readable"], 70_000);
    assert_eq!(found.len(), 70_000, "all that can be read");
    assert_eq!(format!("{:x}", Sha256::digest(&found)), cut.sha256());

    for (found, fired) in lines[3..5].iter().zip([&null, &unreadable]) {
        let warning = "Warning: incomplete message (only 0 out of 5000 bytes)! inbound ";
        assert!(found.starts_with(warning), "{} {found:.300}", fired.number);
    }
    assert_eq!(lines.last().copied(), Some(&*nothing_lost(4)));
}

/// Sizes of the ring buffers of a process.
fn ring_bytes(pid: u32) -> Vec<u64> {
    let field = |info: &str, name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")?.trim().parse::<u64>().ok())
    };
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let infos = files.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
    // BPF_MAP_TYPE_RINGBUF
    infos.filter(|info| field(info, "map_type") == Some(27)).map(|info| field(&info, "max_entries").unwrap()).collect()
}

#[test]
fn the_ring_buffer_has_the_size_that_is_said() {
    let mut node = Node::start(Flavour::Core(31));
    let traced = node.node.pid().to_string();
    for (asked, pages) in [("8", 8), ("5", 8), ("1", 1)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chainscope"));
        command.args(["trace", "p2p", "--pid", &traced]).env("BPFTRACE_PERF_RB_PAGES", asked);
        let tool = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        node.node.wait_for_semaphores(&MESSAGES, 1);
        assert_eq!(ring_bytes(tool.id()), [pages * 4096], "{asked}");
        kill_process(Pid::from_child(&tool), Signal::INT).unwrap();
        let said = String::from_utf8(tool.wait_with_output().unwrap().stderr).unwrap();
        assert_eq!(said.contains("the ring buffer has 8 pages, not 5"), asked == "5", "{said}");
        node.node.wait_for_semaphores(&MESSAGES, 0);
    }
    let too_large = Command::new(env!("CARGO_BIN_EXE_chainscope"))
        .args(["trace", "p2p", "--pid", &traced, "--ring-pages", "3000000000"])
        .output()
        .unwrap();
    assert!(!too_large.status.success());
    assert!(String::from_utf8(too_large.stderr).unwrap().contains("--ring-pages is too large"));
}

#[test]
fn sums_by_peer() {
    let mut node = Node::start(Flavour::Core(31));
    let tool = node.trace(&["p2p-monitor"], &[&MESSAGES[..], &["net:closed_connection"]].concat());
    let fired = conversation(&mut node);
    let output = tool.interrupt();
    let heading = format!("{:>6}  {:<20}  {:<20}  {:<22}  {:<67}", "PEER", "OUTBOUND", "INBOUND", "TYPE", "ADDR");
    assert!(output.lines().any(|line| line.trim_end() == heading.trim_end()), "{heading}\nin\n{output}");
    let mut ids: Vec<i64> = fired.iter().map(|fired| fired.number_of("peer_id")).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let of_peer = || fired.iter().filter(|fired| fired.number_of("peer_id") == id);
        let sum = |name: &str| {
            let sizes = of_peer().filter(|fired| fired.tracepoint == name).map(|fired| fired.number_of("size"));
            (sizes.clone().count(), sizes.sum::<i64>())
        };
        let ((sent, sent_bytes), (received, received_bytes)) = (sum(MESSAGES[1]), sum(MESSAGES[0]));
        // Address and type are those of the last message.
        let last = of_peer().next_back().unwrap();
        let row = format!(
            "{id:>6}  {sent:<5} {sent_bytes:>9} byte  {received:<5} {received_bytes:>9} byte  {:<22}  {:<67}",
            last.show("connection_type"),
            last.show("address"),
        );
        assert!(output.lines().any(|line| line.trim_end() == row.trim_end()), "{row}\nin\n{output}");
    }
}

/// The hexadecimal digits at the end of a line.
fn payload(line: &str) -> &str {
    line.split_once(" bytes: ").unwrap().1
}

fn hex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2), "{digits:.100}");
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The scripts take a process, or a file, without an option; their names are names of the views.
#[test]
fn arguments_of_the_scripts_are_accepted() {
    let scripts: [(&[&str], &str); 9] = [
        (&["log_p2p_traffic"], "net:inbound_message"),
        (&["p2p_monitor"], "net:inbound_message"),
        (&["log_raw_p2p_msgs"], "net:inbound_message"),
        (&["connectblock_benchmark", "0", "0", "0"], "validation:block_connected"),
        (&["log_utxocache_flush"], "utxocache:flush"),
        (&["log_utxos"], "utxocache:add"),
        (&["mempool_monitor"], "mempool:added"),
        (&["log_coinselection"], "coin_selection:selected_coins"),
        (&["log_p2p_connections"], "net:closed_connection"),
    ];
    let mut node = Node::start(Flavour::Core(31));
    let (pid, file) = (node.node.pid().to_string(), node.program.to_str().unwrap().to_owned());
    for target in [pid, file] {
        for (script, tracepoint) in scripts {
            let tool = node.wait_for(Tool::start(&[script, &[&*target][..]].concat()), &[tracepoint]);
            node.node.wait_for_semaphores(&[tracepoint], 1);
            node.node.fire(tracepoint);
            let output = tool.interrupt();
            assert_eq!(output.lines().next_back(), Some(&*nothing_lost(1)), "{script:?} {target}");
            node.node.wait_for_semaphores(&[tracepoint], 0);
        }
    }
}

/// A contract of the user's own names the arguments, and is taken for any program.
#[test]
fn a_contract_file_names_the_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.toml");
    let contract = r#"
name = "own"
title = "Own Node"
programs = []

[[tracepoints]]
provider = "mempool"
name = "added"
arguments = [
  { name = "id", kind = "hash32" },
  { name = "weight", kind = "i32", values = { 7 = "SEVEN" } },
  { name = "paid", kind = "i64" },
]
"#;
    std::fs::write(&path, contract).unwrap();
    let mut node = Node::start(Flavour::Core(31));
    let arguments = ["any", "mempool:*", "--format", "{weight} {paid} {id}", "--contract", path.to_str().unwrap()];
    let arguments = [&arguments[..], &["--filter", "tracepoint=mempool:added"]].concat();
    let tool = node.trace(&arguments, &["mempool:added", "mempool:rejected"]);
    let fired = [8, 7].map(|size| node.node.fire(&format!("mempool:added size={size} fee=-5")));
    node.node.fire("mempool:rejected");
    let output = tool.interrupt();
    let shown = |size: &str, fired: &Fired| format!("{size} -5 {}\n", fired.show("txid"));
    let expected = [shown("8", &fired[0]), shown("SEVEN", &fired[1]), format!("{}\n", nothing_lost(3))].concat();
    assert_eq!(output, expected);
}

/// Of each packet with a message: its type, its length, and its comment.
fn dissected(file: &std::path::Path) -> Vec<[String; 3]> {
    let mut tshark = std::process::Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-Y", "bitcoin", "-T", "fields"]);
    tshark.args(["-e", "bitcoin.command", "-e", "bitcoin.length", "-e", "frame.comment"]);
    let output = tshark.output().expect("tshark starts: run `make setup`");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let fields = text.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap());
    fields.collect()
}

/// By Wireshark's dissector, whole up to the greatest size; the same from a recording.
#[test]
fn packets_are_the_messages() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (packets, recording, replayed) = (path("live.pcapng"), path("node.trace"), path("replayed.pcapng"));
    let mut node = Node::start(Flavour::Core(31));
    let tool = node.trace(&["raw", "--pcapng", &packets, "--record", &recording], &MESSAGES);
    let mut fired = Vec::new();
    for (number, size) in [0, 8, 59_975, 60_000, 1 << 20, 4_000_000].into_iter().enumerate() {
        for direction in ["inbound", "outbound"] {
            let address = format!("10.0.0.{}:8333", number % 3);
            let command =
                format!("net:{direction}_message peer_id={} message_type=tx size={size} seed={size}", number % 3);
            fired.push(node.node.fire(&format!("{command} address={address}")));
        }
    }
    let cut = node.node.fire("net:inbound_message peer_id=0 address=10.0.0.0:8333 size=100000 payload=@cut:70000");
    fired.push(node.node.fire("net:inbound_message peer_id=0 address=10.0.0.0:8333 message_type=ping size=8"));
    assert_eq!(tool.interrupt(), format!("{}\n", nothing_lost(fired.len() + 1)));
    let mut found = dissected(packets.as_ref());
    let incomplete = "only 70000 of 100000 bytes of the payload were captured: unreadable";
    found.retain(|[_, size, comment]| {
        assert_eq!(comment, if *size == cut.show("size") { incomplete } else { "" });
        comment.is_empty()
    });
    let expected: Vec<[String; 3]> =
        fired.iter().map(|fired| [fired.show("message_type"), fired.show("size"), String::new()]).collect();
    assert_eq!(found, expected);

    Tool::start(&["replay", &recording, "raw", "--pcapng", &replayed]).output();
    assert!(std::fs::read(&replayed).unwrap() == std::fs::read(&packets).unwrap());
}

/// The content beside the bytes.
#[test]
fn content_is_decoded() {
    let mut node = Node::start(Flavour::Core(31));
    let tool = node.trace(&["p2p", "--decode", "--json"], &MESSAGES);
    let ping = node.node.fire("net:inbound_message message_type=ping size=8 seed=5");
    let short = node.node.fire("net:inbound_message message_type=ping size=7 seed=5");
    let output = tool.interrupt();
    let objects: Vec<serde_json::Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let bytes = hex(objects[0]["arguments"]["payload"].as_str().unwrap());
    assert_eq!(format!("{:x}", Sha256::digest(&bytes)), ping.sha256());
    let number = u64::from_le_bytes(bytes.try_into().unwrap());
    assert_eq!(objects[0]["content"]["nonce"], number);
    let bytes = hex(objects[1]["arguments"]["payload"].as_str().unwrap());
    assert_eq!(format!("{:x}", Sha256::digest(&bytes)), short.sha256());
    assert!(objects[1]["content"].is_null() && objects[1]["content_error"].is_string(), "{}", objects[1]);
}
