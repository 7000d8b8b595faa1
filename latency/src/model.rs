//! What a recording consists of.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Histogram;

/// Length of a block unless another is chosen: the unit of a comparison.
pub const DEFAULT_BLOCK: Duration = Duration::from_secs(30);

/// Wall-clock time: nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    /// Whole seconds since 1970, rounded down.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// A time of whole seconds since 1970; `None` outside the years 1677 to 2262.
    #[must_use]
    pub const fn from_seconds(seconds: i64) -> Option<Self> {
        match seconds.checked_mul(1_000_000_000) {
            Some(nanoseconds) => Some(Self(nanoseconds)),
            None => None,
        }
    }
}

/// Identifies a run everywhere: 16 random bytes, written in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub [u8; 16]);

impl fmt::Display for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

impl FromStr for RunId {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut id = [0; 16];
        hex::decode_to_slice(text, &mut id)?;
        Ok(Self(id))
    }
}

/// How exact the durations of a run are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// Buckets of a [`Histogram`]: 3.1 %.
    #[default]
    LogLinear,
    /// Imported from bins of powers of two: a factor of two. The middle of a bin stands for its spans; sum, minimum and maximum are
    /// computed from the bins.
    PowersOfTwo,
}

/// What was recorded, of what, where and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// Its identity.
    pub id: RunId,
    /// Name of the node, if it is a configured one.
    pub node: Option<String>,
    /// Process id on the host.
    pub pid: u32,
    /// Path of the executable.
    pub executable: String,
    /// GNU build id of the executable, in hexadecimal.
    pub build_id: Option<String>,
    /// Version that the executable reports.
    pub version: Option<String>,
    /// Commit that the executable was built from.
    pub commit: Option<String>,
    /// Tags given by the user.
    pub tags: BTreeSet<String>,
    /// Name of the host.
    pub host: String,
    /// Release of its kernel.
    pub kernel: String,
    /// Start of the recording.
    pub start: Time,
    /// End of the recording; `None` while it runs, or when it was killed.
    pub end: Option<Time>,
    /// Length of a block.
    pub block: Duration,
    /// How exact its durations are.
    pub resolution: Resolution,
}

/// A place in the executable where a span starts or ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// What the user asked for: a pattern of demangled names, or `provider:name` of a tracepoint.
    pub pattern: String,
    /// The names that it resolved to, demangled.
    pub symbols: Vec<String>,
}

/// What is timed: from an entry to an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Name of the function in reports; unique in a run.
    pub name: String,
    /// Where a span starts.
    pub entry: Location,
    /// Where it ends: the return of a function, or a tracepoint.
    pub exit: Location,
}

/// Why a span, return code or transaction is missing from a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LossReason {
    /// An exit without a known entry: the call was entered before the probe was attached, or the entry was missed.
    NoEntry,
    /// No room for one more open span.
    SpansFull,
    /// No room for one more distinct return code; the duration is counted.
    ReturnsFull,
    /// No room for the record of a transaction.
    TransactionsFull,
    /// An argument of a tracepoint could not be read: the duration of a transaction is counted, and there is no record of it.
    Unreadable,
    /// User space did not keep the counts: damaged, or the recorder was killed.
    NotKept,
}

impl LossReason {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::NoEntry, Self::SpansFull, Self::ReturnsFull, Self::TransactionsFull, Self::Unreadable, Self::NotKept];

    /// Name in files, metrics and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoEntry => "no_entry",
            Self::SpansFull => "spans_full",
            Self::ReturnsFull => "returns_full",
            Self::TransactionsFull => "transactions_full",
            Self::Unreadable => "unreadable",
            Self::NotKept => "not_kept",
        }
    }

    /// The reason with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

/// The spans of one function that ended within one period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Index of the function in [`Run::functions`].
    pub function: usize,
    /// Start of the period.
    pub start: Time,
    /// Its length; the last one of a run may be shorter.
    pub length: Duration,
    /// Durations.
    pub histogram: Histogram,
    /// How often each return code was returned; empty when return codes are not recorded.
    pub returns: BTreeMap<i64, u64>,
    /// Spans that were found not to end: their thread ended, or an outer call returned first (an exception, `longjmp`).
    pub unended: u64,
    /// What is missing, by reason.
    pub lost: BTreeMap<LossReason, u64>,
}

/// Identifies a transaction: 32 bytes in the order in which they are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub [u8; 32]);

impl fmt::Display for TransactionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode_upper(self.0))
    }
}

impl FromStr for TransactionId {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut id = [0; 32];
        hex::decode_to_slice(text, &mut id)?;
        Ok(Self(id))
    }
}

/// One application of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Its identity; a transaction that is applied several times occurs several times.
    pub id: TransactionId,
    /// Type of the transaction, as the node numbers it.
    pub kind: i64,
    /// Result, as the node numbers it.
    pub result: i64,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// When it ended.
    pub time: Time,
}

/// One recording of one process, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What was recorded.
    pub info: RunInfo,
    /// What was timed.
    pub functions: Vec<Function>,
    /// Blocks of all functions, by start and function.
    pub blocks: Vec<Block>,
    /// Transactions, by time.
    pub transactions: Vec<Transaction>,
}

impl Run {
    /// Blocks of one function, in order.
    pub fn blocks_of(&self, function: usize) -> impl Iterator<Item = &Block> + Clone {
        self.blocks.iter().filter(move |block| block.function == function)
    }
}
