//! What an aggregator is started with.

use std::{net::SocketAddr, path::PathBuf};

use chainscope_store::{Retention, Store};

use crate::{
    access::AccessConfig,
    catalog::CatalogConfig,
    ingest::IngestTrust,
    limits::Limits,
    nodes::{NodeConfig, retention_of},
};

/// What an aggregator is started with.
#[derive(Clone)]
pub struct Config {
    /// Where records go and answers come from.
    pub store: Store,
    /// Address of the HTTP API; port 0 lets the system choose.
    pub http: SocketAddr,
    /// Address on which agents deliver records over gRPC; none: in-process only.
    pub ingest: Option<SocketAddr>,
    /// Nodes known beforehand; others are added by their first record.
    pub nodes: Vec<NodeConfig>,
    /// How long records of all other nodes are kept.
    pub retention: Retention,
    /// What `/v2/version` answers: the commit this was built from, or a version.
    pub build: String,
    /// Address of a further listener for metrics and health, never encrypted and without a token; none: the API has them.
    pub operation: Option<SocketAddr>,
    /// A further address of the API: 17832, where the original's memory profiler was; none: the API's own alone.
    pub memory: Option<SocketAddr>,
    /// Who may use the API.
    pub access: AccessConfig,
    /// Whether reads are logged (target `audit`). They always are where callers have names.
    pub audit: bool,
    /// Whom records are taken from over gRPC; none: from whoever reaches it.
    pub trust: Option<IngestTrust>,
    /// Where the nodes are learnt from; none: from `nodes`, and from agents.
    pub catalog: Option<CatalogConfig>,
    /// Folder with `tls.crt` and `tls.key` for the ingest; none: plain text.
    pub tls: Option<PathBuf>,
    /// The API is encrypted, too.
    pub api_tls: bool,
    /// What the aggregator takes on at most.
    pub limits: Limits,
}

impl Config {
    /// A configuration without nodes and without gRPC, with every limit at its default; 20 GiB are kept of a node.
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
            limits: Limits::default(),
        }
    }
}
