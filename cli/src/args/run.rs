//! Arguments of `chainscope run`.

use std::path::PathBuf;

use clap::Args;

/// Record the nodes of this machine and serve the API.
///
/// The configuration file (./chainscope.toml, ./config.toml, /etc/chainscope/chainscope.toml, or --config) lists the nodes to
/// record; --p2p-port records a single node without a file. A node that already runs is recorded, too; its sessions that
/// began earlier cannot be decrypted and are marked as such.
#[derive(Debug, Args)]
#[command(after_help = RUN_NEEDS)]
pub(crate) struct RunArgs {
    /// Configuration file
    #[arg(long, short, value_name = "FILE", env = "CHAINSCOPE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Record the node that listens for peers on this port, without a configuration file
    #[arg(long, value_name = "PORT", conflicts_with = "config", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) p2p_port: Option<u16>,
    /// The node's identity.json [default: found from the node's arguments]
    #[arg(long, value_name = "FILE", requires = "p2p_port")]
    pub(crate) identity: Option<PathBuf>,
    /// Directory of the database, instead of the configured one
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Keep records in memory only; they are lost when this process exits
    #[arg(long)]
    pub(crate) ephemeral: bool,
    /// Address of the API, instead of the configured one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Check prerequisites and exit
    #[arg(long)]
    pub(crate) check: bool,
}

const RUN_NEEDS: &str = "\
Examples:
  sudo chainscope run --p2p-port 9732
  sudo chainscope run --config /etc/chainscope/chainscope.toml
  chainscope run --check

Needs Linux 5.17 or newer (or older with bpf_loop backported) with BTF, and root
or the capabilities BPF, PERFMON, SYS_PTRACE and DAC_READ_SEARCH;
`chainscope run --check` lists what is missing. --verbose shows more detail,
RUST_LOG selects it.";
