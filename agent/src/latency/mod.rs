//! Latency of functions of a program: which functions are timed and what that costs ([`Plan`]), and a recording of them
//! ([`Recorder`]) as blocks, and transactions one by one, of the crate `chainscope-latency`. `pillar` records functions of observed
//! processes.

mod blocks;
mod describe;
mod error;
mod mappings;
pub(crate) mod pillar;
mod plan;
mod program;
mod recorder;
mod search;
mod transactions;

pub use chainscope_functions::{FindError, Hazard, Pattern, ReadySet, built_in as ready_sets};
pub use error::RecordError;
pub use plan::{Exits, Plan, PlannedFunction, RecordOptions, Skipped, SpanRequest};
pub use program::Program;
pub use recorder::{ProcessState, Recorder};
pub use transactions::{PlannedTransactions, TransactionRequest};
