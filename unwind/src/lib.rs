//! Unwind tables: the `.eh_frame` of an ELF file as compact rows that a BPF program can search.
//!
//! An address's call frame information is a small program in the file. [`Table::read`] runs all of them once and keeps, for
//! every stretch of code, what is needed to get from a function to its caller on x86-64: where the caller's frame begins
//! (the canonical frame address, CFA), whether the caller's `rbp` was saved and where. The return address is always at
//! CFA - 8; rules that say otherwise are [`CfaKind::Unsupported`] and counted.
//!
//! ```text
//!  .eh_frame ─▶ rows by pc   0x1139  CFA = rsp + 8
//!                            0x113a  CFA = rsp + 16, rbp at CFA - 16
//!                            0x113d  CFA = rbp + 16, rbp at CFA - 16
//!                            0x1150  no rule: the function ends here
//! ```
//!
//! Addresses are those of the file (`p_vaddr`); [`ElfSegments::load_bias`] tells what to add for a mapping of a process.
//! Where `.eh_frame` is missing, `.debug_frame` is read, compressed or not. Of Go's only the beginnings of functions are
//! of use ([`CfaKind::Leaf`]): it keeps frame pointers.
//!
//! Input is untrusted: nothing here panics, and memory and time are bounded by [`Limits`] and the input's size.
//! No I/O: the bytes come through [`object::ReadRef`], so that a large file need not be in memory.

#![forbid(unsafe_code)]

mod error;
mod row;
mod rule;
mod segments;
mod table;

pub use error::Error;
pub use object::ReadRef;
pub use row::{CfaKind, RbpKind, Row};
pub use segments::{ElfSegments, Segment};
pub use table::{Limits, Skipped, Table};
