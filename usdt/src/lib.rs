//! User-space statically defined tracepoints (USDT): what an ELF image says about them, and what its author meant.
//!
//! The macros of `sys/sdt.h` put a `nop` into the code and describe it by a note: provider, name, address, and one string
//! that tells where each argument is at that address. [`Image::read`] reads the notes:
//!
//! ```text
//!  .note.stapsdt ─▶ Tracepoint net:inbound_message
//!                     Location 0x107c05, file offset 0x106c05, semaphore at 0x57a010
//!                       Argument "-8@%r12"      8 bytes, signed, in a register
//!                       Argument "8@192(%rsp)"  8 bytes, unsigned, in memory
//! ```
//!
//! A note has no names and no types. A [`Contract`] has them: the arguments of each tracepoint of a node as its code passes
//! them, and as its documentation lists them where that differs. [`best_match`] finds the contract of an image, [`check`]
//! what disagrees.
//!
//! Input is untrusted: the crate does not panic, and the bytes that it reads of a file are bounded. It does no I/O: it reads
//! through [`ReadRef`], so that a large file need not be in memory.

#![forbid(unsafe_code)]

mod argument;
mod check;
mod contract;
mod elf;
mod error;
mod expression;
mod image;
mod note;
mod pattern;
mod register;
mod symbols;

pub use argument::{Address, Argument, Base, Class, Index, MAX_ARGUMENTS, Operand, Scope, Shape};
pub use check::{Finding, Match, Problem, best_match, check, check_location, meaning};
pub use contract::{ArgumentContract, Contract, Kind, Length, Scalar, TracepointContract, Variant, built_in, parse};
pub use error::{ContractError, Error, NoteError, Unsupported};
pub use image::{Image, Location, Semaphore, Tracepoint};
pub use object::{ReadCache, ReadRef};
pub use pattern::{Comparison, Operator, Pattern};
pub use register::Register;
