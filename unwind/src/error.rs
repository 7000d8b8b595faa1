//! Why a file gives no table.

/// What is wrong with a file, naming the offender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not an ELF file, or one whose headers lie.
    #[error("not a readable ELF file: {0}")]
    Elf(String),
    /// Made for another processor.
    #[error("made for {0}, not for x86-64")]
    Architecture(String),
    /// A section that is there cannot be read.
    #[error("section {section} cannot be read: {cause}")]
    Section {
        /// Its name.
        section: &'static str,
        /// Why.
        cause: String,
    },
    /// Neither `.eh_frame` nor `.debug_frame`.
    #[error("no call frame information (.eh_frame or .debug_frame)")]
    NoFrames,
    /// The first entry is already unreadable.
    #[error("{section} has no entry that can be read: {cause}")]
    NoEntry {
        /// Its name.
        section: &'static str,
        /// What is wrong with the first one.
        cause: String,
    },
    /// The code is spread too far for 32-bit row addresses.
    #[error("code from {start:#x} to {end:#x} spans more than 4 GiB")]
    Span {
        /// Its least address.
        start: u64,
        /// Its greatest.
        end: u64,
    },
    /// More rows than wanted.
    #[error("more than {0} rows")]
    TooManyRows(usize),
    /// Call frame programs that are run again and again.
    #[error("call frame programs of {executed} bytes in a section of {size}")]
    TooMuchWork {
        /// Bytes of programs that were run.
        executed: u64,
        /// The section's size.
        size: u64,
    },
}
