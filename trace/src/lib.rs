//! Events of static tracepoints (USDT), after they were captured.
//!
//! A [`Source`] delivers [`Event`]s: a probe in the kernel, or a recording. An event refers to its [`Attachment`], which has the
//! names, types and units of its arguments. [`Accounting`] counts what was hit, delivered and lost.
//!
//! Texts and bytes of events come from peers: they are untrusted, and are escaped where they are shown.

#![forbid(unsafe_code)]

mod accounting;
pub mod archive;
mod attachment;
pub mod content;
mod event;
pub mod json;
mod pattern;
pub mod pcapng;
pub mod record;
mod session;
mod show;
mod source;
pub mod view;

pub use accounting::{Accounting, Counts};
pub use attachment::{AttachedArgument, Attachment};
pub use event::{Event, Incomplete, Timestamp, Value};
pub use pattern::{Condition, Pattern};
pub use session::{Selection, Session};
pub use show::{Shown, reversed_hex};
pub use source::{Polled, Process, Source};
