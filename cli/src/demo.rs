//! `chainscope demo`: records a demo node and its peer like any other node, in memory, and shows its messages, its log and which
//! code holds its memory.

use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind},
    net::{SocketAddr, TcpListener},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use chainscope_agent::Finding;
use chainscope_spec::{Config, Logs, Memory};
use serde_json::Value;

use crate::{
    api::Api,
    args::DemoArgs,
    diagnostics,
    failure::{self, Failure},
    logs, memory, messages,
    standalone::{self, Running, Storage},
    terminal, time,
};

/// How long to wait for the node's memory to be observed, then for a first stack, and for its log.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of messages to show if standard output is not a terminal.
const DEFAULT_MESSAGES: u64 = 40;
/// What to try after the demo.
const NEXT: &str = "
  sudo chainscope run --p2p-port 9732  record the node that listens for peers on port 9732
  chainscope messages --live           then: its peers and their messages, live
  sudo chainscope memory --pid PID     which code holds the memory of any process
  make images                          images for Kubernetes: docs/kubernetes.md

docs/chainscope.example.toml adds the log and the memory of a node, and more nodes.";
/// Number of log messages to show.
const LOG_MESSAGES: u64 = 12;

pub(crate) fn run(args: DemoArgs) -> anyhow::Result<()> {
    diagnostics::start(None, "warn")?;
    require_prerequisites(&chainscope_agent::self_check(Path::new("/proc")))?;
    let binary = demo_node_binary(args.demo_node.as_deref())?;
    let directory = tempfile::tempdir()?;
    let identity = directory.path().join("identity.json");
    let log = directory.path().join("node.log");
    let store = directory.path().join("store");
    let rate = args.rate.to_string();

    let mut node = DemoNode::start(
        Command::new(&binary)
            .args(["load", "--listen", "[::1]:0", "--commands", "--keep-open", "--rate", &rate, "--identity"])
            .arg(&identity)
            .arg("--log")
            .arg(&log)
            .arg("--store")
            .arg(&store),
    )?;
    let port = node.port()?;
    terminal::line(&format!("A demo node runs as pid {}, listening for peers on port {port}.", node.child.id()))?;

    let mut config = Config::for_port(port, Some(identity));
    for node in &mut config.nodes {
        node.observe.memory = Some(Memory::default());
        node.observe.logs = Some(Logs::default());
        node.log_sources.file = Some(log.clone());
    }
    config.listen = free_address(args.listen)?;
    if config.listen.port() != args.listen.port() {
        terminal::line(&format!(
            "Another program listens on {} (another Chainscope?); the API is on another port.",
            args.listen
        ))?;
    }
    config.data_dir = directory.path().join("data");
    let running = standalone::start(&config, Storage::Memory)?;
    let url = format!("http://{}", standalone::reachable(running.address()));
    terminal::line(&format!("Chainscope records it from outside and serves {url}/v2/p2p (the API: {url}/docs)."))?;
    terminal::line("Records are kept in memory; `chainscope run` stores them in RocksDB.")?;
    let program = std::env::args().next().unwrap_or_default();
    terminal::line(&format!(
        "Meanwhile, in another terminal: `{program} messages --live --api {url}` or `{program} logs -f --api {url}`."
    ))?;

    // Only memory allocated from now on has a stack. If memory cannot be observed (an older kernel, fewer capabilities), the
    // messages are shown nevertheless.
    let api = Api::new(&url);
    let observed = memory::wait_attached(&running, &api, OBSERVE_TIMEOUT);

    let _peer = DemoNode::start(
        Command::new(&binary)
            .args(["load", "--commands", "--keep-open", "--connections", "2", "--rate", &rate, "--seed", "2"])
            .args(["--peer", &format!("[::1]:{port}")]),
    )?;
    terminal::line("A peer connects. Every line is a message on its encrypted connections: → sent, ← received.\n")?;

    // Ctrl-C ends the list of messages; the next one ends what follows.
    let shown = show(&running, &api, args.messages.or((!terminal::is_interactive()).then_some(DEFAULT_MESSAGES)))?;
    running.resume();
    terminal::line("\nWhat the demo node logged, as recorded from its log file:\n")?;
    let has_log = || Ok(api.json("/v2/log", &[])?.as_array().is_some_and(|rows| !rows.is_empty()));
    if running.wait_until(OBSERVE_TIMEOUT, has_log)? {
        logs::print_newest(&api, LOG_MESSAGES)?;
    } else {
        terminal::line(&format!("(nothing was recorded within {OBSERVE_TIMEOUT:?})"))?;
    }
    terminal::line("\nWhich code holds the demo node's memory, from its entry points inward:\n")?;
    if let Err(error) = observed.and_then(|()| memory::show_own(&running, &api, OBSERVE_TIMEOUT)) {
        terminal::line(&failure::one_line(&error))?;
    }
    print_summary(&api, shown)?;
    running.stop()
}

/// Fails with all that is missing, before anything is started.
fn require_prerequisites(findings: &[Finding]) -> anyhow::Result<()> {
    let missing: Vec<String> =
        findings.iter().filter(|finding| finding.is_obstacle()).map(|finding| format!("\n  {finding}")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let hint = "the demo loads eBPF programs: run it as root, with sudo, or in a container with --privileged --pid=host; \
                `chainscope run --check` lists all prerequisites";
    Err(Failure::refused(format!("the demo cannot record here:{}", missing.concat())).hint(hint).into())
}

/// The address, or if its port is taken the same address with a free port.
fn free_address(wanted: SocketAddr) -> anyhow::Result<SocketAddr> {
    match TcpListener::bind(wanted) {
        Ok(_) => Ok(wanted),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            Ok(TcpListener::bind(SocketAddr::new(wanted.ip(), 0))?.local_addr()?)
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on {wanted}")),
    }
}

/// Prints `max` messages, or all until Ctrl-C; returns their number.
fn show(running: &Running, api: &Api, max: Option<u64>) -> anyhow::Result<u64> {
    let shown = Arc::new(AtomicU64::new(0));
    let left = Arc::new(AtomicU64::new(max.unwrap_or(u64::MAX)));
    let (done, ended) = tokio::sync::oneshot::channel();
    let print = {
        let (api, shown, left) = (api.clone(), Arc::clone(&shown), Arc::clone(&left));
        move || {
            let mut lines = messages::Lines::new(time::of_day);
            messages::follow(&api, 0, &mut |row| {
                if shown.load(Ordering::Relaxed) >= left.load(Ordering::Relaxed) {
                    bail!(LimitReached);
                }
                lines.print(row)?;
                shown.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        }
    };
    // After Ctrl-C there is no receiver.
    thread::spawn(move || done.send(print()).is_ok());
    let ended = running.wait_for(ended)?;
    left.store(0, Ordering::Relaxed);
    match ended {
        Some(Ok(Err(error))) if !error.is::<LimitReached>() => Err(error),
        _ => Ok(shown.load(Ordering::Relaxed)),
    }
}

/// Ends the stream of messages.
#[derive(Debug)]
struct LimitReached;

impl std::fmt::Display for LimitReached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the limit of messages is reached")
    }
}

impl std::error::Error for LimitReached {}

/// Prints the last lines of the demo: what was shown, and what to try next.
fn print_summary(api: &Api, shown: u64) -> anyhow::Result<()> {
    let connections = api.json("/v3/connections", &[])?;
    let connections = connections.as_array().map_or(0, Vec::len);
    terminal::line(&format!("\n{shown} messages of {connections} connections shown. Try next:\n{NEXT}"))
}

/// The demo node's binary: `path`, else the one beside this binary.
fn demo_node_binary(path: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = path {
        return Ok(path.to_owned());
    }
    let beside = std::env::current_exe()?.with_file_name("chainscope-demo-node");
    if fs::exists(&beside)? {
        return Ok(beside);
    }
    bail!("{} does not exist: `make demo` builds it, --demo-node sets another path", beside.display())
}

/// A demo node. It exits when its standard input is closed, at the latest with this process.
struct DemoNode {
    child: Child,
    events: BufReader<std::process::ChildStdout>,
}

impl DemoNode {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C must not reach the node, whose memory is still to be shown.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        let out = child.stdout.take().context("the demo node has no standard output")?;
        Ok(Self { child, events: BufReader::new(out) })
    }

    /// Waits until the node listens and returns its port.
    fn port(&mut self) -> anyhow::Result<u16> {
        let mut line = String::new();
        while self.events.read_line(&mut line)? > 0 {
            let event: Value =
                serde_json::from_str(&line).with_context(|| format!("unexpected output of the demo node: {line:?}"))?;
            if event["event"] == "listening" {
                let address: SocketAddr = event["address"].as_str().unwrap_or_default().parse()?;
                return Ok(address.port());
            }
            line.clear();
        }
        bail!("the demo node exited before it listened")
    }
}

impl Drop for DemoNode {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // An exit status or an error of wait(2) changes nothing here.
        let _ = self.child.wait();
    }
}
