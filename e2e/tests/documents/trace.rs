//! Nodes with tracepoints: listed, traced, recorded, and stored.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};

use chainscope_e2e::harness::document::Document;
use chainscope_e2e::harness::wait;
use chainscope_testing::fakenode::blocks::{Block, setting};
use chainscope_testing::fakenode::{FakeNode, Flavour, build};

use crate::Outcome::{Ends, Follows, Interrupted, OnTerminal, Writes};
use crate::user::User;
use crate::{Outcome, Scene, Until};

pub(crate) const OUTCOMES: &[(&str, Outcome)] = &[
    ("chainscope tracepoints /usr/bin/bitcoind", Ends(0, "contract bitcoin-core-v31")),
    ("chainscope tracepoints --pid $(pidof bitcoind)", Ends(0, "net:inbound_message")),
    ("chainscope tracepoints --pid $(pidof tapyrusd) --check", Ends(1, "documentation  mempool:replaced")),
    ("chainscope tracepoints --container tapyrus-mainnet", Ends(0, "contract tapyrus")),
    ("chainscope tracepoints ./src/tapyrusd --provider 'mempool*'", Ends(0, "mempool:added")),
    ("chainscope tracepoints ./src/tapyrusd --check", Ends(1, "documentation  mempool:replaced")),
    ("chainscope tracepoints ./src/bitcoind --json | jq .", Ends(0, "\"bitcoin-core-v31\"")),
    ("chainscope trace p2p --pid $(pidof bitcoind)", Interrupted("inbound 'inv' msg from peer 7")),
    ("chainscope trace raw --file /usr/bin/tapyrusd", Interrupted("inbound msg 'ping' from peer 7")),
    ("chainscope trace blocks 840000 850000 100 --container node", Interrupted("Block 840000 (")),
    ("chainscope trace any 'mempool:*' --pid 1234 --json", Interrupted("\"tracepoint\":\"mempool:added\"")),
    ("chainscope trace p2p --pid $(pidof bitcoind) --decode --json --filter", OnTerminal("\"block\"")),
    ("chainscope trace raw --pid $(pidof bitcoind) --pcapng", Writes("messages.pcapng")),
    ("tshark -r messages.pcapng", Ends(0, "Bitcoin protocol")),
    ("chainscope trace info node.trace", Ends(0, "validation:block_connected")),
    ("chainscope trace replay node.trace p2p", Ends(0, "inbound 'inv' msg from peer 7")),
    ("chainscope trace replay node.trace blocks", Ends(0, "Block 840000 (")),
    ("chainscope trace replay node.trace mempool --filter 'fee>10000'", Ends(0, "hits = ")),
    ("chainscope trace replay node.trace any 'net:*' --format", Ends(0, " 7 inv ")),
    ("chainscope trace copy node.trace blocks.trace", Ends(0, "")),
];

/// While events are recorded to the store.
pub(crate) const STORED: &[(&str, Outcome)] = &[
    ("curl -G 'localhost:17732/v2/trace' -d 'tracepoint=net:*'", Ends(0, "\"message_type\":\"block\"")),
    ("curl -N 'localhost:17732/v2/trace/stream?tracepoint=mempool:*'", Follows("\"tracepoint\":\"mempool:added\"")),
];

/// What a node does again and again.
fn traffic() -> Vec<String> {
    let inv = setting(&Block::new([1; 32], 840_000, 2, 1).inv());
    [
        &*format!("fire net:inbound_message message_type=inv {inv}"),
        "fire net:outbound_message message_type=ping size=8",
        "fire net:inbound_message message_type=ping size=8",
        "fire net:inbound_message message_type=block size=150000 seed=2",
        "fire mempool:added txid=# fee=20000 size=200",
        // For the block to have taken 150 ms.
        "pause 160",
    ]
    .map(str::to_owned)
    .into()
}

/// A control group that is removed when it is dropped.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates one in the first hierarchy that takes it: version 1, hybrid, or 2.
    fn create(id: &str) -> Self {
        let hierarchies = ["pids", "systemd", "freezer", "unified", ""];
        let groups = hierarchies.map(|hierarchy| Path::new("/sys/fs/cgroup").join(hierarchy)).into_iter();
        let mut groups = groups.filter(|at| at.join("cgroup.procs").exists());
        let create = |at: PathBuf| {
            let group = at.join(format!("docker-{id}.scope"));
            fs::create_dir(&group).is_ok().then_some(group)
        };
        Self(groups.find_map(create).expect("a hierarchy that takes a control group"))
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("the process is added");
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The processes have exited, which the kernel may still have to notice.
        wait::until_true("an empty control group", || fs::remove_dir(&self.0).is_ok());
    }
}

/// Lets a node do what it does until the test ends.
fn run<'scope>(scope: &'scope Scope<'scope, '_>, mut node: FakeNode, block_duration: u64, ends: &'scope AtomicBool) {
    let block = format!("fire validation:block_connected height=840000 duration={block_duration}");
    scope.spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            for command in traffic().iter().chain([&block]) {
                node.execute(command);
            }
        }
    });
}

#[test]
fn commands_about_tracepoints() {
    let user = User::new();
    fs::create_dir(user.path("src")).expect("a directory");
    let source = user.path("src");
    let [bitcoind, tapyrusd] = [Flavour::Core(31), Flavour::Tapyrus].map(|flavour| build(&source, flavour));
    let id = format!("{:064x}", std::process::id());
    let group = ControlGroup::create(&id);
    let [bitcoin, tapyrus] = [&bitcoind, &tapyrusd].map(|program| FakeNode::start(program));
    let pid = bitcoin.pid();
    user.processes(&[("bitcoind", pid), ("tapyrusd", tapyrus.pid())]);
    group.add(tapyrus.pid());

    let config = Document::read("docs/tracepoints.md").block("[nodes.trace]").to_owned();
    fs::write(user.path("chainscope.toml"), format!("data_dir = \"data\"\n{config}")).expect("written");
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let _until = Until(&ends);
        run(scope, bitcoin, 150_000_000, &ends);
        run(scope, tapyrus, 150_000, &ends);
        // The recording that the document's commands read.
        let recorder = user.start(&format!("chainscope trace any '*:*' --pid {pid} --record node.trace"));
        let blocks = |lines: &[String]| lines.iter().filter(|line| line.contains("block_connected")).nth(1).map(drop);
        recorder.wait_stdout("two blocks", blocks);
        recorder.signal(rustix::process::Signal::INT);
        recorder.join(wait::WAIT_TIMEOUT).expect_success("trace any --record");

        let file = |path: &Path| path.display().to_string();
        let substitutions = vec![
            ("/usr/bin/bitcoind", file(&bitcoind)),
            ("/usr/bin/tapyrusd", file(&tapyrusd)),
            ("--container tapyrus-mainnet", format!("--container {id}")),
            ("--container node", format!("--container {id}")),
            ("--pid 1234", format!("--pid {pid}")),
        ];
        user.play(&Scene { substitutions, outcomes: OUTCOMES });

        let server = user.serve("chainscope run");
        // Tracepoints are attached one after the other: that one is hit does not say that others are attached.
        for (tracepoint, text) in [("mempool:*", "fee"), ("net:*", "block")] {
            user.wait_for(&format!("curl -sf 'localhost:17732/v2/trace?tracepoint={tracepoint}' | grep -q {text}"));
        }
        user.play(&Scene { substitutions: Vec::new(), outcomes: STORED });
        server.terminate().expect_success("chainscope run");
    });
}
