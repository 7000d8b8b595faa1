//! Recordings: events in a file.
//!
//! A file is a frame of Zstandard that contains entries, each a length (varint) and a message of Protocol Buffers:
//!
//! ```text
//!  Header       identifies the format; when the source was attached
//!  Attachment   a tracepoint location, before the first event that refers to it
//!  Event        …
//!  Trailer      what was hit, delivered and lost
//! ```
//!
//! A file without a trailer was cut: what is before is read. Input is untrusted: nothing in it makes the reader panic or hold
//! more than [`MAX_ENTRY`] bytes of it and [`MAX_ATTACHMENTS`] descriptions.

mod convert;
mod info;
mod reader;
mod wire;
mod writer;

pub use info::{Info, Observed, Program};
pub use reader::{Ending, Item, Reader};
pub use writer::Writer;

/// What the first entry of a file says that it is.
const FORMAT: &str = "chainscope.trace";
/// Version of the format; readers refuse later ones.
const VERSION: u32 = 1;
/// Maximum size of an entry in bytes. The largest payload of a message of Bitcoin is 4 MB.
pub const MAX_ENTRY: usize = 64 << 20;
/// Maximum number of tracepoint locations of a file.
pub const MAX_ATTACHMENTS: usize = 100_000;
