//! `chainscope-demo-node`: a stand-in for octez-node. Speaks the Tezos P2P protocol on real sockets with the system calls of Octez: a
//! recorded conversation, endless valid traffic with generated keys, or protocol violations.

#![forbid(unsafe_code)]

mod args;

use std::cell::RefCell;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use chainscope_demo_node::behaviour::{Behaviour, Role};
use chainscope_demo_node::io_sizes::WriteSizes;
use chainscope_demo_node::log::Level;
use chainscope_demo_node::messages::Messages;
use chainscope_demo_node::noise::Noise;
use chainscope_demo_node::reactor::{Command, CommandSender, Plan, Reactor};
use chainscope_demo_node::report::Report;
use chainscope_demo_node::script::{Player, Script};
use chainscope_demo_node::session::{Session, SessionOptions, Source};
use chainscope_demo_node::subsystems::Subsystems;
use chainscope_demo_node::wire::Identity;
use chainscope_demo_node::{hostile, octez};
use clap::Parser as _;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::{Cli, Common, Hold, Load, LocalRole, Mode, ProtocolOptions, Raw, Replay, Side};

fn main() -> ExitCode {
    match run(Cli::parse().mode) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chainscope-demo-node: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mode: Mode) -> Result<usize> {
    match mode {
        Mode::Replay(replay) => self::replay(replay),
        Mode::Load(load) => self::load(load),
        Mode::Run(call) => {
            let command = std::env::var(octez::VARIABLE).with_context(|| format!("{} is not set", octez::VARIABLE))?;
            let arguments = octez::Config::load(&call.config_file)?.arguments(&command)?;
            let cli = Cli::try_parse_from(std::iter::once("octez-node".to_owned()).chain(arguments))?;
            ensure!(!matches!(cli.mode, Mode::Run(_)), "{} must not be `run`", octez::VARIABLE);
            run(cli.mode)
        }
        Mode::Raw(raw) => self::raw(raw),
        Mode::Hostile(hostile) => {
            let (common, violation) = (&hostile.common, hostile.violation);
            let (report, identity) = report_and_identity(common)?;
            let options = session_options(common, &hostile.protocol, identity);
            run_node(common, &report, false, &mut |number, role| {
                hostile::behaviour(violation, options.clone(), number, role, report.clone())
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
        script = script.swap_roles(&local, &remote).context("cannot swap the roles")?;
    }
    // Only the observed side needs an identity file: Chainscope reads it.
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
    run_node(&common, &report, true, &mut |_, _| Box::new(Player::new(&script, exact)))
}

fn load(load: Load) -> Result<usize> {
    let common = &load.common;
    let (report, identity) = report_and_identity(common)?;
    let interval = load.rate.map(|rate| Duration::from_secs_f64(1.0 / rate.max(1e-3)));
    let options = SessionOptions {
        interval,
        keep_open: load.keep_open,
        nack: load.nack,
        subsystems: load.store.as_deref().map(subsystems).transpose()?,
        ..session_options(common, &load.protocol, identity)
    };
    let finite = (load.messages.is_some() || load.bytes.is_some()) && !load.keep_open;
    let source = |number: u64, role: Role| -> Source {
        let messages = Messages::new(common.seed ^ (number << 1) ^ u64::from(role == Role::Initiator), load.size);
        bounded(messages, load.messages, load.bytes)
    };
    run_node(common, &report, finite, &mut |number, role| {
        Box::new(Session::new(options.clone(), number, role, source(number, role), report.clone()))
    })
}

fn raw(raw: Raw) -> Result<usize> {
    let common = &raw.common;
    let (report, identity) = report_and_identity(common)?;
    let sizes = raw.write_size.map_or(WriteSizes::UpTo(raw.max_write_size), WriteSizes::Fixed);
    let options = SessionOptions { write_sizes: Some(sizes), ..session_options(common, &raw.protocol, identity) };
    run_node(common, &report, true, &mut |number, role| -> Box<dyn Behaviour> {
        let seed = common.seed ^ (number << 1) ^ u64::from(role == Role::Initiator);
        if raw.tezos {
            let source = bounded(Messages::new(seed, raw.size), None, Some(raw.bytes));
            Box::new(Session::new(options.clone(), number, role, source, report.clone()))
        } else {
            Box::new(Noise::new(seed, sizes, raw.bytes))
        }
    })
}

fn bounded(messages: Messages, max: Option<u64>, bytes: Option<u64>) -> Source {
    // An endless source has no upper size hint; a bounded one must have one.
    match (max, bytes) {
        (None, None) => Box::new(messages),
        (max, bytes) => {
            let mut left = bytes.unwrap_or(u64::MAX);
            let max = usize::try_from(max.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
            Box::new(messages.take(max).take_while(move |message| {
                let more = left > 0;
                left = left.saturating_sub(message.framed.len() as u64);
                more
            }))
        }
    }
}

fn session_options(common: &Common, protocol: &ProtocolOptions, identity: Rc<Identity>) -> SessionOptions {
    SessionOptions {
        identity,
        port: common.listen.map_or(0, |a| a.port()),
        chain_name: protocol.chain.clone().into_bytes(),
        seed: common.seed,
        interval: None,
        write_sizes: None,
        verify: !protocol.no_verify,
        keep_open: false,
        nack: None,
        subsystems: None,
    }
}

fn subsystems(store: &Path) -> Result<Rc<RefCell<Subsystems>>> {
    let subsystems = Subsystems::create(store).with_context(|| format!("cannot write {}", store.display()))?;
    Ok(Rc::new(RefCell::new(subsystems)))
}

fn report(common: &Common) -> Result<Report> {
    let mut report = Report::default();
    let context = |path: &Path| format!("cannot write {}", path.display());
    if let Some(path) = &common.transcript {
        report = report.with_transcript(path).with_context(|| context(path))?;
    }
    if let Some(path) = &common.log {
        report = report.with_log(path).with_context(|| context(path))?;
    }
    Ok(report)
}

fn read_identity(path: &Path) -> Result<Identity> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not an identity file", path.display()))
}

fn report_and_identity(common: &Common) -> Result<(Report, Rc<Identity>)> {
    let (report, identity) = (report(common)?, own_identity(common)?);
    report.log(|| Some((Level::Notice, format!("read identity file\npeer_id = {}", identity.peer_id()))));
    Ok((report, identity))
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

/// Runs the node and returns the number of failed connections. `finite`: the traffic of each connection ends.
fn run_node(
    common: &Common,
    report: &Report,
    finite: bool,
    make: &mut dyn FnMut(u64, Role) -> Box<dyn Behaviour>,
) -> Result<usize> {
    if common.listen.is_none() && common.peer.is_none() {
        bail!("neither --listen nor --peer is given");
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
        connect_timeout: Duration::from_secs_f64(common.connect_timeout),
        close_in_thread: common.close_in_thread,
        send_buffer: common.send_buffer,
    };
    let (reactor, commands) = Reactor::new(plan, report.clone(), make)?;
    report.event(&json!({"event": "started", "pid": std::process::id()}));
    spawn_command_threads(common.commands, commands)?;
    reactor.run()
}

/// Starts the threads that turn signals and lines of standard input into commands.
fn spawn_command_threads(stdin: bool, commands: CommandSender) -> Result<()> {
    let commands = std::sync::Arc::new(commands);
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    let by_signal = commands.clone();
    std::thread::spawn(move || signals.forever().for_each(|_| by_signal.send(Command::Stop)));
    if stdin {
        std::thread::spawn(move || {
            for line in std::io::stdin().lines() {
                match line.as_deref().map(str::trim) {
                    Ok("connect") => commands.send(Command::Connect),
                    Ok("traffic") => commands.send(Command::Traffic),
                    Ok("go") => commands.send(Command::Go),
                    Ok("close") => commands.send(Command::Close),
                    Ok("stop") | Err(_) => break,
                    Ok("") => {}
                    Ok(other) => eprintln!(
                        "chainscope-demo-node: unknown command {other:?}: connect, traffic, go, close or stop"
                    ),
                }
            }
            commands.send(Command::Stop);
        });
    }
    Ok(())
}

/// Raises the limit of open files to the hard limit: ten thousand half-open connections need as many files.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("chainscope-demo-node: cannot raise the limit of open files: {error}");
    }
}
