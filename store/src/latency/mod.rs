//! Latency of functions: blocks of runs, and transactions one by one.

mod blocks;
mod transactions;

pub(crate) use self::{blocks::LATENCY_BLOCKS, transactions::LATENCY_TRANSACTIONS};
pub use self::{blocks::LatencyQuery, transactions::TransactionQuery};
