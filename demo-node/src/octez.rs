//! The command line of octez-node, as charts of Tezos call it: `run --config-file /etc/tezos/config.json …`.
//!
//! Addresses to listen on and to connect to, and the path of the identity, come from Octez's configuration. `CHAINSCOPE_DEMO` holds the
//! rest of the demo node's command line, such as `replay --dir /vectors/carthagenet-2020 --side local`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// Environment variable with the subcommand and its options.
pub const VARIABLE: &str = "CHAINSCOPE_DEMO";
/// Time limit for resolving a peer's name: Services may appear later than the node while a cluster starts.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(120);

/// The fields of Octez's `config.json` that the demo node reads.
#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(rename = "data-dir")]
    data_dir: PathBuf,
    p2p: P2p,
}

#[derive(Debug, Deserialize)]
struct P2p {
    #[serde(rename = "listen-addr")]
    listen: SocketAddr,
    #[serde(rename = "bootstrap-peers", default)]
    peers: Vec<String>,
}

impl Config {
    /// Reads the file.
    ///
    /// # Errors
    /// If it cannot be read, or lacks a field.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not a configuration of Octez", path.display()))
    }

    /// The demo node's arguments for this configuration; `command` is the value of [`VARIABLE`].
    ///
    /// # Errors
    /// If `command` is empty, or the name of a peer cannot be resolved.
    pub fn arguments(&self, command: &str) -> Result<Vec<String>> {
        let mut arguments: Vec<_> = command.split_whitespace().map(str::to_owned).collect();
        if arguments.is_empty() {
            bail!("{VARIABLE} is empty");
        }
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        option("--listen", self.p2p.listen.to_string());
        option("--identity", self.data_dir.join("identity.json").display().to_string());
        if let Some(peer) = self.p2p.peers.first() {
            option("--peer", resolve(peer)?.to_string());
        }
        Ok(arguments)
    }
}

fn resolve(peer: &str) -> Result<SocketAddr> {
    let deadline = Instant::now() + RESOLVE_TIMEOUT;
    loop {
        match peer.to_socket_addrs().map(|mut addresses| addresses.next()) {
            Ok(Some(address)) => return Ok(address),
            _ if Instant::now() < deadline => std::thread::park_timeout(Duration::from_millis(200)),
            Ok(None) => bail!("{peer} has no address"),
            Err(error) => return Err(error).with_context(|| format!("cannot resolve {peer}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_tezos_k8s_is_a_command_line() {
        let text = r#"{"data-dir": "/var/tezos/node/data", "p2p": {"listen-addr": "[::]:9732", "bootstrap-peers": ["127.0.0.1:9733"]},
            "rpc": {"listen-addrs": ["[::]:8732"]}}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        let arguments = config.arguments("load --rate 5").unwrap();
        let expected =
            "load --rate 5 --listen [::]:9732 --identity /var/tezos/node/data/identity.json --peer 127.0.0.1:9733";
        assert_eq!(arguments.join(" "), expected);
        assert!(config.arguments(" ").is_err());
    }
}
