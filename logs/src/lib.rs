//! Log lines of nodes: how they arrive ([`syslog`], [`container`]), how lines make up a message ([`MessageJoiner`]), and
//! what a message says ([`Message::parse`]).
//!
//! What arrived is kept as bytes. Level, time, section and text are derived from them whenever they are needed, so that a
//! better parser improves old records.
//!
//! Sources of the forms: Octez `lib_stdlib_unix/internal_event_unix` and `lwt_log_sink_unix`, slog-term and slog-json
//! (TezEdge), RFC 3164, RFC 5424, RFC 6587, the CRI logging format of Kubernetes, Docker's json-file driver.

#![forbid(unsafe_code)]

mod colours;
pub mod container;
mod form;
mod join;
mod json;
mod level;
mod message;
pub mod syslog;
mod time;

pub use form::Form;
pub use join::{MAX_MESSAGE_BYTES, MessageJoiner, pieces};
pub use level::{Level, UnknownLevel};
pub use message::{Encoding, Message};
