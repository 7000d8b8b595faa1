//! Keys and values of the maps of the tracepoint programs, as declared in `trace.h`.

/// `MAX_ARGUMENTS`: arguments that are fetched of a location.
pub const MAX_ARGUMENTS: usize = 12;
/// `MAX_LOCATIONS`.
pub(crate) const MAX_LOCATIONS: u32 = 4096;
/// `SLOTS`.
pub(crate) const SLOTS: u32 = 64;
/// `CHUNK`.
pub(crate) const CHUNK: usize = 32768;

/// `enum operand`.
pub(crate) mod operand {
    pub(crate) const UNSUPPORTED: u8 = 0;
    pub(crate) const CONSTANT: u8 = 1;
    pub(crate) const REGISTER: u8 = 2;
    pub(crate) const MEMORY: u8 = 3;
}

/// `enum fetch`.
pub(crate) mod fetch {
    pub(crate) const VALUE: u8 = 0;
    pub(crate) const STRING: u8 = 1;
    pub(crate) const BYTES: u8 = 2;
    pub(crate) const PAYLOAD: u8 = 3;
}

/// Flags of an argument in an event record.
pub(crate) mod flag {
    pub(crate) const VALUE_UNSUPPORTED: u16 = 1;
    pub(crate) const VALUE_UNREADABLE: u16 = 2;
    pub(crate) const DATA_UNREADABLE: u16 = 4;
    pub(crate) const DATA_TRUNCATED: u16 = 8;
    pub(crate) const DATA_RING_FULL: u16 = 16;
    pub(crate) const LENGTH_UNKNOWN: u16 = 32;
}

/// `struct argument`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArgumentSpec {
    pub(crate) operand: u8,
    pub(crate) size: u8,
    pub(crate) is_signed: u8,
    pub(crate) shift: u8,
    pub(crate) base: u8,
    pub(crate) index: u8,
    pub(crate) scale: u8,
    pub(crate) fetch: u8,
    pub(crate) length: u32,
    pub(crate) pad: u32,
    pub(crate) number: u64,
}

/// `struct location`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocationSpec {
    pub(crate) count: u32,
    pub(crate) pad: u32,
    pub(crate) arguments: [ArgumentSpec; MAX_ARGUMENTS],
}

/// `struct counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: u64,
    pub(crate) delivered: u64,
    pub(crate) ring_full: u64,
    pub(crate) no_slot: u64,
    pub(crate) incomplete: u64,
}

/// Size of `struct slot` in units of its first member, the time.
pub(crate) const SLOT_WORDS: u32 = 8;
/// `STARTING`: the time of a slot before it is known.
pub(crate) const STARTING: u64 = 1;

// SAFETY: all of them are repr(C) structs of integers without padding, so every bit pattern is a value.
unsafe impl aya::Pod for LocationSpec {}
// SAFETY: as above.
unsafe impl aya::Pod for Counters {}

const _: () = assert!(size_of::<ArgumentSpec>() == 24);
const _: () = assert!(size_of::<LocationSpec>() == 296);
const _: () = assert!(size_of::<Counters>() == 40);
