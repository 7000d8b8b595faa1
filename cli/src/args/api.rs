//! Which server to request from, and about which node.

use std::path::PathBuf;

use clap::Args;

use crate::{
    api::{Api, Token},
    kube::{Cluster, Options},
    program,
};

/// Variables with the URL of the API; the second one is that of older versions.
const URL_VARIABLES: [&str; 2] = ["CHAINSCOPE_API", "CHAINSCOPE_URL"];
/// Variable with the bearer token.
const TOKEN_VARIABLE: &str = "CHAINSCOPE_TOKEN";
/// Variable with the path of the file with the bearer token.
const TOKEN_FILE_VARIABLE: &str = "CHAINSCOPE_TOKEN_FILE";

/// The server to request from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ApiArgs {
    // Variables of flags that exclude each other are read below: a flag comes before the variable of another one.
    /// URL of the API of any aggregator or `chainscope run` [default: http://127.0.0.1:17732] [env: CHAINSCOPE_API]
    #[arg(long = "api", visible_alias = "url", alias = "aggregator", value_name = "URL")]
    url: Option<String>,
    /// Bearer token, which other users of this machine can see; not so that of the variable [env: CHAINSCOPE_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// File with the bearer token; it is read again for each request [env: CHAINSCOPE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
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
        let url = self.url.clone().or_else(|| URL_VARIABLES.into_iter().find_map(variable));
        url.filter(|_| !self.has_kube_flags())
    }

    fn has_kube_flags(&self) -> bool {
        let options = [&self.context, &self.namespace, &self.service_account];
        self.kube || options.iter().any(|option| option.is_some())
    }

    fn is_kube(&self) -> bool {
        self.has_kube_flags() || (program::is_plugin() && self.url().is_none())
    }

    /// The token of the command line or of a variable.
    fn token(&self) -> Option<Token> {
        match (&self.token, &self.token_file) {
            (Some(token), _) => Some(Token::Fixed(token.clone())),
            (None, Some(path)) => Some(Token::File(path.clone())),
            (None, None) => {
                let file = || variable(TOKEN_FILE_VARIABLE).map(|path| Token::File(path.into()));
                variable(TOKEN_VARIABLE).map(Token::Fixed).or_else(file)
            }
        }
    }

    /// Whether flags give a server, not only a variable.
    pub(crate) fn is_named(&self) -> bool {
        self.url.is_some() || self.has_kube_flags()
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
        let token = self.token();
        let ca_file = self.ca_file.as_deref();
        if !self.is_kube() {
            return Api::connect(self.url().as_deref(), token.unwrap_or(Token::None), ca_file);
        }
        let (context, namespace) = (self.context.clone(), self.namespace.clone());
        let options = Options { context, namespace, service_account: self.service_account.clone() };
        Api::in_cluster(Cluster::connect(&options, token.is_some())?, token, ca_file)
    }
}

/// The value of a variable, if it has one.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
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
