//! Errors.

use std::fmt;

/// Why the functions of a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not an ELF file for x86-64, or damaged.
    #[error("not a readable ELF file: {0}")]
    Elf(#[from] object::read::Error),
    /// Another processor.
    #[error("the file is for another processor (ELF machine {0}): only x86-64 is supported")]
    Machine(u16),
    /// A table is larger than what is read.
    #[error("{size} {what} are more than {max}")]
    TooLarge {
        /// What it consists of.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The maximum.
        max: u64,
    },
}

/// Why no function is selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// Nothing matches.
    #[error("no function matches {pattern}{}", reason(.nearest, .inlined, *.is_stripped))]
    Nothing {
        /// The pattern.
        pattern: String,
        /// Functions with the most similar names, the nearest first.
        nearest: Vec<String>,
        /// Functions that match, of which the compiler left no copy that is called.
        inlined: Vec<String>,
        /// Whether the file has no symbol table but that of the dynamic linker.
        is_stripped: bool,
    },
    /// More functions match than were allowed without a confirmation.
    #[error("{pattern} matches {count} functions ({}, …), more than {max}: narrow it", .first.join(", "))]
    TooMany {
        /// The pattern.
        pattern: String,
        /// How many match.
        count: usize,
        /// How many were allowed.
        max: usize,
        /// Some of them.
        first: Vec<String>,
    },
}

fn reason(nearest: &[String], inlined: &[String], is_stripped: bool) -> String {
    let mut text = String::new();
    if !inlined.is_empty() {
        text.push_str(&format!("; inlined everywhere, so that there is nothing to probe: {}", inlined.join(", ")));
    }
    if is_stripped {
        text.push_str("; the file is stripped, and no debug file was found by its build id or debug link");
    }
    if !nearest.is_empty() {
        text.push_str(&format!("; nearest: {}", nearest.join(", ")));
    }
    text
}

/// Why a function cannot be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeError {
    /// No code of the file is at its address.
    NoCode {
        /// The address.
        address: u64,
    },
    /// Its symbol has no size, so that its end is not known.
    NoSize,
    /// It is larger than what is decoded.
    TooLarge {
        /// Its size in bytes.
        size: u64,
    },
    /// Its code jumps back to its first instruction: an entry is not one call.
    LoopsToEntry,
    /// There is no instruction that can be decoded.
    Undecodable {
        /// The address.
        address: u64,
    },
    /// A conditional jump leaves it for another function.
    ConditionalTailCall {
        /// The address of the jump.
        address: u64,
    },
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCode { address } => write!(f, "the file has no code at its address {address:#x}"),
            Self::NoSize => f.write_str("its symbol has no size, so that its exits cannot be found"),
            Self::TooLarge { size } => write!(f, "its {size} bytes are more than are searched for exits"),
            Self::LoopsToEntry => f.write_str("it jumps back to its first instruction, so that entries are not calls"),
            Self::Undecodable { address } => write!(f, "the bytes at {address:#x} are no instruction"),
            Self::ConditionalTailCall { address } => {
                write!(f, "it leaves by a conditional jump to another function at {address:#x}")
            }
        }
    }
}

impl std::error::Error for ProbeError {}
