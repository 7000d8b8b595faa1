//! Parameters of requests for messages, connections and chunks.

use std::{borrow::Cow, net::SocketAddr};

use chainscope_proto::v1::Initiator;
use chainscope_store::MessageQuery;
use chainscope_tezos::message::{KINDS, canonical_kind};
use serde::{Deserialize, Deserializer, de::Error as _};
use utoipa::{IntoParams, ToSchema};

use super::super::{
    list::DEFAULT_LIMIT,
    params::{boolean, either, from_str, number, order, shown},
    problem::Problem,
    time::range,
};

/// Which messages.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageParameters {
    /// Maximum number of rows, unlimited in size: responses are streamed. Default: 100; of a live stream: no end.
    #[serde(deserialize_with = "number")]
    pub(crate) limit: Option<u64>,
    /// Id to begin with, included. Default of a live stream: the next message.
    #[serde(deserialize_with = "number")]
    cursor: Option<u64>,
    /// The same as `cursor`, as older documents call it.
    #[serde(deserialize_with = "number")]
    cursor_id: Option<u64>,
    /// `forward`: oldest first. Anything else: newest first. Live streams are always oldest first.
    direction: Option<String>,
    /// Types of message, separated by commas; any of them.
    #[param(value_type = Option<String>, example = "current_head,current_branch")]
    #[serde(deserialize_with = "kinds")]
    types: Vec<String>,
    /// `true`: sent by the peer; `false`: sent by the node.
    #[serde(deserialize_with = "boolean")]
    incoming: Option<bool>,
    /// Which side opened the connection.
    source_type: Option<SourceType>,
    /// The peer's socket. An IPv4 address and its IPv4-mapped IPv6 address are the same.
    #[param(value_type = Option<String>, example = "[::ffff:51.15.220.7]:9732")]
    #[serde(deserialize_with = "socket")]
    remote_addr: Option<SocketAddr>,
    /// The peer's identity.
    peer_id: Option<String>,
    /// The observed process.
    target: Option<String>,
    /// Minimum time, included, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    #[serde(deserialize_with = "number")]
    from: Option<u64>,
    /// Maximum time, included; units as for `from`.
    #[serde(deserialize_with = "number")]
    to: Option<u64>,
    /// A moment: newest first, messages up to it; `forward`, messages after it. Units as for `from`.
    #[serde(deserialize_with = "number")]
    timestamp: Option<u64>,
}

/// Which side opened a connection.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SourceType {
    /// The observed node.
    Local,
    /// Its peer.
    Remote,
}

impl MessageParameters {
    /// The query of the store, without a budget.
    pub(crate) fn query(self) -> Result<MessageQuery, Problem> {
        let (from_ns, to_ns) = range(self.from, self.to, self.timestamp, self.direction.as_deref());
        Ok(MessageQuery {
            cursor: either(("cursor", self.cursor), ("cursor_id", self.cursor_id))?,
            limit: self.limit.unwrap_or(DEFAULT_LIMIT),
            order: order(self.direction.as_deref()),
            kinds: self.types,
            incoming: self.incoming,
            initiator: self.source_type.map(|source| match source {
                SourceType::Local => Initiator::Local,
                SourceType::Remote => Initiator::Remote,
            }),
            remote: self.remote_addr,
            peer_id: self.peer_id,
            target: self.target,
            from_ns,
            to_ns,
            ..MessageQuery::default()
        })
    }
}

fn kinds<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let list = Cow::<str>::deserialize(value)?;
    let names = list.split(',').filter(|name| !name.is_empty());
    let kind = |name| {
        canonical_kind(name)
            .map(str::to_owned)
            .ok_or_else(|| D::Error::custom(format!("unknown type {}; known are {}", shown(name), KINDS.join(", "))))
    };
    names.map(kind).collect()
}

fn socket<'de, D: Deserializer<'de>>(value: D) -> Result<Option<SocketAddr>, D::Error> {
    from_str(value, "neither ip:port nor [ip]:port")
}

/// Which connections.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ConnectionsParameters {
    /// Maximum number of connections. Default: 100.
    #[serde(deserialize_with = "number")]
    pub(crate) limit: Option<u64>,
    /// Key to begin with, included.
    #[param(example = "1617005682.953928051")]
    pub(crate) cursor: Option<String>,
}

/// Which chunks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChunksParameters {
    /// Maximum number of chunks, up to 1000. Default: 100.
    #[serde(deserialize_with = "number")]
    pub(crate) limit: Option<u64>,
    /// Key to begin with, included.
    #[param(example = "1617005682.953928051-remote-15")]
    pub(crate) cursor: Option<String>,
    /// Key of the connection that the chunks belong to.
    #[param(example = "1617005682.953928051")]
    pub(crate) cn: Option<String>,
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
