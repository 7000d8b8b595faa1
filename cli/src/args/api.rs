//! Which server to request from, and about which node.

use std::path::PathBuf;

use clap::Args;

use crate::{
    api::{Api, Token},
    kube::{Cluster, Options},
    program,
};

/// Variable with the URL of the API, as older versions call it.
const URL_VARIABLE: &str = "CHAINSCOPE_URL";

/// The server to request from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ApiArgs {
    /// URL of the API of any aggregator or `chainscope run` [default: http://127.0.0.1:17732]
    #[arg(long = "api", visible_alias = "url", alias = "aggregator", value_name = "URL", env = "CHAINSCOPE_API")]
    pub(crate) url: Option<String>,
    /// Bearer token; other users of this machine can see it in the arguments, but not in the variable
    #[arg(long, value_name = "TOKEN", env = "CHAINSCOPE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// File with the bearer token; it is read again for each request
    #[arg(long, value_name = "FILE", env = "CHAINSCOPE_TOKEN_FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// CA bundle to verify an https server with [default: that of the system; with --kube that of the cluster]
    #[arg(long, value_name = "FILE", env = "CHAINSCOPE_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// Request from the aggregator of the Kubernetes cluster of the current kubectl context, by `kubectl port-forward`
    #[arg(long, conflicts_with = "url")]
    kube: bool,
    /// Context of the kubeconfig; implies --kube
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    context: Option<String>,
    /// Namespace that Chainscope is installed in, not that of a node [default: any]; implies --kube
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    namespace: Option<String>,
    /// Service account to request a token of (TokenRequest) [default: the user of the context]; implies --kube
    #[arg(long, value_name = "[NAMESPACE/]NAME", conflicts_with = "url")]
    service_account: Option<String>,
}

impl ApiArgs {
    /// The URL of the command line or of a variable.
    fn url(&self) -> Option<String> {
        self.url.clone().or_else(|| std::env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty()))
    }

    fn is_kube(&self) -> bool {
        let options = [&self.context, &self.namespace, &self.service_account];
        self.kube || options.iter().any(|option| option.is_some()) || (program::is_plugin() && self.url().is_none())
    }

    /// Whether a server is given.
    pub(crate) fn is_given(&self) -> bool {
        self.url().is_some() || self.is_kube()
    }

    /// Requests from this server if none is given.
    pub(crate) fn or(self, url: Option<String>) -> Self {
        if self.is_given() { self } else { Self { url, ..self } }
    }

    /// A client of the server.
    pub(crate) fn client(&self) -> anyhow::Result<Api> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) if !token.trim().is_empty() => Some(Token::Fixed(token.clone())),
            (_, Some(path)) => Some(Token::File(path.clone())),
            _ => None,
        };
        let ca_file = self.ca_file.as_deref();
        if !self.is_kube() {
            return Api::connect(self.url().as_deref(), token.unwrap_or(Token::None), ca_file);
        }
        let (context, namespace) = (self.context.clone(), self.namespace.clone());
        let options = Options { context, namespace, service_account: self.service_account.clone() };
        Api::in_cluster(Cluster::connect(&options, token)?, ca_file)
    }
}

/// The node of a request.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The node, by name or alias, in a cluster as NAMESPACE/NAME [default: the only one]
    #[arg(value_name = "NODE")]
    positional: Option<String>,
    /// The same as NODE
    #[arg(long, short, value_name = "NAME", conflicts_with = "positional")]
    node: Option<String>,
}

impl NodeArgs {
    /// The name that is given.
    pub(crate) fn name(&self) -> Option<String> {
        self.node.clone().or_else(|| self.positional.clone())
    }
}

/// The node of a request whose positional argument is something else.
#[derive(Debug, Args)]
pub(crate) struct NodeOption {
    /// The node, by name or alias, in a cluster as NAMESPACE/NAME [default: the only one]
    #[arg(long, short, value_name = "NAME")]
    node: Option<String>,
}

impl NodeOption {
    /// The name that is given.
    pub(crate) fn name(&self) -> Option<String> {
        self.node.clone()
    }
}
