//! Watches `TezosNode` resources and tells agents and the aggregator what to do.
#![forbid(unsafe_code)]

pub mod desired;
