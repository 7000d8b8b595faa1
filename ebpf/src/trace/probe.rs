//! The tracepoint probe: attachments, and the reader of the ring.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{Array, MapData, PerCpuArray};
use rustix::time::{ClockId, clock_gettime};

use super::abi::{Counters, LocationSpec, MAX_LOCATIONS, SLOT_WORDS, SLOTS};
use super::account::Counts;
use super::assembly::Assembly;
use super::event::{Event, LocationId};
use super::location::{Fetch, Location};
use super::options::{Reads, TraceOptions};
use super::order::Order;
use super::programs::Object;
use super::record::{self, Record};
use crate::error::Error;
use crate::load::{mmap_array, take_map};
use crate::mmap_array::MmapArray;
use crate::reader::RingReader;
use crate::uprobe::{self, AttachMode, Links, Point, Trigger};

/// Identifies what was attached together. Unique for the lifetime of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(u64);

/// What is known of a location.
#[derive(Debug)]
struct Known {
    fetches: Vec<Fetch>,
    received: u64,
}

/// Captures hits of static tracepoints. Dropping it detaches and frees everything.
///
/// # Minimum kernel version
///
/// 5.17, or an older one with `bpf_loop` backported; see the [module](super) for what newer ones add.
pub struct TraceProbe {
    reads: Reads,
    mode: AttachMode,
    reader: RingReader,
    slots: MmapArray<u64>,
    specs: Array<MapData, LocationSpec>,
    accounts: PerCpuArray<MapData, Counters>,
    known: Vec<Known>,
    assembly: Assembly,
    order: Order,
    /// Records that are not those of the programs: 0, unless the probe is wrong.
    invalid: u64,
    last_attachment: u64,
    attachments: BTreeMap<AttachmentId, Links>,
    program: OwnedFd,
    /// Owns the maps.
    _bpf: Ebpf,
}

impl fmt::Debug for TraceProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceProbe")
            .field("reads", &self.reads)
            .field("mode", &self.mode)
            .field("reader", &self.reader)
            .finish_non_exhaustive()
    }
}

impl TraceProbe {
    /// Loads the program. Nothing is attached yet.
    ///
    /// # Errors
    /// No BTF, a kernel without `bpf_loop`, missing capabilities, no memory, an invalid ring size, or a kernel without what
    /// the options demand.
    pub fn load(options: &TraceOptions) -> Result<Self, Error> {
        let Object { mut bpf, program, reads, mode } = Object::load(options)?;
        Ok(Self {
            reads,
            mode,
            reader: RingReader::new(&mut bpf, options.ring_bytes, options.wake_bytes)?,
            slots: mmap_array(&mut bpf, "slots", SLOTS * SLOT_WORDS)?,
            specs: take_map(&mut bpf, "locations")?,
            accounts: take_map(&mut bpf, "accounts")?,
            known: Vec::new(),
            assembly: Assembly::default(),
            order: Order::new(options.max_hold, options.max_hold_bytes),
            invalid: 0,
            last_attachment: 0,
            attachments: BTreeMap::new(),
            program,
            _bpf: bpf,
        })
    }

    /// How memory is read.
    #[must_use]
    pub fn reads(&self) -> Reads {
        self.reads
    }

    /// How locations are attached.
    #[must_use]
    pub fn attach_mode(&self) -> AttachMode {
        self.mode
    }

    /// Attaches to locations of a file, in one process, or in all that run it or will. A process remains observed when it
    /// executes another program that maps the file. Either all locations are attached or none.
    ///
    /// Returns the ids of the locations in their order. Ids are not used again: a probe can attach to 4096 locations.
    ///
    /// # Errors
    /// [`Error::TableFull`]; a location that cannot be compiled, such as one with too many arguments; a failure of the system
    /// call, for example because the process has ended.
    pub fn attach(
        &mut self,
        file: &File,
        pid: Option<u32>,
        locations: &[Location],
    ) -> Result<(AttachmentId, Vec<LocationId>), Error> {
        let first = self.known.len();
        if first + locations.len() > MAX_LOCATIONS as usize {
            return Err(Error::TableFull { table: "tracepoint locations" });
        }
        let specs = locations.iter().map(|location| {
            location.compile().map_err(|error| failed(format!("capture file offset {:#x}", location.offset), &error))
        });
        let specs: Vec<LocationSpec> = specs.collect::<Result<_, _>>()?;
        let mut points = Vec::with_capacity(locations.len());
        for ((number, location), spec) in (0_u32..).skip(first).zip(locations).zip(&specs) {
            let set = self.specs.set(number, *spec, 0);
            set.map_err(|error| failed("describe a location".to_owned(), &error))?;
            points.push(Point { offset: location.offset, semaphore: location.semaphore, cookie: u64::from(number) });
        }
        let links = uprobe::attach(self.program.as_fd(), self.mode, Trigger::Hit, file, pid, &points).map_err(
            |(point, error)| {
                let action = match point {
                    Some(point) => format!("attach to file offset {:#x}", point.offset),
                    None => format!("attach to {} locations", points.len()),
                };
                Error::from_system(action, &error)
            },
        )?;
        self.known.extend(locations.iter().map(|location| {
            let fetches = location.arguments.iter().map(|(_, fetch)| *fetch).collect();
            Known { fetches, received: 0 }
        }));
        self.last_attachment += 1;
        let id = AttachmentId(self.last_attachment);
        self.attachments.insert(id, links);
        Ok((id, points.iter().filter_map(|point| u32::try_from(point.cookie).ok()).map(LocationId).collect()))
    }

    /// Detaches. Events that were captured by then are still delivered.
    pub fn detach(&mut self, attachment: AttachmentId) {
        self.attachments.remove(&attachment);
    }

    /// Detaches from everything. Events that were captured by then are still delivered.
    pub fn detach_all(&mut self) {
        self.attachments.clear();
    }

    /// Passes events to `f`, in the order of time, and returns their number. If there are none, waits for them for at most
    /// `timeout`. Events are collected for 10 ms, or until the backlog of the ring is large; the first one after a while without any
    /// is read at once.
    ///
    /// # Errors
    /// [`Error::Ring`].
    pub fn poll(&mut self, timeout: Duration, f: &mut dyn FnMut(Event)) -> Result<usize, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            self.reader.wait(deadline)?;
            let Drained { records, horizon } = self.drain()?;
            let events = self.order.deliver(horizon, f);
            // Events that wait for earlier ones are looked at as often as while others arrive.
            self.reader.note(records + usize::from(self.order.is_waiting()));
            if events > 0 || Instant::now() >= deadline {
                return Ok(events);
            }
        }
    }

    /// Events before this time (`CLOCK_MONOTONIC` nanoseconds) have all been delivered, but for those that others do not wait for:
    /// see [`TraceOptions::max_hold`] and [`TraceOptions::max_hold_bytes`].
    #[must_use]
    pub fn complete_until_ns(&self) -> u64 {
        self.order.complete()
    }

    /// Whether hits are being captured at this moment, or events wait for their order.
    #[must_use]
    pub fn has_events_waiting(&self) -> bool {
        self.order.is_waiting() || self.hits_in_progress().any(|time| time != 0)
    }

    /// Counts of a location. Exact while no hit is in progress.
    ///
    /// # Errors
    /// A failure of the system call.
    pub fn counts(&self, location: LocationId) -> Result<Counts, Error> {
        let cpus = self.accounts.get(&location.0, 0);
        let cpus = cpus.map_err(|error| failed("read the counters of a location".to_owned(), &error))?;
        let received = usize::try_from(location.0).ok().and_then(|index| self.known.get(index));
        Ok(Counts::sum(&cpus, received.map_or(0, |known| known.received)))
    }

    /// Records of the ring that were not understood: 0, unless the probe is wrong.
    #[must_use]
    pub fn invalid_records(&self) -> u64 {
        self.invalid
    }

    fn hits_in_progress(&self) -> impl Iterator<Item = u64> {
        (0..SLOTS).filter_map(|slot| self.slots.get(slot * SLOT_WORDS))
    }

    /// Reads the ring up to its end.
    fn drain(&mut self) -> Result<Drained, Error> {
        let horizon = self.order.horizon(monotonic_ns(), self.hits_in_progress());
        // The slots before the end of the ring: an event is in the ring before its slot is free.
        fence(Ordering::SeqCst);
        let Self { reader, assembly, order, known, invalid, .. } = self;
        let ring = &mut reader.ring;
        let end = ring.produced();
        let mut records = 0;
        let is_sound = ring.drain(&mut |bytes| {
            records += 1;
            if !take(bytes, assembly, known, order) {
                *invalid += 1;
            }
        });
        if !is_sound {
            return Err(Error::Ring(io::Error::other("the length of a record exceeds the ring")));
        }
        // Behind a record that is still being written there may be earlier events.
        let horizon = if ring.position() >= end { horizon } else { order.complete() };
        Ok(Drained { records, horizon })
    }
}

/// What was read of the ring: its records, and the time before which all events were among them.
struct Drained {
    records: usize,
    horizon: u64,
}

/// Takes a record in. Returns whether it was understood.
fn take(bytes: &[u8], assembly: &mut Assembly, known: &mut [Known], order: &mut Order) -> bool {
    match record::parse(bytes) {
        Some(Record::Chunk(chunk)) => assembly.add(chunk),
        Some(Record::Event(record)) => {
            let known = usize::try_from(record.location).ok().and_then(|location| known.get_mut(location));
            let Some(known) = known else { return false };
            let Some(event) = assembly.finish(&record, &known.fetches) else { return false };
            known.received += 1;
            order.add(event);
            true
        }
        None => false,
    }
}

fn failed(action: String, cause: &dyn std::error::Error) -> Error {
    Error::Load { action, cause: cause.to_string() }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
