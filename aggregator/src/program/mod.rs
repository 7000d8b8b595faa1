//! The program: flags, logs, start and shutdown.

mod args;
mod logs;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use chainscope_aggregator::{
    Aggregator, CatalogConfig, Config, Running,
    access::{AccessConfig, ApiServer},
    explorer_proxy,
    ingest::IngestTrust,
};
use chainscope_store::{Store, StoreOptions};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};

pub(crate) use self::args::Args;
use self::args::{AuthMode, Command, Serve};

/// Time that the shutdown may take. Kubernetes gives 30 seconds by default.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that threads have after that.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn start(args: Args) -> anyhow::Result<()> {
    // The memory of this process contains tokens: no core dumps.
    chainscope_hygiene::protect_process()?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let _writing = logs::start(args.serve.audit_log.as_deref())?;
    let ended = runtime.block_on(async {
        match args.command {
            None => serve(args.serve).await,
            Some(Command::ExplorerProxy(proxy)) => Ok(explorer_proxy::run(proxy.into(), end()?).await?),
        }
    });
    // A thread that waits for the disk does not delay the end.
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    ended
}

/// Completes on SIGTERM or SIGINT.
fn end() -> anyhow::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

async fn serve(args: Serve) -> anyhow::Result<()> {
    let end = end()?;
    let database = args.data_dir.join("db");
    let opened = tokio::task::spawn_blocking(move || Store::open(database, StoreOptions::default())).await?;
    let running = Aggregator::start(config(args, opened.context("cannot open the database")?).await?).await?;
    let ended = tokio::select! {
        () = end => Ok(()),
        error = running.failed() => Err(anyhow::anyhow!("the database failed: {error}")),
    };
    tracing::info!("shutting down");
    stop(running).await;
    ended
}

async fn stop(running: Running) {
    running.drain();
    if timeout(SHUTDOWN_TIMEOUT, running.shutdown()).await.is_err() {
        tracing::warn!("the shutdown timed out; acknowledged records are stored");
    }
}

async fn config(args: Serve, store: Store) -> anyhow::Result<Config> {
    let mut config = Config::new(store, args.listen);
    config.ingest = Some(args.ingest_listen);
    config.operation = args.metrics_listen;
    config.memory = args.memory_listen;
    config.audit = args.audit_log.is_some();
    config.tls = args.tls_dir;
    config.api_tls = args.api_tls;
    config.cors_origins = args.cors_origins;
    config.hosts = args.hosts;
    let needs_reviews = args.auth == AuthMode::Kubernetes || args.agent_service_account.is_some();
    let api_server = if needs_reviews {
        Some(ApiServer::infer().await.context("cannot reach the Kubernetes API server, which reviews tokens")?)
    } else {
        None
    };
    // Readers with invalid tokens do not delay the reviews of agents.
    let of_agents = api_server.as_ref().map(ApiServer::separate);
    config.access = match (args.auth, args.auth_token_file, api_server) {
        (AuthMode::None, ..) => AccessConfig::Open,
        (AuthMode::TokenFile, Some(file), _) => AccessConfig::TokenFile(file),
        (AuthMode::Kubernetes, _, Some(api_server)) => AccessConfig::Kubernetes(Arc::new(api_server)),
        (AuthMode::TokenFile | AuthMode::Kubernetes, ..) => anyhow::bail!("--auth token-file needs --auth-token-file"),
    };
    if let (Some(account), Some(api_server)) = (args.agent_service_account, of_agents) {
        config.trust = Some(IngestTrust { reviewer: Arc::new(api_server), account: account.0 });
    }
    if let Some(operator) = args.operator {
        config.catalog = Some(CatalogConfig {
            operator,
            ca_file: args.ca_file,
            token_file: args.token_file,
            file: args.data_dir.join("catalog.json"),
            deleted_retention: args.deleted_retention,
        });
    }
    Ok(config)
}
