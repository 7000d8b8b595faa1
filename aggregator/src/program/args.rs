//! Flags.

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use chainscope_aggregator::explorer_proxy;
use clap::{Parser, Subcommand, ValueEnum};

/// Ingest records from the agents of other hosts, store them, and serve the API.
///
/// On a single host `chainscope run` records and serves in one program.
#[derive(Debug, Parser)]
#[command(name = "chainscope-aggregator", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve TezEdge Explorer and the API of some nodes, authenticated with a token that the Explorer cannot send itself
    ///
    /// Every client of this proxy can read these nodes.
    ExplorerProxy(ExplorerProxy),
}

/// Authentication of callers of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuthMode {
    /// None: every client may read everything
    None,
    /// Tokens of --auth-token-file
    TokenFile,
    /// Tokens of Kubernetes that are allowed to `get` the subresources of a TezosNode
    Kubernetes,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Directory of the database and of the last catalog of the operator
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/chainscope", env = "CHAINSCOPE_DATA_DIR")]
    pub(crate) data_dir: PathBuf,
    /// Address of the HTTP API; see --auth for its callers
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:17732", env = "CHAINSCOPE_LISTEN")]
    pub(crate) listen: SocketAddr,
    /// Address on which agents deliver records (gRPC)
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:17733", env = "CHAINSCOPE_INGEST_LISTEN")]
    pub(crate) ingest_listen: SocketAddr,
    /// Address of /metrics, /livez and /readyz, without encryption and tokens; with --auth=none the API serves them, too
    #[arg(long, value_name = "ADDRESS:PORT", env = "CHAINSCOPE_METRICS_LISTEN")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Additional address of the API, for clients of the memory profiler at port 17832
    #[arg(long, value_name = "ADDRESS:PORT", env = "CHAINSCOPE_MEMORY_LISTEN")]
    pub(crate) memory_listen: Option<SocketAddr>,
    /// URL of the operator, the source of the catalog of nodes: https://HOST:17734
    #[arg(long, value_name = "URL", env = "CHAINSCOPE_OPERATOR")]
    pub(crate) operator: Option<String>,
    /// Token for the operator; read again at each connection
    #[arg(long, value_name = "FILE", requires = "operator", env = "CHAINSCOPE_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// CA bundle used to verify the operator; read again at each connection
    #[arg(long, value_name = "FILE", requires = "operator", env = "CHAINSCOPE_CA_FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Retention of the records of a node after its TezosNode was deleted; also the time over which the operator has to confirm
    /// that half of all nodes or more are gone
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = humantime::parse_duration, env = "CHAINSCOPE_DELETED_RETENTION")]
    pub(crate) deleted_retention: Duration,
    /// Service account of the agents: records are accepted with its tokens only, for the host of the token and the nodes there
    #[arg(long, value_name = "NAMESPACE:NAME", requires = "operator", env = "CHAINSCOPE_AGENT_SERVICE_ACCOUNT")]
    pub(crate) agent_service_account: Option<Account>,
    /// Directory with tls.crt and tls.key for the ingest; checked for changes at each connection
    #[arg(long, value_name = "DIRECTORY", env = "CHAINSCOPE_TLS_DIR")]
    pub(crate) tls_dir: Option<PathBuf>,
    /// Serve the API over TLS, too
    #[arg(long, requires = "tls_dir", env = "CHAINSCOPE_API_TLS")]
    pub(crate) api_tls: bool,
    /// Authentication of callers of the API
    #[arg(long, value_enum, default_value = "none", env = "CHAINSCOPE_AUTH")]
    pub(crate) auth: AuthMode,
    /// File with lines of: token (or sha256:…), user, names of nodes, in which `*` matches any characters; `*` alone: all
    #[arg(long, value_name = "FILE", required_if_eq("auth", "token-file"), env = "CHAINSCOPE_AUTH_TOKEN_FILE")]
    pub(crate) auth_token_file: Option<PathBuf>,
    /// Origins whose pages may read the API in a browser, beside those of loopback: https://explorer.example, or `*` for all
    #[arg(long, value_name = "ORIGINS", value_delimiter = ',', env = "CHAINSCOPE_CORS_ORIGINS")]
    pub(crate) cors_origins: Vec<String>,
    /// Host names of the API beside localhost and IP addresses; any other is refused, or `*` for all [default with --auth: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', env = "CHAINSCOPE_HOSTS")]
    pub(crate) hosts: Vec<String>,
    /// Write a line of JSON for each read of the API: to a file, or to standard output without a value
    ///
    /// Without it reads of authenticated callers are in the ordinary log.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-", env = "CHAINSCOPE_AUDIT_LOG")]
    pub(crate) audit_log: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExplorerProxy {
    /// Address of the listener
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080", env = "CHAINSCOPE_LISTEN")]
    listen: SocketAddr,
    /// URL of the aggregator's API
    #[arg(long, value_name = "URL", env = "CHAINSCOPE_API")]
    api: String,
    /// URL of the Explorer's own files
    #[arg(long, value_name = "URL", env = "CHAINSCOPE_EXPLORER")]
    explorer: String,
    /// Token for the API; read again for each request
    #[arg(long, value_name = "FILE", env = "CHAINSCOPE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// CA bundle used to verify the API; read again for each request
    #[arg(long, value_name = "FILE", env = "CHAINSCOPE_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// Nodes that clients may read, each as NAMESPACE/NAME
    #[arg(long, value_name = "NODES", value_delimiter = ',', required = true, env = "CHAINSCOPE_NODES")]
    nodes: Vec<String>,
    /// Host names of this proxy beside localhost and IP addresses; any other is refused, or `*` for all
    #[arg(long, value_name = "NAMES", value_delimiter = ',', env = "CHAINSCOPE_HOSTS")]
    hosts: Vec<String>,
}

impl From<ExplorerProxy> for explorer_proxy::Config {
    fn from(args: ExplorerProxy) -> Self {
        let ExplorerProxy { listen, api, explorer, token_file, ca_file, nodes, hosts } = args;
        Self { listen, api, explorer, token_file, ca_file, nodes, hosts }
    }
}

/// The user name of a service account, as in its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account(pub(crate) String);

impl FromStr for Account {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains(':') => {
                Ok(Self(format!("system:serviceaccount:{namespace}:{name}")))
            }
            _ => Err("it is not NAMESPACE:NAME".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::{CommandFactory as _, Parser as _};

    use super::{Args, AuthMode, Command};

    fn parse(line: &str) -> Result<Args, String> {
        Args::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_are_parsed_and_contradictions_are_refused() {
        Args::command().debug_assert();
        let alone = parse("x").unwrap().serve;
        assert_eq!((alone.auth, alone.audit_log), (AuthMode::None, None));
        let args = parse(
            "x --operator=https://o:1 --agent-service-account=ns:a --auth=kubernetes --audit-log --api-tls --tls-dir=t",
        );
        let args = args.unwrap().serve;
        assert_eq!(args.agent_service_account.unwrap().0, "system:serviceaccount:ns:a");
        assert_eq!(args.audit_log, Some(PathBuf::from("-")));
        for wrong in [
            "--api-tls",
            "--auth=token-file",
            "--agent-service-account=ns:a",
            "--operator=o --agent-service-account=a",
            "--auth=x",
        ] {
            parse(&format!("x {wrong}")).unwrap_err();
        }
        let args = parse("x explorer-proxy --api=http://a --explorer=http://e --nodes=a/b,c/d").unwrap();
        let Some(Command::ExplorerProxy(proxy)) = args.command else { panic!("no proxy") };
        assert_eq!(proxy.nodes, ["a/b", "c/d"]);
    }
}
