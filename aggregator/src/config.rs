//! Configuration of an aggregator.

use std::{net::SocketAddr, path::PathBuf};

use chainscope_store::{Retention, Store};

use crate::{
    access::AccessConfig,
    catalog::CatalogConfig,
    ingest::IngestTrust,
    limits::Limits,
    nodes::{NodeConfig, retention_of},
};

/// Configuration of an aggregator.
#[derive(Clone)]
pub struct Config {
    /// Where records are stored.
    pub store: Store,
    /// Address of the HTTP API; with port 0 the system chooses one.
    pub http: SocketAddr,
    /// Address on which agents deliver records over gRPC; none: in-process only.
    pub ingest: Option<SocketAddr>,
    /// Configured nodes; others are added by their first record.
    pub nodes: Vec<NodeConfig>,
    /// Retention of the records of all other nodes.
    pub retention: Retention,
    /// Response of `/v2/version`: the commit that this was built from, or a version.
    pub build: String,
    /// Address of a listener for metrics and health, without encryption and tokens; none: the API's listener has them.
    pub operation: Option<SocketAddr>,
    /// Another address of the API: 17832, that of the original's memory profiler; none: the API's own only.
    pub memory: Option<SocketAddr>,
    /// Authentication and authorization of the API's callers.
    pub access: AccessConfig,
    /// Whether reads are logged (target `audit`). They always are unless access is open.
    pub audit: bool,
    /// Authentication of agents over gRPC; none: records are taken from any client.
    pub trust: Option<IngestTrust>,
    /// The operator's catalog of nodes; none: the nodes are those of `nodes`, and those of agents.
    pub catalog: Option<CatalogConfig>,
    /// Directory with `tls.crt` and `tls.key` for the ingest; none: plain text.
    pub tls: Option<PathBuf>,
    /// The API is encrypted, too.
    pub api_tls: bool,
    /// Origins whose pages may read the API beside those of loopback, such as `https://explorer.example`; `*`: all.
    pub cors_origins: Vec<String>,
    /// Host names that requests may be sent to beside `localhost` and IP addresses; `*`: all. Empty with authentication: all.
    pub hosts: Vec<String>,
    /// Limits of requests and ingest.
    pub limits: Limits,
}

impl Config {
    /// A configuration without nodes and gRPC, with default limits and the default retention, 20 GiB of a node.
    #[must_use]
    pub fn new(store: Store, http: SocketAddr) -> Self {
        let build = option_env!("CHAINSCOPE_COMMIT").unwrap_or(env!("CARGO_PKG_VERSION")).to_owned();
        let retention = retention_of(&chainscope_spec::Retention::default());
        Self {
            store,
            http,
            ingest: None,
            nodes: Vec::new(),
            retention,
            build,
            operation: None,
            memory: None,
            access: AccessConfig::Open,
            audit: false,
            trust: None,
            catalog: None,
            tls: None,
            api_tls: false,
            cors_origins: Vec::new(),
            hosts: Vec::new(),
            limits: Limits::default(),
        }
    }
}
