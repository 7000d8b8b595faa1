//! The screens of `chainscope trace` on a running program.

use chainscope_testing::{
    fakenode::{FakeNode, Flavour, build},
    wait,
};
use tempfile::TempDir;

use crate::tmux::Terminal;

/// A node, and a terminal that shows a view of it, and then how the program ended and whether the terminal is as before.
fn start(view: &str, columns: u16, lines: u16) -> (FakeNode, Terminal, TempDir) {
    let folder = tempfile::tempdir().expect("a directory");
    let node = FakeNode::run(folder.path(), Flavour::Core(31));
    let program = env!("CARGO_BIN_EXE_chainscope");
    let trace = format!("{program} trace {view} --pid {}", node.pid());
    let terminal = Terminal::start(columns, lines, &format!("{trace}; echo \"exit $?\"; stty -a | grep -ow isig; cat"));
    // Drawn once the probe is attached.
    terminal.wait_for("Monitor");
    (node, terminal, folder)
}

/// The line that has a text.
#[track_caller]
fn line<'a>(screen: &'a [String], text: &str) -> &'a str {
    screen.iter().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text} in {screen:#?}"))
}

/// The line of the selected row, which is shown in reverse.
fn selected(terminal: &Terminal) -> String {
    let screen = terminal.coloured_screen();
    // The title is, too.
    let line = screen.lines().skip(1).find(|line| line.contains("\u{1b}[7m") || line.contains(";7m"));
    line.unwrap_or_default().to_owned()
}

/// Peers of two nodes with the same number have rows and messages of their own.
#[test]
fn peers_of_two_nodes() {
    let folder = tempfile::tempdir().expect("a directory");
    let program = build(folder.path(), Flavour::Core(31));
    let mut nodes = [FakeNode::start(&program), FakeNode::start(&program)];
    let tool = env!("CARGO_BIN_EXE_chainscope");
    let terminal = Terminal::start(120, 30, &format!("{tool} trace p2p-monitor --file {}", program.display()));
    terminal.wait_for("Monitor");
    for (number, node) in (1..).zip(&mut nodes) {
        node.wait_for_semaphores(&["net:inbound_message"], 1);
        node.fire(&format!(
            "net:inbound_message peer_id=7 message_type=ping size={number}0 address=10.0.0.{number}:8333"
        ));
    }
    let screen = terminal.wait_for("10.0.0.2:8333");
    let first = nodes[0].pid().min(nodes[1].pid());
    for (number, node) in (1..).zip(&nodes) {
        let row = line(&screen, &format!("10.0.0.{number}:8333"));
        assert!(row.contains(&format!("      7      0       0 B       1      {number}0 B")), "{screen:#?}");
        assert!(row.contains(&format!("process {},", node.pid())), "{screen:#?}");
    }
    terminal.press(&["Enter"]);
    let screen = terminal.wait_for(&format!(" of process {first}"));
    assert_eq!(screen.iter().filter(|line| line.contains("<--- ping")).count(), 1, "{screen:#?}");
}

#[test]
fn peers_of_a_running_node() {
    let (mut node, terminal, _folder) = start("p2p-monitor", 120, 30);
    node.fire("net:inbound_message peer_id=3 message_type=ping size=8 seed=1 address=10.0.0.3:8333");
    node.fire("net:outbound_message peer_id=3 message_type=pong size=8 seed=1 address=10.0.0.3:8333");
    node.fire("net:inbound_message peer_id=9 message_type=pong size=8 seed=2 address=10.0.0.9:8333");
    node.fire("net:inbound_message peer_id=9 message_type=notamessage size=3 seed=2 address=10.0.0.9:8333");
    terminal.wait_for("10.0.0.9:8333");
    assert!(!terminal.screen().iter().any(|line| line.contains('×')));
    node.fire("net:closed_connection peer_id=9 address=10.0.0.9:8333");
    let screen = terminal.wait_for("disconnected");
    assert!(
        line(&screen, "10.0.0.9").starts_with("×     9      0       0 B       2      11 B  10.0.0.9:8333"),
        "{screen:#?}"
    );
    assert!(
        line(&screen, "10.0.0.3").starts_with("      3      1       8 B       1       8 B  10.0.0.3:8333"),
        "{screen:#?}"
    );
    terminal.wait("the accounting", |screen| screen[29].contains("5 hits = 5 delivered + 0 dropped"));

    // The selection stays with the peer when another one comes before it.
    terminal.press(&["j"]);
    terminal.wait("peer 9 selected", |_| selected(&terminal).contains("10.0.0.9"));
    node.fire("net:inbound_message peer_id=1 message_type=verack size=0 address=10.0.0.1:8333");
    terminal.wait_for("10.0.0.1:8333");
    assert!(selected(&terminal).contains("10.0.0.9"), "{}", selected(&terminal));

    terminal.press(&["Enter"]);
    let screen = terminal.wait_for("PEER 9 (10.0.0.9:8333) disconnected");
    assert!(line(&screen, "<--- pong").contains("(8 bytes)"), "{screen:#?}");
    terminal.press(&["Up", "Right"]);
    let screen = terminal.wait_for("nonce: ");
    assert!(line(&screen, "<--- pong").contains("(8 bytes)"), "{screen:#?}");
    // The number is that of the bytes below it.
    let number: u64 =
        line(&screen, "nonce: ").trim_matches(['│', ' ', '└', '─']).split(' ').next_back().unwrap().parse().unwrap();
    let bytes =
        line(&screen, "00000000 ").split_whitespace().skip_while(|word| *word != "00000000" && *word != "│00000000");
    let bytes: Vec<u8> = bytes.skip(1).take(8).map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    assert_eq!(number.to_le_bytes(), bytes[..]);
    terminal.press(&["Left", "Down", "Right"]);
    let screen = terminal.wait_for("not decoded: messages of this type cannot be decoded");
    line(&screen, "00000000 ");

    // A new message of another peer, while it is open.
    terminal.press(&["Left", "Left"]);
    node.fire("net:inbound_message peer_id=3 message_type=ping size=8 address=10.0.0.3:8333");
    terminal.wait("a new message", |screen| {
        screen.iter().any(|line| line.starts_with("      3      1       8 B       2      16 B"))
    });

    terminal.resize(80, 24);
    let is_marked = |screen: &[String]| screen.iter().any(|line| line.starts_with("×     9"));
    terminal.wait("80 columns", |screen| screen.len() == 24 && is_marked(screen) && screen[23].contains("7 hits"));
    terminal.resize(60, 12);
    terminal.wait("60 columns", |screen| screen.len() == 12 && is_marked(screen) && screen[11].contains("7 hits"));
    terminal.press(&["Enter"]);
    let screen = terminal.wait_for("PEER 9");
    assert!(screen.iter().all(|line| line.chars().count() <= 60) && line(&screen, "<--- pong").contains("(8 bytes)"));
    terminal.press(&["q"]);
    let screen = terminal.wait_for("isig");
    assert!(screen.contains(&"exit 0".to_owned()), "{screen:#?}");
    assert!(screen.contains(&"7 hits = 7 delivered + 0 dropped".to_owned()), "{screen:#?}");
}

#[test]
fn the_mempool_of_a_running_node() {
    let (mut node, terminal, _folder) = start("mempool", 120, 30);
    node.fire("mempool:added fee=1000 size=100");
    node.fire("mempool:removed reason=expiry");
    let screen = terminal.wait_for("expiry");
    assert!(line(&screen, "│ added").starts_with("│ added         1tx     1tx     1tx"), "{screen:#?}");
    assert!(screen[2].contains("Event count") && screen[2].contains("Event rate"), "{screen:#?}");
    node.execute("repeat 50 mempool:added txid=# quiet=1");
    terminal.wait("50 more", |screen| screen.iter().any(|line| line.starts_with("│ added        51tx")));
    terminal.press(&["Up", "k"]);
    terminal.wait_for("Event log (2 newer)");
    node.fire("mempool:rejected reason=min-fee-not-met");
    terminal.press(&["End"]);
    terminal.wait_for("min-fee-not-met");

    terminal.resize(80, 24);
    let is_shown = |screen: &[String], text: &str| screen.iter().any(|line| line.contains(text));
    terminal.wait("80 columns", |screen| {
        screen.len() == 24 && is_shown(screen, "Event rate") && screen[23].contains("53 hits")
    });
    terminal.resize(60, 12);
    // The newest events, below the whole table, wrapped.
    let screen = terminal.wait("60 columns", |screen| screen.len() == 12 && screen[8].ends_with("min-fee-not-met"));
    assert!(screen[6].starts_with(" rejected") && screen[7].contains(" rejected "), "{screen:#?}");
    assert!(line(&screen, " added").contains("51tx") && screen[11].contains("53 hits"), "{screen:#?}");
    terminal.press(&["C-c"]);
    let screen = terminal.wait_for("isig");
    assert!(screen.contains(&"exit 0".to_owned()), "{screen:#?}");
}

/// Neither of them spins or stays when its terminal is closed.
#[test]
fn screens_end_with_their_terminal() {
    for view in ["p2p-monitor", "mempool"] {
        let folder = tempfile::tempdir().expect("a directory");
        let node = FakeNode::run(folder.path(), Flavour::Core(31));
        let pid = folder.path().join("pid");
        let (program, shown) = (env!("CARGO_BIN_EXE_chainscope"), node.pid());
        let command = format!("echo $$ > {}; exec {program} trace {view} --pid {shown}", pid.display());
        let terminal = Terminal::start(100, 20, &command);
        terminal.wait_for("Monitor");
        let pid = std::fs::read_to_string(pid).expect("written");
        let running = || std::fs::read_link(format!("/proc/{}/exe", pid.trim())).is_ok();
        assert!(running());
        drop(terminal);
        wait::until_true("the end of the program", || !running());
    }
}
