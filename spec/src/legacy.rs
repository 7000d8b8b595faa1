//! Legacy keys: those of the TezEdge debugger's configuration files, of its last version and of versions before 1.6.
//! Each is accepted with a warning that contains the new spelling.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::{Error, Retention, logs::FileLogs};

/// `p2p = { identity = "…", port = 9732, store_limit = 1_000_000 }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct P2p {
    identity: PathBuf,
    port: u16,
    store_limit: Option<u64>,
}

/// `log = { port = 10000, store_limit = 1_000_000, disable_search = false }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    port: u16,
    store_limit: Option<u64>,
    #[serde(default)]
    disable_search: bool,
}

/// Legacy keys of the top level.
pub(crate) struct LegacyTop {
    pub(crate) http_v2: Option<u16>,
    pub(crate) rpc_port: Option<u16>,
    pub(crate) bpf_sniffer_path: Option<PathBuf>,
}

impl LegacyTop {
    /// Address of the API: `listen`, or `http_v2`, or the older `rpc_port`.
    pub(crate) fn listen(
        &self,
        new: Option<SocketAddr>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<SocketAddr>, Error> {
        if let Some(path) = &self.bpf_sniffer_path {
            warnings.push(format!("bpf_sniffer_path = {path:?} is no longer used: remove it"));
        }
        let mut listen = new;
        for (old, port) in [("http_v2", self.http_v2), ("rpc_port", self.rpc_port)] {
            listen = replace_port("top level", (old, port), listen, warnings)?;
        }
        Ok(listen)
    }
}

/// Legacy keys of a node.
pub(crate) struct LegacyNode {
    pub(crate) index: usize,
    pub(crate) http_v3: Option<u16>,
    pub(crate) rpc_port: Option<u16>,
    pub(crate) db: Option<PathBuf>,
    pub(crate) db_path: Option<PathBuf>,
    pub(crate) identity_path: Option<PathBuf>,
    pub(crate) syslog_port: Option<u16>,
    pub(crate) p2p: Option<P2p>,
    pub(crate) log: Option<Log>,
}

impl LegacyNode {
    /// Position of the entry, for messages.
    fn place(&self) -> String {
        format!("nodes[{}]", self.index)
    }

    /// The data directory: the first legacy one is used for all nodes, which now share a database.
    pub(crate) fn data_dir(&self, data_dir: &mut Option<PathBuf>, warnings: &mut Vec<String>) {
        for (old, path) in [("db", &self.db), ("db_path", &self.db_path)] {
            let Some(path) = path else { continue };
            let used = data_dir.get_or_insert_with(|| path.clone());
            warnings
                .push(format!("{}: {old} = {path:?} is now shared by all nodes: data_dir = {used:?}", self.place()));
        }
    }

    /// The P2P port.
    pub(crate) fn port(&self, new: Option<u16>, warnings: &mut Vec<String>) -> Result<Option<u16>, Error> {
        let old = self.p2p.as_ref().map(|p2p| p2p.port);
        replace(&self.place(), ("p2p.port", old), ("p2p_port", new), |port| port, warnings)
    }

    /// Path of `identity.json`.
    pub(crate) fn identity(&self, new: Option<PathBuf>, warnings: &mut Vec<String>) -> Result<Option<PathBuf>, Error> {
        let place = self.place();
        let old = self.p2p.as_ref().map(|p2p| p2p.identity.clone());
        let identity = replace(&place, ("p2p.identity", old), ("identity", new), |path| path, warnings)?;
        let old = self.identity_path.clone();
        replace(&place, ("identity_path", old), ("identity", identity), |path| path, warnings)
    }

    /// The retention; `store_limit` is a number of rows without other limits.
    pub(crate) fn retention(&self, new: Option<Retention>, warnings: &mut Vec<String>) -> Result<Retention, Error> {
        let old = self.p2p.as_ref().and_then(|p2p| p2p.store_limit);
        let by_rows = |rows| Retention { rows: Some(rows), bytes: None, age: None };
        let retention = replace(&self.place(), ("p2p.store_limit", old), ("retention", new), by_rows, warnings)?;
        Ok(retention.unwrap_or_default())
    }

    /// Address of the API that serves this node only.
    pub(crate) fn listen(
        &self,
        new: Option<SocketAddr>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<SocketAddr>, Error> {
        let place = self.place();
        let mut listen = new;
        for (old, port) in [("http_v3", self.http_v3), ("rpc_port", self.rpc_port)] {
            listen = replace_port(&place, (old, port), listen, warnings)?;
        }
        Ok(listen)
    }

    /// Log messages: a syslog server on a port.
    pub(crate) fn logs(&self, new: Option<FileLogs>, warnings: &mut Vec<String>) -> Result<Option<FileLogs>, Error> {
        let place = self.place();
        let mut logs = new;
        if let (Some(log), None) = (&self.log, &logs)
            && log.disable_search
        {
            warnings
                .push(format!("{place}: log.disable_search is no longer used: log messages can always be searched"));
        }
        let of_table = self.log.as_ref().map(|log| (log.port, log.store_limit));
        for (key, old) in [("log", of_table), ("syslog_port", self.syslog_port.map(|port| (port, None)))] {
            if let (Some((port, _)), None) = (old, &logs) {
                warnings.push(format!(
                    "{place}: {key} received syslog on all interfaces, this version on loopback: with syslog = {{ listen = \
                     \"0.0.0.0:{port}\" }} everyone who reaches the port can write into the node's log"
                ));
            }
            let old = old.map(|(port, rows)| Shown { port, store_limit: rows });
            let meaning = |old: Shown| {
                FileLogs::legacy(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), old.port), old.store_limit)
            };
            logs = replace(&place, (key, old), ("logs", logs), meaning, warnings)?;
        }
        Ok(logs)
    }
}

/// A legacy syslog port with its limit, shown as it was written.
struct Shown {
    port: u16,
    store_limit: Option<u64>,
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.store_limit {
            Some(limit) => write!(f, "{{ port = {}, store_limit = {limit} }}", self.port),
            None => write!(f, "{}", self.port),
        }
    }
}

/// The address of a legacy port: on loopback, with a warning, as the legacy key stood for all interfaces.
fn replace_port(
    place: &str,
    old: (&'static str, Option<u16>),
    new: Option<SocketAddr>,
    warnings: &mut Vec<String>,
) -> Result<Option<SocketAddr>, Error> {
    if let (key, Some(port)) = old
        && new.is_none()
    {
        warnings.push(format!(
            "{place}: {key} listened on all interfaces, this version listens on loopback: with listen = \"0.0.0.0:{port}\" \
             everyone who reaches the port reads the node's decrypted messages, without a password"
        ));
    }
    replace(place, old, ("listen", new), |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port), warnings)
}

/// The value of the new key, or that of the legacy key with a warning. Both together are an error.
fn replace<Old: std::fmt::Debug, New: Serialize>(
    place: &str,
    (old_key, old): (&'static str, Option<Old>),
    (new_key, new): (&'static str, Option<New>),
    meaning: impl FnOnce(Old) -> New,
    warnings: &mut Vec<String>,
) -> Result<Option<New>, Error> {
    match (old, new) {
        (None, new) => Ok(new),
        (Some(_), Some(_)) => Err(Error::LegacyAndNew { place: place.to_owned(), old: old_key, new: new_key }),
        (Some(old), None) => {
            let shown = format!("{old:?}");
            let new = meaning(old);
            warnings.push(format!("{place}: {old_key} = {shown} is now spelled {new_key} = {}", spelled(&new)));
            Ok(Some(new))
        }
    }
}

/// A value in TOML syntax.
fn spelled(value: &impl Serialize) -> String {
    toml::Value::try_from(value).map_or_else(|_| String::from("…"), |value| value.to_string())
}
