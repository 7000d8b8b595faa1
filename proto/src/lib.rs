//! Wire types of Chainscope: the record path, the config stream and the session journal, generated from `proto/`.
//!
//! The rules of change are at the top of `record.proto`: additive only, held by a golden test of the descriptor.

/// Version 1 of the protocol.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    reason = "generated; the .proto files have the comments"
)]
pub mod v1 {
    tonic::include_proto!("chainscope.v1");
}

/// Versions of the record path that this build speaks, least and greatest.
pub const VERSIONS: (u32, u32) = (1, 1);

/// What the second part of the name of a node begins with that a `NodeTrace` describes: `namespace/trace:name`. No name in
/// Kubernetes contains a colon, so that it never is the name of a `TezosNode`.
pub const NODE_TRACE_PREFIX: &str = "trace:";

/// The compiled descriptor of every `.proto` file, as a serialised `FileDescriptorSet`.
pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

impl std::fmt::Debug for v1::ObservedPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, namespace, name, container, identity, .. } = self;
        write!(f, "ObservedPod({namespace}/{name}, container {container} of node {node}, {identity:?})")
    }
}

impl std::fmt::Debug for v1::observed_pod::Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::IdentityPath(path) => f.debug_tuple("IdentityPath").field(path).finish(),
            Self::IdentityJson(_) => f.write_str("IdentityJson(..)"),
            Self::IdentityMissing(reason) => f.debug_tuple("IdentityMissing").field(reason).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::v1::{ObservedPod, observed_pod::Identity};

    #[test]
    fn an_identity_is_never_printed() {
        let pod = ObservedPod { identity: Some(Identity::IdentityJson(b"{secret}".to_vec())), ..Default::default() };
        let text = format!("{pod:?}");
        assert!(text.contains("IdentityJson(..)") && !text.contains("secret") && !text.contains("115"), "{text}");
    }
}
