//! `chainscope-aggregator`: takes records from the agents of other machines and serves the API.

#![forbid(unsafe_code)]

use std::{io::IsTerminal as _, net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use chainscope_aggregator::{Aggregator, Config};
use chainscope_store::{Store, StoreOptions};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Takes records from the agents of other machines, stores them, and serves the API.
///
/// On a single machine `chainscope run` does this and the recording in one program.
#[derive(Debug, Parser)]
#[command(name = "chainscope-aggregator", version)]
struct Args {
    /// Folder of the database
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/chainscope", env = "CHAINSCOPE_DATA_DIR")]
    data_dir: PathBuf,
    /// Address of the HTTP API; whoever reaches it sees the messages
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:17732", env = "CHAINSCOPE_LISTEN")]
    listen: SocketAddr,
    /// Address on which agents deliver records (gRPC)
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:17733", env = "CHAINSCOPE_INGEST_LISTEN")]
    ingest_listen: SocketAddr,
}

fn main() -> ExitCode {
    match start(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One sentence for people; logs may be switched off.
            eprintln!("chainscope-aggregator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: Args) -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let store = Store::open(&args.data_dir, StoreOptions::default()).context("cannot open the database")?;
    tokio::runtime::Runtime::new().context("cannot start the runtime")?.block_on(run(args, store))
}

async fn run(args: Args, store: Store) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut config = Config::new(store, args.listen);
    config.ingest = Some(args.ingest_listen);
    let running = Aggregator::start(config).await?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("ending");
    running.shutdown().await;
    Ok(())
}
