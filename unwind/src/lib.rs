//! Unwind tables: the `.eh_frame` of an ELF file as compact rows that a BPF program searches.
//!
//! DWARF call frame information is a program for each function. [`Table::read`] executes all of them once and keeps,
//! for each code range, the rule that leads from a function to its caller on x86-64: how to compute the canonical frame
//! address (CFA), and where the caller's `rbp` is saved. The return address is always at CFA - 8; other rules become
//! [`CfaKind::Unsupported`].
//!
//! ```text
//!  .eh_frame ─▶ rows by pc   0x1139  CFA = rsp + 8
//!                            0x113a  CFA = rsp + 16, rbp at CFA - 16
//!                            0x113d  CFA = rbp + 16, rbp at CFA - 16
//!                            0x1150  no rule: the function ends here
//! ```
//!
//! Addresses are those of the file (`p_vaddr`); [`ElfSegments::load_bias`] is the offset to add for a mapping of a
//! process. Without `.eh_frame`, [`Table::read`] reads `.debug_frame`, compressed or not. Go keeps frame pointers, so
//! only the function entries of its `.debug_frame` are used ([`CfaKind::Leaf`]).
//!
//! Input is untrusted: the crate does not panic, and [`Limits`] and the input's size bound memory and time. The crate
//! does no I/O: it reads through [`object::ReadRef`], so that a large file need not be in memory.

#![forbid(unsafe_code)]

mod error;
mod read_limit;
mod row;
mod rule;
mod segments;
mod table;

pub use error::Error;
pub use object::ReadRef;
pub use row::{CfaKind, RbpKind, Row};
pub use segments::{ElfSegments, Segment};
pub use table::{Limits, Skipped, Table};
