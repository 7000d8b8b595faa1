//! `chainscope-demo-node`: a stand-in for octez-node. Speaks the Tezos P2P protocol on real sockets, system call by system call as
//! Octez does: a recorded conversation, endless valid traffic with keys of its own, or what no honest peer would say.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use chainscope_e2e::node::hostile::{self, Vice};
use chainscope_e2e::node::messages::{Messages, Sizes};
use chainscope_e2e::node::octez;
use chainscope_e2e::node::plain::{Noise, Pieces};
use chainscope_e2e::node::reactor::{Behaviour, Command, Commander, Plan, Reactor, Role};
use chainscope_e2e::node::report::Report;
use chainscope_e2e::node::script::{Player, Script};
use chainscope_e2e::node::session::{Manner, Session, Source};
use chainscope_e2e::node::wire::Identity;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

/// A stand-in for octez-node on real sockets.
///
/// Prints JSON lines: "listening", "connected", "established", "closed" (bytes and SHA-256 of both directions), "done".
/// With --commands it obeys lines on standard input: connect, traffic, go (whichever of the two is held), close, stop; its end is a stop.
/// SIGTERM and SIGINT are a stop, too. Exits with 1 if a connection did not end as it should.
#[derive(Parser)]
#[command(name = "chainscope-demo-node", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Play one side of a recorded conversation; what is read is compared with the recording.
    Replay(Replay),
    /// Valid traffic: random messages of all kinds, both ways. The peer is another process of the same command.
    Load(Load),
    /// Bytes: random writes of 1 B to 1 MiB, as chunks of a real session or as plain noise.
    Raw(Raw),
    /// A peer (or node) that breaks the rules.
    Hostile(Hostile),
    /// As octez-node is called; CHAINSCOPE_DEMO holds one of the commands above with its options
    Run(Run),
}

#[derive(Args)]
struct Run {
    /// config.json of Octez: data-dir, p2p.listen-addr, p2p.bootstrap-peers
    #[arg(long)]
    config_file: PathBuf,
    /// Octez has it; no meaning here
    #[arg(long)]
    bootstrap_threshold: Option<u32>,
}

#[derive(Args)]
struct Common {
    /// P2P address to listen on, as every node does; port 0 takes a free one
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Connect to this address; tried again while it is refused
    #[arg(long)]
    peer: Option<SocketAddr>,
    /// How many connections to open to the peer
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// identity.json of the node: read if it is there, else a new one (or the recording's) is written
    #[arg(long)]
    identity: Option<PathBuf>,
    /// Leading zero bits of a new identity's proof of work
    #[arg(long, default_value_t = 8)]
    difficulty: u32,
    /// Wait for a command before connecting, or before sending messages
    #[arg(long)]
    hold: Vec<Hold>,
    /// Obey commands on standard input
    #[arg(long)]
    commands: bool,
    /// Exit once this many connections are over [default: those to the peer, if their traffic has an end]
    #[arg(long)]
    exit_after: Option<usize>,
    /// Stop after so many seconds of traffic
    #[arg(long)]
    seconds: Option<f64>,
    /// Seconds for which a refused connection is tried again
    #[arg(long, default_value_t = 10.0)]
    patience: f64,
    /// Call close(2) in another thread, as Octez does
    #[arg(long)]
    close_elsewhere: bool,
    /// SO_SNDBUF of outgoing connections: a small one makes short writes
    #[arg(long)]
    send_buffer: Option<usize>,
    /// Write a JSON line for every message sent or received to this file
    #[arg(long)]
    transcript: Option<PathBuf>,
    /// Of all that is random but keys and nonces
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Hold {
    Connect,
    Traffic,
}

#[derive(Args)]
struct Replay {
    #[command(flatten)]
    common: Common,
    /// Folder with identity.json and payloads.csv, or the sessions
    #[arg(long)]
    dir: PathBuf,
    /// Play <session>.syscalls.jsonl of the folder instead of its payloads.csv
    #[arg(long)]
    session: Option<String>,
    /// Which side to play
    #[arg(long)]
    side: Side,
    /// Role of the local side; another than the recorded one seals the messages anew
    #[arg(long)]
    local_role: Option<LocalRole>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Side {
    Local,
    Remote,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LocalRole {
    Initiator,
    Responder,
}

#[derive(Args)]
struct Speech {
    /// Chain name to announce
    #[arg(long, default_value = "TEZOS_MAINNET")]
    chain: String,
    /// Do not open what is received: only count and hash it
    #[arg(long)]
    trusting: bool,
}

#[derive(Args)]
struct Load {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    speech: Speech,
    /// Messages a second of each connection [default: as fast as it goes]
    #[arg(long)]
    rate: Option<f64>,
    /// Messages to send on each connection [default: no end]
    #[arg(long)]
    messages: Option<u64>,
    /// Stop sending on a connection after so many bytes of messages
    #[arg(long)]
    bytes: Option<u64>,
    /// Length of messages: "natural", "mixed" (some of up to 200 kB), or a number of bytes
    #[arg(long, default_value = "natural", value_parser = sizes)]
    size: Sizes,
    /// Keep connections open when everything is said
    #[arg(long)]
    linger: bool,
    /// Answer handshakes with a Nack of this motive
    #[arg(long)]
    nack: Option<u16>,
}

#[derive(Args)]
struct Raw {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    speech: Speech,
    /// Bytes to send on each connection (in messages, if --tezos)
    #[arg(long, default_value_t = 1 << 20)]
    bytes: u64,
    /// Every write of this many bytes [default: random]
    #[arg(long)]
    piece: Option<usize>,
    /// Largest of the random writes
    #[arg(long, default_value_t = 1 << 20)]
    largest: usize,
    /// Length of messages, as for load
    #[arg(long, default_value = "mixed", value_parser = sizes)]
    size: Sizes,
    /// Handshake and sealed messages, cut without regard to chunks; else noise
    #[arg(long)]
    tezos: bool,
}

#[derive(Args)]
struct Hostile {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    speech: Speech,
    /// What is wrong with it
    #[arg(long)]
    vice: Vice,
}

fn sizes(text: &str) -> Result<Sizes, String> {
    match text {
        "natural" => Ok(Sizes::Natural),
        "mixed" => Ok(Sizes::Mixed(200_000)),
        number => {
            number.parse().map(Sizes::Fixed).map_err(|_| format!("{number:?} is neither natural, mixed nor a number"))
        }
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().what) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chainscope-demo-node: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: What) -> Result<usize> {
    match what {
        What::Replay(replay) => self::replay(replay),
        What::Load(load) => self::load(load),
        What::Run(call) => {
            let deeds = std::env::var(octez::VARIABLE).with_context(|| format!("{} is not set", octez::VARIABLE))?;
            let arguments = octez::Config::load(&call.config_file)?.arguments(&deeds)?;
            let cli = Cli::try_parse_from(std::iter::once("octez-node".to_owned()).chain(arguments))?;
            ensure!(!matches!(cli.what, What::Run(_)), "{} cannot be run", octez::VARIABLE);
            run(cli.what)
        }
        What::Raw(raw) => self::raw(raw),
        What::Hostile(hostile) => {
            let (common, vice) = (&hostile.common, hostile.vice);
            let (report, identity) = (report(common)?, own_identity(common)?);
            let manner = manner(common, &hostile.speech, identity);
            live(common, &report, false, &mut |number, role| {
                hostile::behaviour(vice, manner.clone(), number, role, report.clone())
            })
        }
    }
}

fn replay(replay: Replay) -> Result<usize> {
    let common = &replay.common;
    let report = report(common)?;
    let mut script = Script::load(&replay.dir, replay.session.as_deref())?;
    let role = match replay.local_role {
        Some(LocalRole::Initiator) => Role::Initiator,
        Some(LocalRole::Responder) => Role::Responder,
        None => script.role,
    };
    if role != script.role {
        let local = read_identity(&replay.dir.join("identity.json"))?;
        let remote = read_identity(&replay.dir.join("remote_identity.json"))?;
        script = script.swap_roles(&local, &remote).context("cannot exchange the roles")?;
    }
    // Only what the recorder watches needs an identity; what it reads is what the recorded node read.
    if let (Side::Local, Some(path)) = (replay.side, &common.identity) {
        std::fs::copy(replay.dir.join("identity.json"), path)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let exact = replay.side == Side::Local && replay.session.is_some();
    if replay.side == Side::Remote {
        script = script.mirrored();
    }
    if script.role == Role::Initiator && common.peer.is_none() {
        bail!("this side connects: --peer is missing");
    }
    let common = Common {
        peer: common.peer.filter(|_| script.role == Role::Initiator),
        exit_after: common.exit_after.or(Some(common.connections)),
        ..replay.common
    };
    live(&common, &report, true, &mut |_, _| Box::new(Player::new(&script, exact)))
}

fn load(load: Load) -> Result<usize> {
    let common = &load.common;
    let (report, identity) = (report(common)?, own_identity(common)?);
    let interval = load.rate.map(|rate| Duration::from_secs_f64(1.0 / rate.max(1e-3)));
    let manner = Manner { interval, linger: load.linger, nack: load.nack, ..manner(common, &load.speech, identity) };
    let finite = (load.messages.is_some() || load.bytes.is_some()) && !load.linger;
    let source = |number: u64, role: Role| -> Source {
        let messages = Messages::new(common.seed ^ (number << 1) ^ u64::from(role == Role::Initiator), load.size);
        bounded(messages, load.messages, load.bytes)
    };
    live(common, &report, finite, &mut |number, role| {
        Box::new(Session::new(manner.clone(), number, role, source(number, role), report.clone()))
    })
}

fn raw(raw: Raw) -> Result<usize> {
    let common = &raw.common;
    let (report, identity) = (report(common)?, own_identity(common)?);
    let pieces = raw.piece.map_or(Pieces::UpTo(raw.largest), Pieces::Fixed);
    let manner = Manner { pieces: Some(pieces), ..manner(common, &raw.speech, identity) };
    live(common, &report, true, &mut |number, role| -> Box<dyn Behaviour> {
        let seed = common.seed ^ (number << 1) ^ u64::from(role == Role::Initiator);
        if raw.tezos {
            let source = bounded(Messages::new(seed, raw.size), None, Some(raw.bytes));
            Box::new(Session::new(manner.clone(), number, role, source, report.clone()))
        } else {
            Box::new(Noise::new(seed, pieces, raw.bytes))
        }
    })
}

fn bounded(messages: Messages, most: Option<u64>, bytes: Option<u64>) -> Source {
    // An endless source says so by its size hint; a bounded one must not.
    match (most, bytes) {
        (None, None) => Box::new(messages),
        (most, bytes) => {
            let mut left = bytes.unwrap_or(u64::MAX);
            let most = usize::try_from(most.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
            Box::new(messages.take(most).take_while(move |message| {
                let more = left > 0;
                left = left.saturating_sub(message.framed.len() as u64);
                more
            }))
        }
    }
}

fn manner(common: &Common, speech: &Speech, identity: Rc<Identity>) -> Manner {
    Manner {
        identity,
        port: common.listen.map_or(0, |a| a.port()),
        chain_name: speech.chain.clone().into_bytes(),
        seed: common.seed,
        interval: None,
        pieces: None,
        verify: !speech.trusting,
        linger: false,
        nack: None,
    }
}

fn report(common: &Common) -> Result<Report> {
    match &common.transcript {
        Some(path) => Report::with_transcript(path).with_context(|| format!("cannot write {}", path.display())),
        None => Ok(Report::default()),
    }
}

fn read_identity(path: &Path) -> Result<Identity> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not an identity", path.display()))
}

fn own_identity(common: &Common) -> Result<Rc<Identity>> {
    let identity = match &common.identity {
        Some(path) if path.exists() => read_identity(path)?,
        path => {
            let identity = Identity::generate(&mut rand::rng(), common.difficulty);
            if let Some(path) = path {
                std::fs::write(path, serde_json::to_vec_pretty(&identity)?)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
            identity
        }
    };
    Ok(Rc::new(identity))
}

/// Runs the node. `finite`: the traffic of each connection has an end.
fn live(
    common: &Common,
    report: &Report,
    finite: bool,
    make: &mut dyn FnMut(u64, Role) -> Box<dyn Behaviour>,
) -> Result<usize> {
    if common.listen.is_none() && common.peer.is_none() {
        bail!("neither --listen nor --peer: nobody to talk to");
    }
    raise_file_limit();
    let plan = Plan {
        listen: common.listen,
        peer: common.peer,
        connections: common.connections,
        hold_connect: common.hold.contains(&Hold::Connect),
        hold_traffic: common.hold.contains(&Hold::Traffic),
        duration: common.seconds.map(Duration::from_secs_f64),
        exit_after: common.exit_after.or((finite && common.peer.is_some()).then_some(common.connections)),
        patience: Duration::from_secs_f64(common.patience),
        close_elsewhere: common.close_elsewhere,
        send_buffer: common.send_buffer,
    };
    let (reactor, commander) = Reactor::new(plan, report.clone(), make)?;
    report.event(&json!({"event": "started", "pid": std::process::id()}));
    listen_to_orders(common.commands, commander)?;
    reactor.run()
}

/// Threads that turn signals and lines on standard input into commands.
fn listen_to_orders(stdin: bool, commander: Commander) -> Result<()> {
    let commander = std::sync::Arc::new(commander);
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    let by_signal = commander.clone();
    std::thread::spawn(move || signals.forever().for_each(|_| by_signal.give(Command::Stop)));
    if stdin {
        std::thread::spawn(move || {
            for line in std::io::stdin().lines() {
                match line.as_deref().map(str::trim) {
                    Ok("connect") => commander.give(Command::Connect),
                    Ok("traffic") => commander.give(Command::Traffic),
                    Ok("go") => commander.give(Command::Go),
                    Ok("close") => commander.give(Command::Close),
                    Ok("stop") | Err(_) => break,
                    Ok("") => {}
                    Ok(other) => eprintln!(
                        "chainscope-demo-node: unknown command {other:?}: connect, traffic, go, close or stop"
                    ),
                }
            }
            commander.give(Command::Stop);
        });
    }
    Ok(())
}

/// Ten thousand half-open connections need as many files.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("chainscope-demo-node: cannot raise the limit of open files: {error}");
    }
}
