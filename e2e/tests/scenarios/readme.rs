//! The `curl` examples of the README, exactly as printed, and its `make` commands without running them.

use std::process::Command;

use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::{free_port, run, wait};
use serde_json::Value;

/// That they work takes minutes to hours: `make` runs this test itself.
#[test]
fn make_commands_say_what_they_build_and_wait_for() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let readme = std::fs::read_to_string(format!("{root}/README.md")).expect("README.md");
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("make ")).collect();
    assert!(commands.len() >= 3, "{commands:?}");
    for command in commands {
        // `sh` drops the comment.
        let dry = command.replacen("make ", "make --dry-run --no-print-directory ", 1);
        let output = run(Command::new("sh").current_dir(root).arg("-c").arg(dry));
        let said: Vec<&str> = output.lines().filter(|line| line.starts_with("echo \"==> ")).collect();
        assert!(said.iter().any(|line| line.contains("minutes")), "{command}: {output}");
        assert!(!output.contains("as-root cargo"), "{command} runs cargo as root: {output}");
    }
}

#[test]
fn curl_examples_work_as_printed() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).expect("README.md");
    let examples: Vec<&str> = readme.lines().filter(|line| line.starts_with("curl ")).collect();
    assert!(examples.len() >= 4, "{examples:?}");

    let mut machine = Machine::new("auto");
    let port = free_port();
    machine.observe("9732", port);
    let chainscope = machine.start();
    let node = DemoNode::new("load")
        .listen(port)
        .identity(&machine.identity("9732"))
        .with("--rate 100")
        .start_observed(&chainscope.api, "9732");
    let peer = DemoNode::new("load").peer(port).with("--rate 100").start();
    wait::until("messages", || (chainscope.api.count("9732") >= 100).then_some(()));

    // The example's peer is another one.
    let remote = chainscope.api.page("9732", "limit=1")[0]["remote_addr"].as_str().expect("an address").to_owned();
    for example in examples {
        let here = example.replace("localhost:17732", &format!("127.0.0.1:{}", machine.port()));
        assert_ne!(here, example, "another address than the default");
        let here = here.replace("remote_addr=127.0.0.1:9733", &format!("remote_addr={remote}"));
        assert_eq!(here.contains(&remote), example.contains("remote_addr"), "{here}");
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec {here}"));
        if example.contains("/stream") {
            let live = Program::start(example, &mut shell);
            let event = live
                .wait_stdout("event", |lines| lines.iter().find_map(|l| l.strip_prefix("data:").map(str::to_owned)));
            serde_json::from_str::<Value>(&event).unwrap_or_else(|e| panic!("{example}: {e}: {event}"));
            continue;
        }
        let answer = run(&mut shell);
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{example}: {e}: {answer:.200}"));
        assert!(answer.get("status").is_none() && answer.get("title").is_none(), "{example}: {answer}");
        assert!(answer.as_array().is_none_or(|found| !found.is_empty()), "{example}: {answer}");
    }
    node.terminate();
    peer.terminate();
}
