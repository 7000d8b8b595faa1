//! Errors of reading a file.

/// An error in an ELF file or its call frame information.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not an ELF file, or its headers are inconsistent.
    #[error("not a readable ELF file: {0}")]
    Elf(String),
    /// The file is for another architecture.
    #[error("made for {0}, not for x86-64")]
    Architecture(String),
    /// A section is present but cannot be read.
    #[error("section {section} cannot be read: {cause}")]
    Section {
        /// Section name.
        section: &'static str,
        /// Cause of the failure.
        cause: String,
    },
    /// The file has neither `.eh_frame` nor `.debug_frame`.
    #[error("no call frame information (.eh_frame or .debug_frame)")]
    NoFrames,
    /// No entry of the section can be read.
    #[error("{section} has no entry that can be read: {cause}")]
    NoEntry {
        /// Section name.
        section: &'static str,
        /// Error of the first entry.
        cause: String,
    },
    /// The code spans more than 32-bit row addresses can express.
    #[error("code from {start:#x} to {end:#x} spans more than 4 GiB")]
    Span {
        /// Lowest address.
        start: u64,
        /// Highest address.
        end: u64,
    },
    /// The tables and sections exceed [`Limits::read`](crate::Limits::read).
    #[error("more than {0} bytes of tables and sections")]
    TooLarge(u64),
    /// The table exceeds [`Limits::rows`](crate::Limits::rows).
    #[error("more than {0} rows")]
    TooManyRows(usize),
    /// Shared CIEs amount to too much work for the section's size.
    #[error("call frame programs of {executed} bytes in a section of {size}")]
    TooMuchWork {
        /// Bytes of CIEs parsed and of instructions executed.
        executed: u64,
        /// Section size in bytes.
        size: u64,
    },
}
