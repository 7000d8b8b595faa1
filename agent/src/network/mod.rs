//! The network pillar: bytes of sockets from the kernel's ring buffer to connections, chunks and messages.

pub(crate) mod account;
pub(crate) mod holding;
pub(crate) mod interpreter;
pub(crate) mod journal;
pub(crate) mod reader;
