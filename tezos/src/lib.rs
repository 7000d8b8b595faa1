//! Tezos peer-to-peer conversations as a passive observer captures them: identity, handshake, decryption, messages.
//!
//! ```text
//!            Piece (captured bytes of one direction, split anywhere, with holes)
//!              │
//!    Conversation ── recognise: Tezos or another protocol ── Keyring: identity ── cipher: keys, nonces
//!         │
//!    HalfStream (one per direction) ── framer: chunks ── resync: after a hole ── reassembly: messages ── message: decoding, preview
//!         │
//!       Output (chunks, messages, gaps, state changes, comments)
//! ```
//! The crate is pure: no I/O, no clock, no threads, no unsafe code. Memory and processing are bounded whatever a peer
//! sends ([`Limits`], [`MemoryBudget`]). The wire format is that of Octez, unchanged since 2021. [`seal`] is the encrypting side, for
//! demo nodes and tests.
#![forbid(unsafe_code)]

mod base58;
pub mod cipher;
mod conversation;
pub mod framer;
pub mod generate;
mod half_stream;
pub mod hash;
mod identity;
mod input;
pub mod json;
mod limits;
mod memory;
pub mod message;
mod output;
pub mod pow;
mod reader;
mod reassembly;
mod recognise;
mod resync;
pub mod seal;
mod stats;
mod work;

pub use conversation::{Conversation, Offsets, SavedDirection, SavedSession};
pub use hash::peer_id;
pub use identity::{Identity, IdentityError};
pub use input::{Direction, Keyring, Piece, Role};
pub use limits::Limits;
pub use memory::MemoryBudget;
pub use message::{Category, DecodeError, Decoded, KINDS, canonical_kind, decode, locate, preview};
pub use output::{Chunk, ChunkState, Gap, Identified, Message, Output, Protocol, State};
pub use reader::{Cause, List};
pub use stats::StreamStats;
