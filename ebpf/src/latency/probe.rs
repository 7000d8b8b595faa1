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

/// Spans that were attached together.
#[derive(Debug)]
pub struct Attached {
    /// Identifies them.
    pub id: AttachmentId,
    /// In the order of the spans; an error for each that the kernel refuses to probe.
    pub spans: Vec<Result<SpanId, Error>>,
}

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
        let (first, count) = self.numbers(spans)?;
        let points = Points::of(first..=u32::MAX, spans, self.pairing);
        let mut links = Vec::new();
        // Exits first: an exit without an entry is counted as one, an entry without an exit looks like a span that never ends.
        for group in points.groups(&self.programs) {
            match self.attach_points(&group, file, pid) {
                Ok(attached) => links.push(attached),
                Err(error) => {
                    drop(links);
                    self.clear(first, count);
                    return Err(error);
                }
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

    /// Attaches like [`Self::attach`] to those spans whose instructions the kernel accepts.
    ///
    /// # Errors
    /// As those of [`Self::attach`], but for instructions that are refused.
    pub fn attach_accepted(&mut self, file: &File, pid: Option<u32>, spans: &[Span]) -> Result<Attached, Error> {
        let error = match self.attach(file, pid, spans) {
            Ok((id, spans)) => return Ok(Attached { id, spans: spans.into_iter().map(Ok).collect() }),
            Err(error @ Error::Load { .. }) => error,
            Err(error) => return Err(error),
        };
        let mut refused = self.refused(file, pid, spans)?;
        if refused.is_empty() {
            return Err(error);
        }
        let accepted = spans.iter().enumerate().filter(|(index, _)| !refused.contains_key(index));
        let accepted: Vec<Span> = accepted.map(|(_, span)| span.clone()).collect();
        let (id, attached) = self.attach(file, pid, &accepted)?;
        let mut attached = attached.into_iter();
        let spans = (0..spans.len()).filter_map(|index| match refused.remove(&index) {
            Some(error) => Some(Err(error)),
            None => attached.next().map(Ok),
        });
        Ok(Attached { id, spans: spans.collect() })
    }

    /// Why the kernel refuses spans, by their index.
    fn refused(&self, file: &File, pid: Option<u32>, spans: &[Span]) -> Result<BTreeMap<usize, Error>, Error> {
        let mut refused = BTreeMap::new();
        // Hits meanwhile are those of a span that has no table.
        let points = Points::of(std::iter::repeat(self.max_spans), spans, self.pairing);
        for group in points.groups(&self.programs) {
            let try_points = |points: &[Point]| self.attach_points(&Group { points, ..group }, file, pid).err();
            for (offset, error) in find_refused(group.points, &try_points) {
                let Error::Load { action, cause } = error else { return Err(error) };
                let spans = spans.iter().enumerate().filter(|(_, span)| span.has(offset));
                let error = |index| (index, Error::Load { action: action.clone(), cause: cause.clone() });
                refused.extend(spans.map(|(index, _)| error(index)));
            }
        }
        Ok(refused)
    }

    /// Numbers for spans: the first one and how many.
    fn numbers(&self, spans: &[Span]) -> Result<(u32, u32), Error> {
        let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
        match self.spans.checked_add(count) {
            Some(sum) if sum <= self.max_spans => Ok((self.spans, count)),
            _ => Err(Error::TableFull { table: "spans" }),
        }
    }

    /// Forgets what was counted of spans whose attachment failed: their numbers are used again.
    fn clear(&self, first: u32, count: u32) {
        for index in first * self.shards..(first + count) * self.shards {
            self.tables.set(index, Table::default());
        }
    }

    fn attach_points(&self, group: &Group<'_>, file: &File, pid: Option<u32>) -> Result<Links, Error> {
        let attached =
            uprobe::attach(group.program, self.pairing.attach_mode(), group.trigger, file, pid, group.points);
        attached.map_err(|(refused, error)| {
            if error.raw_os_error() == Some(libc::ESRCH)
                && let Some(pid) = pid
            {
                return Error::NoProcess { pid };
            }
            let only = if let [point] = group.points { Some(*point) } else { None };
            let action = match refused.or(only) {
                Some(point) => format!("probe the instruction at file offset {:#x}", point.offset),
                None => format!("attach to {} locations", group.points.len()),
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
    fn of(numbers: impl IntoIterator<Item = u32>, spans: &[Span], pairing: Pairing) -> Self {
        let mut points = Self::default();
        for (number, span) in numbers.into_iter().zip(spans) {
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

    /// Each program with its locations, exits first.
    fn groups<'a>(&'a self, programs: &'a Programs) -> Vec<Group<'a>> {
        let all = [
            (Some(&programs.exit), Trigger::Hit, &self.exits),
            (Some(&programs.exit), Trigger::Return, &self.returns),
            (programs.call.as_ref(), Trigger::Session, &self.calls),
            (Some(&programs.entry), Trigger::Hit, &self.entries),
        ];
        let groups = all.into_iter().filter(|(_, _, points)| !points.is_empty());
        let groups = groups.filter_map(|(program, trigger, points)| {
            Some(Group { program: program?.as_fd(), trigger, points: points.as_slice() })
        });
        groups.collect()
    }
}

/// Locations at which one program runs.
#[derive(Clone, Copy, Debug)]
struct Group<'a> {
    program: BorrowedFd<'a>,
    trigger: Trigger,
    points: &'a [Point],
}

/// The locations that are refused on their own, by offset, of those that cannot be attached together.
fn find_refused<E>(points: &[Point], try_points: &dyn Fn(&[Point]) -> Option<E>) -> BTreeMap<u64, E> {
    let Some(error) = try_points(points) else { return BTreeMap::new() };
    if let [point] = points {
        return BTreeMap::from([(point.offset, error)]);
    }
    let (first, second) = points.split_at(points.len() / 2);
    let mut refused = find_refused(first, try_points);
    refused.extend(find_refused(second, try_points));
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_points_are_found() {
        let points: Vec<Point> = (0..9).map(|offset| Point { offset, semaphore: None, cookie: 0 }).collect();
        for bad in [&[][..], &[4], &[0, 8], &[1, 2, 3], &[0, 1, 2, 3, 4, 5, 6, 7, 8]] {
            let tries = std::cell::Cell::new(0);
            let try_points = |points: &[Point]| {
                tries.set(tries.get() + 1);
                points.iter().map(|point| point.offset).find(|offset| bad.contains(offset))
            };
            let refused = find_refused(&points, &try_points);
            assert_eq!(refused.into_keys().collect::<Vec<_>>(), bad);
            assert!(tries.get() <= 1 + 2 * 4 * bad.len(), "{bad:?}: {} tries", tries.get());
        }
    }

    #[test]
    fn calls_that_return_are_sessions_where_there_are_any() {
        let entries = vec![1, 2];
        let exits = vec![Exit::Return(1), Exit::Instruction(9)];
        let span = Span { entries, exits, scope: Scope::Call, counts_returns: false };
        let offsets = |points: &[Point]| points.iter().map(|point| point.offset).collect::<Vec<_>>();
        let of = |pairing, span: &Span| {
            let points = Points::of([0], std::slice::from_ref(span), pairing);
            [&points.calls, &points.entries, &points.exits, &points.returns].map(|points| offsets(points))
        };
        assert_eq!(of(Pairing::Session, &span), [vec![1], vec![2], vec![9], vec![]]);
        assert_eq!(of(Pairing::StackFrame, &span), [vec![], vec![1, 2], vec![9], vec![1]]);
        let thread = Span { scope: Scope::Thread, ..span };
        assert_eq!(of(Pairing::Session, &thread), [vec![], vec![1, 2], vec![9], vec![1]]);
    }
}
