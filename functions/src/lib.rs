//! Functions of an ELF file: their names, how a user selects them, and where a probe can be put to time them.
//!
//! ```text
//!  .symtab, .dynsym, debug file ─▶ Functions ── find(pattern) ─▶ Function ── probes(code) ─▶ Probes
//!                                     names demangled             address, size             entry, its cost, exits
//! ```
//!
//! A [`Pattern`] selects functions by what they are called in the source: `Payment::doApply` is the function of that name in any
//! namespace, with any parameters and template arguments. [`Probes`] says where to probe a function so that the process does not
//! notice: the cheapest instruction of its entry, and every instruction that leaves it. [`Hazard`] says what a return probe, which
//! replaces the return address on the stack, would break.
//!
//! Input is untrusted: the crate does not panic, and the bytes that it reads of a file are bounded. It does no I/O: it reads
//! through [`ReadRef`], so that a large file need not be in memory. x86-64 only.

#![forbid(unsafe_code)]

mod abbreviations;
mod demangle;
mod elf;
mod error;
mod function;
mod hazard;
mod inlined;
mod ocaml;
mod path;
mod pattern;
mod probes;
mod set;
mod suffix;
mod table;

pub use abbreviations::{MAX_ABBREVIATIONS, abbreviations_are_bounded};
pub use demangle::{Demangled, MAX_NAME, demangle};
pub use error::{Error, FindError, ProbeError};
pub use function::{Function, Part};
pub use hazard::Hazard;
pub use object::{ReadCache, ReadRef};
pub use pattern::Pattern;
pub use probes::{Cost, Emulated, Note, Probes};
pub use set::{ReadySet, ReadySpan, ReadyTransactions, built_in};
pub use table::Functions;
