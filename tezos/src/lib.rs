//! Tezos peer-to-peer conversations as a passive observer sees them: identity, handshake, decryption, messages.
//!
//! ```text
//!            Piece (bytes of one direction, cut anywhere, with holes)
//!              │
//!    Conversation ── recognise: Tezos or not ── Keyring: identity ── cipher: keys, nonces
//!         │
//!    Half (one a direction) ── framer: chunks ── search: after a hole ── assembly: messages ── message: decode, preview
//!         │
//!       Output (chunks, messages, gaps, state, comments)
//! ```
//! Everything here is pure: no I/O, no clock, no threads, no unsafe code; memory and processing are bounded whatever a peer sends
//! ([`Limits`]). The wire format is that of Octez, and did not change since 2021. [`seal`] is the sending side, for demo nodes and tests.
#![forbid(unsafe_code)]

mod account;
mod assembly;
pub mod cipher;
mod conversation;
pub mod framer;
pub mod generate;
mod half;
pub mod hash;
mod identity;
pub mod json;
pub mod message;
mod output;
pub mod pow;
mod reader;
mod recognise;
pub mod seal;
mod search;

pub use account::Account;
pub use conversation::{Conversation, Offsets, Saved, SavedDirection};
pub use hash::peer_id;
pub use identity::{Identity, IdentityError};
pub use message::{Category, DecodeError, Decoded, KINDS, canonical_kind, decode, locate, preview};
pub use output::{
    ChunkOut, ChunkState, Direction, GapOut, Identified, Keyring, Limits, MessageOut, Output, Piece, Protocol, Role,
    State,
};
pub use reader::{Cause, List};
