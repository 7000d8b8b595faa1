//! Delivery of records and memory states to an aggregator: record streams, their spool, and the uplink.

pub(crate) mod lanes;
pub(crate) mod spool;
pub(crate) mod uplink;
