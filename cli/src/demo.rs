//! `chainscope demo`: a demo node and its peer, recorded like any other node, and which code holds its memory.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
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
use chainscope_spec::{Config, Memory};
use serde_json::Value;

use crate::{api::Api, args::DemoArgs, logs, memory, p2p, run, terminal};

/// How long is waited for the node's memory to be observed, and then for a first stack.
const OBSERVED: Duration = Duration::from_secs(10);
/// Messages shown where nobody can press Ctrl-C.
const SHOWN: u64 = 40;

pub(crate) fn run(args: DemoArgs) -> anyhow::Result<()> {
    logs::start(None, "warn")?;
    let program = demo_node(args.demo_node.as_deref())?;
    let folder = tempfile::tempdir()?;
    let identity = folder.path().join("identity.json");
    let rate = args.rate.to_string();

    let mut node = DemoNode::start(
        Command::new(&program)
            .args(["load", "--listen", "[::1]:0", "--commands", "--keep-open", "--rate", &rate, "--identity"])
            .arg(&identity),
    )?;
    let port = node.port()?;
    terminal::line(&format!("A demo node runs as pid {}, listening for peers on port {port}.", node.child.id()))?;

    let mut config = Config::for_port(port, Some(identity));
    for node in &mut config.nodes {
        node.observe.memory = Some(Memory::default());
    }
    config.listen = args.listen;
    config.data_dir = folder.path().join("data");
    let running = run::start(&config)?;
    let url = format!("http://{}", run::reachable(running.address()));
    terminal::line(&format!("Chainscope records it from outside and serves {url}/v2/p2p (the API: {url}/docs)."))?;

    // Only what is asked for from now on has a stack. Older kernels and fewer rights are enough for the messages.
    let api = Api::new(&url);
    let observed = memory::attached(&running, &api, OBSERVED);

    let _peer = DemoNode::start(
        Command::new(&program)
            .args(["load", "--commands", "--keep-open", "--connections", "2", "--rate", &rate, "--seed", "2"])
            .args(["--peer", &format!("[::1]:{port}")]),
    )?;
    terminal::line("A peer connects. Every line is a message on its encrypted connections: → sent, ← received.\n")?;

    let shown = show(&running, &api, args.messages.or((!terminal::is_interactive()).then_some(SHOWN)))?;
    terminal::line("\nWhich code holds the demo node's memory, from its entry points inward:\n")?;
    if let Err(error) = observed.and_then(|()| memory::show_own(&running, &api, OBSERVED)) {
        terminal::line(&format!("{error:#}"))?;
    }
    summary(&api, shown)?;
    running.stop()
}

/// Prints messages until there were enough, or somebody presses Ctrl-C; returns how many.
fn show(running: &run::Running, api: &Api, most: Option<u64>) -> anyhow::Result<u64> {
    let shown = Arc::new(AtomicU64::new(0));
    let left = Arc::new(AtomicU64::new(most.unwrap_or(u64::MAX)));
    let (done, ended) = tokio::sync::oneshot::channel();
    let print = {
        let (api, shown, left) = (api.clone(), Arc::clone(&shown), Arc::clone(&left));
        move || {
            p2p::follow(&api, Vec::new(), Some(0), |row| {
                if shown.load(Ordering::Relaxed) >= left.load(Ordering::Relaxed) {
                    bail!(Enough);
                }
                p2p::show(row, false)?;
                shown.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        }
    };
    // Nobody is there to be told if somebody pressed Ctrl-C.
    thread::spawn(move || done.send(print()).is_ok());
    let ended = running.wait_for(ended)?;
    left.store(0, Ordering::Relaxed);
    match ended {
        Some(Ok(Err(error))) if !error.is::<Enough>() => Err(error),
        _ => Ok(shown.load(Ordering::Relaxed)),
    }
}

#[derive(Debug)]
struct Enough;

impl std::fmt::Display for Enough {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("enough messages were shown")
    }
}

impl std::error::Error for Enough {}

fn summary(api: &Api, shown: u64) -> anyhow::Result<()> {
    let connections = api.json("/v3/connections", &[])?;
    let connections = connections.as_array().map_or(0, Vec::len);
    terminal::line(&format!(
        "\n{shown} messages of {connections} connections shown. `chainscope run --help` says how to record a node."
    ))
}

/// The program beside this one, unless another is named.
fn demo_node(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let beside = std::env::current_exe()?.with_file_name("chainscope-demo-node");
    if fs::exists(&beside)? {
        return Ok(beside);
    }
    bail!("{} is not there: it is built by `make build`, or name it with --demo-node", beside.display())
}

/// A demo node that ends with this process: its standard input is its lifeline.
struct DemoNode {
    child: Child,
    events: BufReader<std::process::ChildStdout>,
}

impl DemoNode {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for us: its memory is to be shown.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        let out = child.stdout.take().context("the demo node has no standard output")?;
        Ok(Self { child, events: BufReader::new(out) })
    }

    /// Waits until it listens.
    fn port(&mut self) -> anyhow::Result<u16> {
        let mut line = String::new();
        while self.events.read_line(&mut line)? > 0 {
            let event: Value = serde_json::from_str(&line).with_context(|| format!("the demo node said {line:?}"))?;
            if event["event"] == "listening" {
                let address: SocketAddr = event["address"].as_str().unwrap_or_default().parse()?;
                return Ok(address.port());
            }
            line.clear();
        }
        bail!("the demo node ended before it listened")
    }
}

impl Drop for DemoNode {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It may have ended by itself; there is nothing left to do about either.
        let _ = self.child.wait();
    }
}
