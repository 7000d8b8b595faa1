//! Programs whose functions are timed.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use chainscope_e2e::harness::run;
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_testing::fakenode::{FakeNode, Flavour};
use chainscope_testing::program::compile;

use crate::Outcome::{Ends, Interrupted};
use crate::user::User;
use crate::{Outcome, Scene, Until};

pub(crate) const OUTCOMES: &[(&str, Outcome)] = &[
    ("chainscope latency record --pid $(pidof rippled) --duration 600 --tags 1.4.0", Interrupted("recording run ")),
    ("chainscope latency compare 1.3.9 1.4.0", Ends(0, "transactor")),
    ("chainscope latency list", Ends(0, "1.4.0-b3")),
    ("chainscope latency list --tag 1.4.0-b4", Ends(0, "1.4.0-b4")),
    ("chainscope latency report 1.4.0-b4 --html report.html", Ends(0, "payment")),
    ("chainscope latency compare 1.4.0-b3 1.4.0-b4 --margin 3", Ends(0, "transactor")),
    ("chainscope latency transactions --id 9F3C --slowest", Ends(0, "TRANSACTION")),
    ("chainscope latency import probes.db", Ends(0, "")),
    ("chainscope latency export metrics.json latest --format otlp", Ends(0, "")),
    ("chainscope latency record -p $(pidof rippled) -d 600 -c $(git rev-parse HEAD)", Interrupted("recording run ")),
    ("chainscope latency record -p 1234 -f 'Validator::*' --plan", Ends(0, "")),
    ("chainscope latency record -p 1234=1.4.0-b3 -p 5678=1.4.0-b4 -d 600", Interrupted("recording run ")),
    ("chainscope latency compare 1.4.0-b3 1.4.0-b4", Ends(0, "transactor")),
    ("chainscope latency record -e /usr/sbin/bitcoind -f ConnectBlock -d 3600", Interrupted("recording run ")),
];

/// While runs of two releases are stored.
pub(crate) const STORED: &[(&str, Outcome)] = &[
    ("curl 'localhost:17732/v2/latency/report?run=latest'", Ends(0, "\"tags\":[\"v2.4\"]")),
    ("curl 'localhost:17732/v2/latency/compare?a=v2.3&b=v2.4&margin=3' | jq .verdict", Ends(0, "\"inconclusive\"")),
    ("curl 'localhost:17732/v2/latency/transactions?type=0,7&slowest=true&limit=5'", Ends(0, "[]")),
    (
        "chainscope latency compare v2.3 v2.4 --api http://localhost:17732 --html page.html",
        Ends(0, "inconclusive: margin 5 %"),
    ),
];

/// Calls functions of the documents' names until its standard input ends.
const SOURCE: &str = "
#include <poll.h>
#define APART __attribute__((noinline, noclone, noipa))
struct Validator {
    APART int check(int block) { asm volatile(\"\"); return block; }
    APART int accept(int block) { asm volatile(\"\"); return block; }
};
APART int ConnectBlock(int block) { Validator validator; return validator.check(block) + validator.accept(block); }
int main() {
    for (pollfd input{0, POLLIN, 0}; poll(&input, 1, 1) == 0;) ConnectBlock(1);
}
";

/// A process that ends when this is dropped.
struct Workload(Child);

impl Workload {
    fn start(folder: &Path) -> Self {
        let source = folder.join("bitcoind.cc");
        fs::write(&source, SOURCE).expect("written");
        let program = compile("g++", &source, folder, "bitcoind", &["-O2"]);
        Self(Command::new(program).stdin(Stdio::piped()).spawn().expect("it starts"))
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Records a run of rippled of a second.
fn record(user: &User, options: &str) {
    let recorder = user.start(&format!("chainscope latency record --pid $(pidof rippled) --duration 1 {options}"));
    recorder.join(WAIT_TIMEOUT).expect_success(options);
}

#[test]
fn commands_about_latency() {
    let user = User::new();
    let git = |arguments: &[&str]| drop(run(Command::new("git").arg("-C").arg(user.path("")).args(arguments)));
    git(&["init", "--quiet"]);
    let author = ["-c", "user.name=Author", "-c", "user.email=author@example.org"];
    git(&[&author[..], &["commit", "--quiet", "--allow-empty", "--message", "Empty"]].concat());
    let workload = Workload::start(&user.path(""));
    let mut rippled = FakeNode::run(&user.path(""), Flavour::Rippled);
    let (pid, newer) = (rippled.pid(), FakeNode::run(&user.path(""), Flavour::Rippled));
    user.processes(&[("rippled", pid)]);

    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let _until = Until(&ends);
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                rippled.execute("transaction kind=payment");
                rippled.execute("transaction kind=offer");
            }
        });
        record(&user, "--tags 1.3.9,1.4.0-b3");
        record(&user, "--tags 1.4.0-b4");
        record(&user, "--db other.db");
        user.start("chainscope latency --db other.db export probes.db").join(WAIT_TIMEOUT).expect_success("export");
        let substitutions = vec![
            ("-p 1234=", format!("-p {pid}=")),
            ("-p 5678=", format!("-p {}=", newer.pid())),
            ("-p 1234", format!("-p {}", workload.0.id())),
            ("/usr/sbin/bitcoind", user.path("bitcoind").display().to_string()),
        ];
        user.play(&Scene { substitutions, outcomes: OUTCOMES });
    });
    for (number, tag) in ["v2.3", "v2.4"].into_iter().enumerate() {
        let latency = format!("{{ functions = [{{ function = \"ConnectBlock\" }}], tags = [\"{tag}\"] }}");
        let config = format!(
            "data_dir = \"data\"\n[[nodes]]\nname = \"main\"\nexe = {:?}\ntrace = {{ latency = {latency} }}\n",
            user.path("bitcoind").display().to_string()
        );
        fs::write(user.path("chainscope.toml"), config).expect("written");
        let server = user.serve("chainscope run");
        user.wait_for(&format!("test $(curl -s localhost:17732/v2/latency/runs | jq length) = {}", number + 1));
        if number == 1 {
            user.play(&Scene { substitutions: Vec::new(), outcomes: STORED });
        }
        server.terminate().expect_success("chainscope run");
    }
    assert!(fs::read_to_string(user.path("report.html")).is_ok_and(|page| page.starts_with("<!doctype html>")));
}
