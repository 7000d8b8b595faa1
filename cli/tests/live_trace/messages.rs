//! P2P messages: `log_p2p_traffic`, `log_raw_p2p_msgs`, `p2p_monitor`.

use std::process::{Command, Stdio};

use chainscope_testing::fakenode::{Fired, Flavour};
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
    let mut node = Node::start(Flavour::Tapyrus);
    let (pid, file) = (node.node.pid().to_string(), node.program.to_str().unwrap().to_owned());
    for target in [pid, file] {
        let tool = node.wait_for(Tool::start(&["log_p2p_traffic", &target]), &MESSAGES);
        let fired = node.node.fire("net:inbound_message size=5");
        assert_lines(&tool.interrupt(), &["Logging P2P traffic"], &[line(&fired)], 1);
    }
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
