//! Which server to request from.

use std::path::PathBuf;

use clap::Args;

use crate::api::Api;

/// The server to request from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ApiArgs {
    /// URL of the Chainscope API, of any aggregator [default: http://127.0.0.1:17732]
    #[arg(long, visible_alias = "aggregator", value_name = "URL", env = "CHAINSCOPE_URL")]
    pub(crate) url: Option<String>,
    /// Bearer token; other users of this machine cannot see it in the variable
    #[arg(long, value_name = "TOKEN", env = "CHAINSCOPE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// CA bundle to verify an https server with
    #[arg(long, value_name = "FILE", env = "CHAINSCOPE_CA_FILE")]
    ca_file: Option<PathBuf>,
}

impl ApiArgs {
    /// A client of the server.
    pub(crate) fn client(&self) -> anyhow::Result<Api> {
        Api::connect(self.url.as_deref(), self.token.as_deref(), self.ca_file.as_deref())
    }
}
