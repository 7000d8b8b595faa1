//! Latency of functions: what a probe measured, kept by run, and whether it got slower.
//!
//! A [`Run`] is one recording of one process. It measures [`Function`]s: spans from an entry to an exit. The spans of a function
//! are counted in [`Block`]s of 30 s each: a [`Histogram`] of durations, return codes, spans that never ended, and losses.

#![forbid(unsafe_code)]

#[cfg(feature = "sqlite")]
pub mod database;
#[cfg(feature = "export")]
pub mod export;
mod format;
mod histogram;
#[cfg(feature = "html")]
pub mod html;
mod model;
#[cfg(feature = "record")]
pub mod record;
pub mod report;
mod select;
pub mod text;
pub mod verdict;

pub use histogram::{
    BUCKETS, Bucket, Histogram, OtlpHistogram, PrometheusHistogram, Span, bucket_bounds, bucket_index,
};
pub use model::{
    Block, DEFAULT_BLOCK, Function, Location, LossReason, Resolution, Run, RunId, RunInfo, Time, Transaction,
    TransactionId,
};
pub use select::{RunFilter, select};
