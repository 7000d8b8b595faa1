//! Keys of the TezEdge recorder's configuration files, of its last version and of the one before 1.6: each is taken in
//! its new meaning, with a warning that prints the new spelling.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::{Error, Retention};

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
#[expect(dead_code, reason = "checked for spelling; logs are not recorded yet")]
pub(crate) struct Log {
    port: u16,
    store_limit: Option<u64>,
    #[serde(default)]
    disable_search: bool,
}

/// Old keys of the top level.
pub(crate) struct LegacyTop {
    pub(crate) http_v2: Option<u16>,
    pub(crate) rpc_port: Option<u16>,
    pub(crate) bpf_sniffer_path: Option<PathBuf>,
}

impl LegacyTop {
    /// The API's address: `listen`, or `http_v2`, or the older `rpc_port`, which were open to every interface.
    pub(crate) fn listen(
        &self,
        new: Option<SocketAddr>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<SocketAddr>, Error> {
        if let Some(path) = &self.bpf_sniffer_path {
            warnings.push(format!("bpf_sniffer_path = {path:?} has no meaning any more: remove it"));
        }
        let mut listen = new;
        for (old, port) in [("http_v2", self.http_v2), ("rpc_port", self.rpc_port)] {
            listen = replace("top level", (old, port), ("listen", listen), everywhere, warnings)?;
        }
        Ok(listen)
    }
}

/// Old keys of a node.
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
    fn place(&self) -> String {
        format!("nodes[{}]", self.index)
    }

    /// The first node's folder becomes the folder of all: one database holds every node now.
    pub(crate) fn folder(&self, data_dir: &mut Option<PathBuf>, warnings: &mut Vec<String>) {
        for (old, path) in [("db", &self.db), ("db_path", &self.db_path)] {
            let Some(path) = path else { continue };
            let taken = data_dir.get_or_insert_with(|| path.clone());
            warnings.push(format!("{}: {old} = {path:?} is now one for all nodes: data_dir = {taken:?}", self.place()));
        }
    }

    pub(crate) fn port(&self, new: Option<u16>, warnings: &mut Vec<String>) -> Result<Option<u16>, Error> {
        let old = self.p2p.as_ref().map(|p2p| p2p.port);
        replace(&self.place(), ("p2p.port", old), ("p2p_port", new), |port| port, warnings)
    }

    pub(crate) fn identity(&self, new: Option<PathBuf>, warnings: &mut Vec<String>) -> Result<Option<PathBuf>, Error> {
        let place = self.place();
        let old = self.p2p.as_ref().map(|p2p| p2p.identity.clone());
        let identity = replace(&place, ("p2p.identity", old), ("identity", new), |path| path, warnings)?;
        let old = self.identity_path.clone();
        replace(&place, ("identity_path", old), ("identity", identity), |path| path, warnings)
    }

    /// `store_limit` counted rows and was the only limit.
    pub(crate) fn retention(&self, new: Option<Retention>, warnings: &mut Vec<String>) -> Result<Retention, Error> {
        let old = self.p2p.as_ref().and_then(|p2p| p2p.store_limit);
        let by_rows = |rows| Retention { rows: Some(rows), bytes: None, age: None };
        let retention = replace(&self.place(), ("p2p.store_limit", old), ("retention", new), by_rows, warnings)?;
        Ok(retention.unwrap_or_default())
    }

    /// A listener pinned to this node.
    pub(crate) fn listen(
        &self,
        new: Option<SocketAddr>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<SocketAddr>, Error> {
        let place = self.place();
        let mut listen = new;
        for (old, port) in [("http_v3", self.http_v3), ("rpc_port", self.rpc_port)] {
            listen = replace(&place, (old, port), ("listen", listen), everywhere, warnings)?;
        }
        Ok(listen)
    }

    pub(crate) fn logs(&self, warnings: &mut Vec<String>) {
        if self.log.is_some() {
            warnings.push(format!("{}: log = {{ … }}: logs are not recorded by this version", self.place()));
        }
        if let Some(port) = self.syslog_port {
            warnings.push(format!("{}: syslog_port = {port}: logs are not recorded by this version", self.place()));
        }
    }
}

fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

/// The new key's value, else the old one's with a warning; both are a contradiction.
fn replace<Old: std::fmt::Debug, New: Serialize>(
    place: &str,
    (old_key, old): (&'static str, Option<Old>),
    (new_key, new): (&'static str, Option<New>),
    meaning: impl FnOnce(Old) -> New,
    warnings: &mut Vec<String>,
) -> Result<Option<New>, Error> {
    match (old, new) {
        (None, new) => Ok(new),
        (Some(_), Some(_)) => Err(Error::Twice { place: place.to_owned(), old: old_key, new: new_key }),
        (Some(old), None) => {
            let shown = format!("{old:?}");
            let new = meaning(old);
            warnings.push(format!("{place}: {old_key} = {shown} is now spelled {new_key} = {}", spelled(&new)));
            Ok(Some(new))
        }
    }
}

/// A value as one would write it in TOML.
fn spelled(value: &impl Serialize) -> String {
    toml::Value::try_from(value).map_or_else(|_| String::from("…"), |value| value.to_string())
}
