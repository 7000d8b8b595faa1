//! `chainscope messages --live` in a terminal.

use chainscope_testing::wait;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    refusal,
    server::{Server, metadata},
    tmux::Terminal,
};

/// A terminal whose shell starts the table, and then says how it ended and whether the terminal is as before.
fn start(server: &Server, columns: u16, lines: u16) -> Terminal {
    let program = env!("CARGO_BIN_EXE_chainscope");
    let table = format!("echo $$ > pid; exec {program} messages --live --url {}", server.url());
    let modes = "stty -a | grep -owE -e '-?(icanon|echo|isig)' | sort | tr '\\n' ' '";
    let shell = format!("cd $(dirname $TMUX); echo before; sh -c '{table}'; echo \"exit $?\"; {modes}; cat");
    Terminal::start(columns, lines, &shell)
}

fn assert_restored(terminal: &Terminal) {
    let screen = terminal.wait_for("exit ");
    assert!(screen.contains(&"before".to_owned()) && screen.contains(&"exit 0".to_owned()), "{screen:#?}");
    let screen = terminal.wait_for("isig");
    assert!(screen.contains(&"echo icanon isig".to_owned()), "{screen:#?}");
}

#[test]
fn keys_resize_a_restart_of_the_server_and_quit() {
    let mut server = Server::start();
    let first = [metadata(20_001, false, 0), metadata(20_001, true, 0), metadata(20_002, true, 0)];
    server.feed(first.concat());
    let terminal = start(&server, 130, 20);
    let screen = terminal.wait_for("live · peers: 2 · messages: 3");
    assert!(screen[2].starts_with("ADDRESS"), "{screen:#?}");
    assert!(screen[3].starts_with("127.0.0.1:20001 idPeerAt20001"), "{screen:#?}");
    assert!(screen[3].contains("out 1      1      4 B") && screen[3].ends_with("meta"), "{screen:#?}");

    server.feed(metadata(20_003, true, 0));
    terminal.wait_for("peers: 3 · messages: 4");

    terminal.press(&["Down", "k", "j", "Enter"]);
    let screen = terminal.wait_for("Esc peers");
    assert!(screen[1].starts_with(" 127.0.0.1:20002 out · idPeerAt20002"), "{screen:#?}");
    assert!(screen[3].contains("12:02:03.456        2 ← meta"), "{screen:#?}");
    terminal.press(&["Enter"]);
    let screen = terminal.wait_for("bytes:");
    assert!(screen.iter().any(|line| line == "  \"private_node\": true"), "{screen:#?}");
    assert!(screen.iter().any(|line| line.starts_with("00000000  00 ff ")), "{screen:#?}");

    terminal.resize(60, 8);
    let screen =
        terminal.wait("resized", |screen| screen.len() == 8 && screen[7] == " ↑↓←→ scroll · Esc messages · q quit");
    assert!(screen[0].starts_with(" live · peers: 3"), "{screen:#?}");
    terminal.resize(130, 20);
    terminal.press(&["Escape"]);
    terminal.wait_for("Esc peers");
    terminal.press(&["Escape"]);
    terminal.wait_for("ADDRESS");

    server.stop();
    terminal.wait_for("RECONNECTING · peers: 3 · messages: 4");
    server.resume();
    server.feed(metadata(20_004, true, 0));
    terminal.wait_for("live · peers: 4 · messages: 5");

    terminal.press(&["q"]);
    assert_restored(&terminal);
}

#[test]
fn signals_and_control_c_restore_the_terminal() {
    let mut server = Server::start();
    server.feed(metadata(20_001, true, 0));
    for signal in [Some(Signal::TERM), Some(Signal::INT), None] {
        let terminal = start(&server, 100, 10);
        terminal.wait_for("live · peers: 1");
        match signal {
            Some(signal) => {
                let pid = wait::until("its pid", || {
                    std::fs::read_to_string(terminal.file("pid")).ok()?.trim().parse().ok().and_then(Pid::from_raw)
                });
                kill_process(pid, signal).expect("it runs");
            }
            None => terminal.press(&["C-c"]),
        }
        assert_restored(&terminal);
    }
}

/// It neither spins nor stays when its terminal is closed.
#[test]
fn it_ends_with_its_terminal() {
    let mut server = Server::start();
    server.feed(metadata(20_001, true, 0));
    let folder = tempfile::tempdir().expect("a directory");
    let (program, pid) = (env!("CARGO_BIN_EXE_chainscope"), folder.path().join("pid"));
    let command = format!("echo $$ > {}; exec {program} messages --live --url {}", pid.display(), server.url());
    let terminal = Terminal::start(100, 20, &command);
    terminal.wait_for("live · peers: 1");
    let pid = std::fs::read_to_string(pid).expect("written");
    let running = || std::fs::read_link(format!("/proc/{}/exe", pid.trim())).is_ok();
    assert!(running());
    drop(terminal);
    wait::until_true("the end of the program", || !running());
}

#[test]
fn without_a_terminal_or_a_server_it_is_refused() {
    let server = Server::start();
    assert_eq!(refusal(&["messages", "--live", "--url", &server.url()]), "chainscope: --live needs a terminal\n");
    let mut server = Server::start();
    server.stop();
    let terminal = start(&server, 100, 10);
    let screen = terminal.wait_for("exit 1");
    assert!(screen.iter().any(|line| line.contains("no response from")), "{screen:#?}");
}
