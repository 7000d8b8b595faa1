//! The latency probe: attachments, and reading of the tables.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use aya::Ebpf;
use aya::maps::{HashMap, MapData};

use super::abi::{ReturnKey, Table, cookie};
use super::counts::SpanCounts;
use super::programs::{LatencyOptions, Object, Pairing, Programs};
use super::span::{Exit, Scope, Span};
use crate::error::Error;
use crate::load::{mmap_array, take_map};
use crate::mmap_array::MmapArray;
use crate::uprobe::{self, Links, Point, Trigger};

/// Identifies a span. Unique for the lifetime of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(u32);

/// Identifies what was attached together. Unique for the lifetime of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(u64);

/// Times spans. Dropping it detaches and frees everything.
///
/// # Minimum kernel version
///
/// 5.17; see the [module](super) for what newer ones add.
pub struct LatencyProbe {
    pairing: Pairing,
    max_spans: u32,
    shards: u32,
    tables: MmapArray<Table>,
    returns: HashMap<MapData, ReturnKey, u64>,
    spans: u32,
    last_attachment: u64,
    attachments: BTreeMap<AttachmentId, Vec<Links>>,
    programs: Programs,
    /// Owns the maps.
    _bpf: Ebpf,
}

impl fmt::Debug for LatencyProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatencyProbe")
            .field("pairing", &self.pairing)
            .field("spans", &self.spans)
            .finish_non_exhaustive()
    }
}

impl LatencyProbe {
    /// Loads the programs. Nothing is attached yet.
    ///
    /// # Errors
    /// No BTF, a kernel that is too old, missing capabilities, no memory, or a kernel without what the options demand.
    pub fn load(options: &LatencyOptions) -> Result<Self, Error> {
        let Object { mut bpf, programs, pairing, shards } = Object::load(options)?;
        let max_spans = options.max_spans.clamp(1, super::MAX_SPANS);
        Ok(Self {
            pairing,
            max_spans,
            shards,
            tables: mmap_array(&mut bpf, "tables", max_spans * shards)?,
            returns: take_map(&mut bpf, "return_codes")?,
            spans: 0,
            last_attachment: 0,
            attachments: BTreeMap::new(),
            programs,
            _bpf: bpf,
        })
    }

    /// How calls are followed.
    #[must_use]
    pub fn pairing(&self) -> Pairing {
        self.pairing
    }

    /// Attaches to spans of a file, in one process, or in all that run it or will. A process remains observed when it executes
    /// another program that maps the file. Either all spans are attached or none.
    ///
    /// Returns the ids of the spans in their order. Ids are not used again.
    ///
    /// # Errors
    /// [`Error::TableFull`]; a failure of the system call, for example because the process has ended, or because there is no
    /// instruction at an offset that can be probed.
    pub fn attach(
        &mut self,
        file: &File,
        pid: Option<u32>,
        spans: &[Span],
    ) -> Result<(AttachmentId, Vec<SpanId>), Error> {
        let first = self.spans;
        let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
        if first.checked_add(count).is_none_or(|sum| sum > self.max_spans) {
            return Err(Error::TableFull { table: "spans" });
        }
        let points = Points::of(first, spans, self.pairing);
        let mut links = Vec::new();
        // Exits first: an exit without an entry is counted as one, an entry without an exit looks like a span that never ends.
        for (program, trigger, points) in [
            (Some(&self.programs.exit), Trigger::Hit, &points.exits),
            (Some(&self.programs.exit), Trigger::Return, &points.returns),
            (self.programs.call.as_ref(), Trigger::Session, &points.calls),
            (Some(&self.programs.entry), Trigger::Hit, &points.entries),
        ] {
            if let Some(program) = program.filter(|_| !points.is_empty()) {
                links.push(self.attach_points(program.as_fd(), trigger, file, pid, points)?);
            }
        }
        // Detached in this order.
        links.reverse();
        self.spans += count;
        self.last_attachment += 1;
        let id = AttachmentId(self.last_attachment);
        self.attachments.insert(id, links);
        Ok((id, (first..first + count).map(SpanId).collect()))
    }

    fn attach_points(
        &self,
        program: BorrowedFd<'_>,
        trigger: Trigger,
        file: &File,
        pid: Option<u32>,
        points: &[Point],
    ) -> Result<Links, Error> {
        let attach = |points: &[Point]| uprobe::attach(program, self.pairing.attach_mode(), trigger, file, pid, points);
        attach(points).map_err(|(refused, error)| {
            if error.raw_os_error() == Some(libc::ESRCH)
                && let Some(pid) = pid
            {
                return Error::NoProcess { pid };
            }
            let refused = refused.or_else(|| find_refused(points, &|points| attach(points).is_err()));
            let action = match refused {
                Some(point) => format!("probe the instruction at file offset {:#x}", point.offset),
                None => format!("attach to {} locations", points.len()),
            };
            Error::from_system(action, &error)
        })
    }

    /// Detaches. Calls in progress are not timed any more.
    pub fn detach(&mut self, attachment: AttachmentId) {
        self.attachments.remove(&attachment);
    }

    /// Detaches from everything.
    pub fn detach_all(&mut self) {
        self.attachments.clear();
    }

    /// Counts of a span since it was attached. They remain after it is detached.
    #[must_use]
    pub fn counts(&self, span: SpanId) -> SpanCounts {
        let first = span.0 * self.shards;
        SpanCounts::sum((first..first + self.shards).filter_map(|index| self.tables.get(index)))
    }

    /// How often each code was returned since the spans were attached, for those that count them.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn returns(&self) -> Result<BTreeMap<(SpanId, i32), u64>, Error> {
        let read = self.returns.iter().map(|entry| entry.map(|(key, count)| ((SpanId(key.span), key.code), count)));
        read.collect::<Result<_, _>>().map_err(|error| {
            let error = io::Error::other(error);
            Error::from_system("read the return codes".to_owned(), &error)
        })
    }
}

/// The locations of spans, by the program that runs there.
#[derive(Debug, Default)]
struct Points {
    entries: Vec<Point>,
    exits: Vec<Point>,
    returns: Vec<Point>,
    calls: Vec<Point>,
}

impl Points {
    fn of(first: u32, spans: &[Span], pairing: Pairing) -> Self {
        let mut points = Self::default();
        for (number, span) in (first..).zip(spans) {
            let cookie = span.cookie(number);
            let is_call = |entry: u64| {
                pairing == Pairing::Session && span.scope == Scope::Call && span.exits.contains(&Exit::Return(entry))
            };
            for offset in span.entries.iter().copied() {
                let point = Point { offset, semaphore: None, cookie };
                if is_call(offset) { points.calls.push(point) } else { points.entries.push(point) }
            }
            for exit in &span.exits {
                match *exit {
                    Exit::Instruction(offset) => points.exits.push(Point { offset, semaphore: None, cookie }),
                    Exit::TailCall(offset) => {
                        let cookie = cookie & !cookie::COUNT_RETURNS;
                        points.exits.push(Point { offset, semaphore: None, cookie });
                    }
                    Exit::Return(entry) if is_call(entry) && span.entries.contains(&entry) => {}
                    Exit::Return(offset) => {
                        points.returns.push(Point { offset, semaphore: None, cookie: cookie | cookie::RETURNED });
                    }
                }
            }
        }
        points
    }
}

/// A point of those that cannot be attached together, which is refused on its own.
fn find_refused(points: &[Point], is_refused: &dyn Fn(&[Point]) -> bool) -> Option<Point> {
    let (first, second) = points.split_at(points.len() / 2);
    match (first, second) {
        ([], [only]) => is_refused(second).then_some(*only),
        ([], _) => None,
        _ if is_refused(first) => find_refused(first, is_refused),
        _ => find_refused(second, is_refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_point_is_found() {
        let points: Vec<Point> = (0..9).map(|offset| Point { offset, semaphore: None, cookie: 0 }).collect();
        for bad in 0..9 {
            let is_refused = |points: &[Point]| points.iter().any(|point| point.offset == bad);
            assert_eq!(find_refused(&points, &is_refused).map(|point| point.offset), Some(bad));
        }
        assert_eq!(find_refused(&points, &|points| points.len() > 5).map(|point| point.offset), None);
        assert!(find_refused(&[], &|_| true).is_none());
    }

    #[test]
    fn calls_that_return_are_sessions_where_there_are_any() {
        let entries = vec![1, 2];
        let exits = vec![Exit::Return(1), Exit::Instruction(9)];
        let span = Span { entries, exits, scope: Scope::Call, counts_returns: false };
        let offsets = |points: &[Point]| points.iter().map(|point| point.offset).collect::<Vec<_>>();
        let of = |pairing, span: &Span| {
            let points = Points::of(0, std::slice::from_ref(span), pairing);
            [&points.calls, &points.entries, &points.exits, &points.returns].map(|points| offsets(points))
        };
        assert_eq!(of(Pairing::Session, &span), [vec![1], vec![2], vec![9], vec![]]);
        assert_eq!(of(Pairing::StackFrame, &span), [vec![], vec![1, 2], vec![9], vec![1]]);
        let thread = Span { scope: Scope::Thread, ..span };
        assert_eq!(of(Pairing::Session, &thread), [vec![], vec![1, 2], vec![9], vec![1]]);
    }
}
