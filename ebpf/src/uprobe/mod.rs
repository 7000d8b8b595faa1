//! Probes at instructions of files, by links that aya does not have: loading a program for them, and attaching it. Shared by
//! static tracepoints and by the latency of functions.

mod attach;
mod load;

pub(crate) use attach::{Links, Point, Trigger, UPROBE_TYPE, attach};
pub(crate) use load::{LinkKind, load};

/// How locations are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// All locations of a file by one link. Linux 6.10.
    Multi,
    /// Each location by a perf event. Semaphores in the first 4 GiB of the file only.
    PerfEvent,
}

/// First release whose links to several locations filter processes, not threads.
pub(crate) const SURE_MULTI: (u32, u32) = (6, 10);
