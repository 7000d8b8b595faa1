//! Permissions: `get` on a subresource of `tezosnodes` or `nodetraces`, one for each kind of data.

use super::review::Resource;

/// A subresource that a caller may be allowed to `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Permission {
    Messages,
    Connections,
    Chunks,
    Stats,
    Memory,
    Logs,
    Trace,
}

impl Permission {
    /// Name of the subresource.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Connections => "connections",
            Self::Chunks => "chunks",
            Self::Stats => "stats",
            Self::Memory => "memory",
            Self::Logs => "logs",
            Self::Trace => "trace",
        }
    }

    /// Name of the subresource of a resource. A `NodeTrace` has no messages: a client that may read its events also sees
    /// it in `/nodes`.
    pub(crate) fn subresource(self, resource: Resource) -> &'static str {
        match (self, resource) {
            (Self::Messages, Resource::NodeTraces) => Self::Trace.name(),
            _ => self.name(),
        }
    }
}

/// A permission as a type, so that the signature of a handler states what its route requires.
pub(crate) trait AccessPolicy: Send + Sync + 'static {
    /// The permission that the caller needs for each node that the response is about.
    const PERMISSION: Permission;
}

/// Requires [`Permission::Messages`].
#[derive(Debug)]
pub(crate) struct ReadMessages;

impl AccessPolicy for ReadMessages {
    const PERMISSION: Permission = Permission::Messages;
}

/// Requires [`Permission::Connections`].
#[derive(Debug)]
pub(crate) struct ReadConnections;

impl AccessPolicy for ReadConnections {
    const PERMISSION: Permission = Permission::Connections;
}

/// Requires [`Permission::Chunks`].
#[derive(Debug)]
pub(crate) struct ReadChunks;

impl AccessPolicy for ReadChunks {
    const PERMISSION: Permission = Permission::Chunks;
}

/// Requires [`Permission::Stats`].
#[derive(Debug)]
pub(crate) struct ReadStats;

impl AccessPolicy for ReadStats {
    const PERMISSION: Permission = Permission::Stats;
}

/// Requires [`Permission::Memory`].
#[derive(Debug)]
pub(crate) struct ReadMemory;

impl AccessPolicy for ReadMemory {
    const PERMISSION: Permission = Permission::Memory;
}

/// Requires [`Permission::Logs`].
#[derive(Debug)]
pub(crate) struct ReadLogs;

impl AccessPolicy for ReadLogs {
    const PERMISSION: Permission = Permission::Logs;
}

/// Requires [`Permission::Trace`].
#[derive(Debug)]
pub(crate) struct ReadTrace;

impl AccessPolicy for ReadTrace {
    const PERMISSION: Permission = Permission::Trace;
}
