//! Static tracepoints (USDT): every hit of chosen locations of ELF files, with its arguments.
//!
//! ```text
//!  attach(file, locations) ─▶ uprobe at each location; the kernel increments its semaphore in every process
//!  hit ─▶ on_hit: a slot, the arguments as the location says ─▶ ring ─▶ poll(): Event, in the order of time
//! ```
//!
//! The kernel counts semaphores by process (`ref_ctr_offset`), in those that start later as well, and decrements them when
//! the probe is dropped or its process is killed.
//!
//! **Loss** is exact. Each hit of a location is counted first, then as delivered or dropped by reason ([`Counts`]). What is
//! missing of an event that is delivered is marked at its arguments ([`End`]): no byte of a [`Data`] was read by an earlier
//! hit, or after an error.
//!
//! **Order.** Events are delivered in the order of their time, across processors. A hit that takes longer than
//! [`TraceOptions::max_hold`], because its process waits for the page that an argument is in, is delivered late; so is one
//! while more than [`TraceOptions::max_hold_bytes`] of later events wait for it.
//!
//! **Minimum kernel.** 5.17 with BTF, on x86-64. From 6.0 on memory is read with page faults ([`Reads::Sleepable`]). Before
//! that, text and bytes in pages that the process has not touched, such as literals in `.rodata`, are unreadable. From 6.10
//! on all locations of a file are attached at once ([`AttachMode::Multi`]), before that one after the other, with
//! semaphores in the first 4 GiB of a file only. Tested on 6.18 only.
//!
//! **Capabilities.** `CAP_BPF` and `CAP_PERFMON` (or `CAP_SYS_ADMIN`).

mod abi;
mod account;
mod assembly;
mod event;
mod location;
mod options;
mod order;
mod probe;
mod programs;
mod record;

pub use abi::MAX_ARGUMENTS;
pub use account::Counts;
pub use event::{ArgumentValue, Data, End, Event, LocationId, Value};
pub use location::{Fetch, Location, LocationError};
pub use options::{MAX_PAYLOAD, MAX_STRING, Reads, TraceOptions};
pub use probe::{AttachmentId, TraceProbe};

pub use crate::uprobe::AttachMode;
