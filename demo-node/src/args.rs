//! The command line of `chainscope-demo-node`.

use std::net::SocketAddr;
use std::path::PathBuf;

use chainscope_demo_node::hostile::Violation;
use chainscope_demo_node::messages::Sizes;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// A stand-in for octez-node on real sockets.
///
/// Prints JSON lines: "listening", "connected", "established", "closed" (bytes and SHA-256 of both directions), "done".
/// With --commands it reads commands from standard input, one a line: connect, traffic, go (connect if that is held, else traffic),
/// close, stop; end of file is a stop, and so are SIGTERM and SIGINT. Exits with 1 if a connection ended with an error.
#[derive(Parser)]
#[command(name = "chainscope-demo-node", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) mode: Mode,
}

#[derive(Subcommand)]
pub(crate) enum Mode {
    /// Play one side of a recorded conversation and compare what is read with the recording
    Replay(Replay),
    /// Valid traffic: random messages of all kinds in both directions; the peer is another process of this command
    Load(Load),
    /// Random writes of 1 B to 1 MiB: chunks of a valid session, or noise
    Raw(Raw),
    /// A peer or node that violates the protocol
    Hostile(Hostile),
    /// The command line of octez-node; CHAINSCOPE_DEMO holds one of the commands above with its options
    Run(Run),
}

#[derive(Args)]
pub(crate) struct Run {
    /// config.json of Octez: data-dir, p2p.listen-addr and p2p.bootstrap-peers are read
    #[arg(long)]
    pub(crate) config_file: PathBuf,
    /// Ignored; an option of octez-node
    #[arg(long)]
    pub(crate) bootstrap_threshold: Option<u32>,
}

#[derive(Args)]
pub(crate) struct Common {
    /// P2P address to listen on; port 0 takes a free one
    #[arg(long)]
    pub(crate) listen: Option<SocketAddr>,
    /// Address of the peer to connect to; refused connections are retried
    #[arg(long)]
    pub(crate) peer: Option<SocketAddr>,
    /// Number of connections to open to the peer
    #[arg(long, default_value_t = 1)]
    pub(crate) connections: usize,
    /// identity.json of the node: read if it exists, else a new one (or the recording's) is written
    #[arg(long)]
    pub(crate) identity: Option<PathBuf>,
    /// Leading zero bits of a new identity's proof of work
    #[arg(long, default_value_t = 8)]
    pub(crate) difficulty: u32,
    /// Wait for a command before connecting, or before sending messages
    #[arg(long)]
    pub(crate) hold: Vec<Hold>,
    /// Read commands from standard input
    #[arg(long)]
    pub(crate) commands: bool,
    /// Exit once this many connections have ended [default: those to the peer, if their traffic ends]
    #[arg(long)]
    pub(crate) exit_after: Option<usize>,
    /// Stop after this many seconds of traffic
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// How long a connection that is refused, or not answered within 10 seconds, is retried
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub(crate) connect_timeout: f64,
    /// Call close(2) in another thread, as Octez does
    #[arg(long)]
    pub(crate) close_in_thread: bool,
    /// SO_SNDBUF of outgoing connections; a small one causes short writes
    #[arg(long)]
    pub(crate) send_buffer: Option<usize>,
    /// File that gets a JSON line for every message sent or received
    #[arg(long)]
    pub(crate) transcript: Option<PathBuf>,
    /// File to append a log to, in the form of Octez 23; /dev/stdout for a container's own
    #[arg(long)]
    pub(crate) log: Option<PathBuf>,
    /// Seed of everything random except keys and nonces
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hold {
    Connect,
    Traffic,
}

#[derive(Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Directory with identity.json and payloads.csv or <session>.syscalls.jsonl
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Play <session>.syscalls.jsonl instead of payloads.csv
    #[arg(long)]
    pub(crate) session: Option<String>,
    /// The side to play
    #[arg(long)]
    pub(crate) side: Side,
    /// Role of the local side; if it is not the recorded one, the messages are sealed again
    #[arg(long)]
    pub(crate) local_role: Option<LocalRole>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    Local,
    Remote,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LocalRole {
    Initiator,
    Responder,
}

#[derive(Args)]
pub(crate) struct ProtocolOptions {
    /// Chain name to announce
    #[arg(long, default_value = "TEZOS_MAINNET")]
    pub(crate) chain: String,
    /// Do not decrypt what is received, only count and hash it
    #[arg(long)]
    pub(crate) no_verify: bool,
}

#[derive(Args)]
pub(crate) struct Load {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) protocol: ProtocolOptions,
    /// Messages a second on each connection [default: unlimited]
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Number of messages to send on each connection [default: endless]
    #[arg(long)]
    pub(crate) messages: Option<u64>,
    /// Stop sending on a connection after this many bytes of messages
    #[arg(long)]
    pub(crate) bytes: Option<u64>,
    /// Length of messages: "natural", "mixed" (some of up to 200 kB), or a number of bytes
    #[arg(long, default_value = "natural", value_parser = sizes)]
    pub(crate) size: Sizes,
    /// Keep connections open after the last message
    #[arg(long)]
    pub(crate) keep_open: bool,
    /// Handle messages in subsystems that hold memory: a block cache, a mempool, and a block store in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) store: Option<PathBuf>,
    /// Answer handshakes with a Nack of this motive
    #[arg(long)]
    pub(crate) nack: Option<u16>,
}

#[derive(Args)]
pub(crate) struct Raw {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) protocol: ProtocolOptions,
    /// Bytes to send on each connection (in messages, if --tezos)
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) bytes: u64,
    /// Size of every write in bytes [default: random]
    #[arg(long)]
    pub(crate) write_size: Option<usize>,
    /// Largest size of random writes in bytes
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) max_write_size: usize,
    /// Length of messages, as for load
    #[arg(long, default_value = "mixed", value_parser = sizes)]
    pub(crate) size: Sizes,
    /// Handshake and sealed messages, split without regard to chunks, instead of noise
    #[arg(long)]
    pub(crate) tezos: bool,
}

#[derive(Args)]
pub(crate) struct Hostile {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) protocol: ProtocolOptions,
    /// The violation
    #[arg(long)]
    pub(crate) violation: Violation,
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
