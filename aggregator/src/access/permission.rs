//! Permissions: `get` on a subresource of `tezosnodes` or `nodetraces`, one for each kind of data.

use super::review::Resource;

/// A permission as a type, so that the signature of a handler states what its route requires.
pub(crate) trait AccessPolicy: Send + Sync + 'static {
    /// The permission that the caller needs for each node that the response is about.
    const PERMISSION: Permission;
}

macro_rules! permissions {
    ($($policy:ident: $permission:ident = $name:literal,)+) => {
        /// A subresource that a caller may be allowed to `get`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Permission {
            $($permission,)+
        }

        impl Permission {
            /// Name of the subresource.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$permission => $name,)+
                }
            }

            /// Names of all subresources.
            #[cfg(test)]
            const NAMES: &[&str] = &[$($name,)+];
        }

        $(
            #[doc = concat!("Requires [`Permission::", stringify!($permission), "`].")]
            #[derive(Debug)]
            pub(crate) struct $policy;

            impl AccessPolicy for $policy {
                const PERMISSION: Permission = Permission::$permission;
            }
        )+
    };
}

permissions! {
    ReadMessages: Messages = "messages",
    ReadConnections: Connections = "connections",
    ReadChunks: Chunks = "chunks",
    ReadStats: Stats = "stats",
    ReadMemory: Memory = "memory",
    ReadLogs: Logs = "logs",
    ReadTrace: Trace = "trace",
}

impl Permission {
    /// Name of the subresource of a resource. A `NodeTrace` has no messages: a client that may read its events also sees
    /// it in `/nodes`.
    pub(crate) fn subresource(self, resource: Resource) -> &'static str {
        match (self, resource) {
            (Self::Messages, Resource::NodeTraces) => Self::Trace.name(),
            _ => self.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A permission that the chart's role does not grant is 403 for its readers.
    #[test]
    fn the_role_of_the_chart_grants_every_permission() {
        let template = include_str!("../../../charts/chainscope/templates/_helpers.tpl");
        let granted = |resource: Resource| -> Vec<_> {
            let prefix = format!("{}/", resource.name());
            template.split(&prefix).skip(1).filter_map(|rest| rest.split([',', ']']).next()).collect()
        };
        assert_eq!(granted(Resource::TezosNodes), Permission::NAMES);
        // A NodeTrace has records of no other kind.
        let of_traces = [Permission::Trace, Permission::Stats].map(|one| one.subresource(Resource::NodeTraces));
        assert_eq!(granted(Resource::NodeTraces), of_traces);
    }
}
