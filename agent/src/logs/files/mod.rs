//! Log files: plain ones, and those of container runtimes.
//!
//! A [`location::LogLocation`] is where the files of a source are, a [`follow::Follower`] reads the lines of each
//! ([`open::Open`]) through rotation and truncation, an [`assemble::Assembler`] makes messages of the lines of one stream,
//! and [`source::Source`] sends these and knows from where on the files would have to be read again. [`reader::Reader`]
//! schedules the sources; every call that touches a file runs on a thread of a pool, because it may never return.

pub(super) mod assemble;
pub(super) mod follow;
pub(super) mod location;
pub(super) mod open;
pub(super) mod positions;
pub(super) mod reader;
pub(super) mod source;
