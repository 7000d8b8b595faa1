//! Keys and values of the maps of the latency programs, as declared in `latency.h`.

/// `BUCKETS`.
pub(super) const BUCKETS: usize = 1920;

/// Bits of an attachment cookie above the number of the span.
pub(super) mod cookie {
    pub(crate) const COUNT_RETURNS: u64 = 1 << 32;
    pub(crate) const BY_THREAD: u64 = 1 << 33;
    pub(crate) const RETURNED: u64 = 1 << 34;
}

/// `struct table`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) started: u64,
    pub(super) ended: u64,
    pub(super) sum: u64,
    pub(super) max: u64,
    pub(super) not_min: u64,
    pub(super) replaced: u64,
    pub(super) no_entry: u64,
    pub(super) no_room: u64,
    pub(super) no_return_room: u64,
    pub(super) returns: u64,
    pub(super) pad: [u64; 6],
    pub(super) buckets: [u64; BUCKETS],
}

impl Default for Table {
    fn default() -> Self {
        Self {
            started: 0,
            ended: 0,
            sum: 0,
            max: 0,
            not_min: 0,
            replaced: 0,
            no_entry: 0,
            no_room: 0,
            no_return_room: 0,
            returns: 0,
            pad: [0; 6],
            buckets: [0; BUCKETS],
        }
    }
}

/// `struct return_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReturnKey {
    pub(super) span: u32,
    pub(super) code: i32,
}

// SAFETY: both are repr(C) structs of integers without padding, so every bit pattern is a value.
unsafe impl aya::Pod for Table {}
// SAFETY: as above.
unsafe impl aya::Pod for ReturnKey {}

const _: () = assert!(size_of::<Table>() == 128 + 8 * BUCKETS);
