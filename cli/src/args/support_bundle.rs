//! Arguments of `chainscope support-bundle`.

use std::path::PathBuf;

use clap::Args;

use super::ApiArgs;

/// Write an archive for troubleshooting: configuration, self-check, counters, logs; no secrets.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SupportBundleArgs {
    /// File to write
    #[arg(long, short, value_name = "FILE", default_value = "chainscope-support.tar.gz")]
    pub(crate) output: PathBuf,
    /// Configuration file, as for `run`
    #[arg(long, short, value_name = "FILE", env = "CHAINSCOPE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

const EXAMPLES: &str = "\
Examples:
  sudo chainscope support-bundle
  chainscope support-bundle --kube --service-account tezos/reader -o cluster.tar.gz";
