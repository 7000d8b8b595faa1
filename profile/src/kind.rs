//! Kinds of memory, and sets of them.

use chainscope_proto::v1::MemoryKind;

/// A kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Anonymous pages: heap, stacks, private copies.
    Anon,
    /// Page cache read or written on behalf of the process.
    Cache,
    /// Kernel memory of the process: page tables, socket buffers and similar.
    Kernel,
}

impl Kind {
    /// All kinds, in the order of [`Kind::index`].
    pub const ALL: [Self; 3] = [Self::Anon, Self::Cache, Self::Kernel];

    /// Index in arrays with one entry per kind.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Anon => 0,
            Self::Cache => 1,
            Self::Kernel => 2,
        }
    }

    /// Name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Anon => "anon",
            Self::Cache => "cache",
            Self::Kernel => "kernel",
        }
    }

    /// From the wire; `None` for an unknown number.
    #[must_use]
    pub fn of_wire(number: i32) -> Option<Self> {
        match MemoryKind::try_from(number).ok()? {
            MemoryKind::Unspecified => None,
            MemoryKind::Anon => Some(Self::Anon),
            MemoryKind::Cache => Some(Self::Cache),
            MemoryKind::Kernel => Some(Self::Kernel),
        }
    }

    /// Number on the wire.
    #[must_use]
    pub fn to_wire(self) -> i32 {
        (match self {
            Self::Anon => MemoryKind::Anon,
            Self::Cache => MemoryKind::Cache,
            Self::Kernel => MemoryKind::Kernel,
        })
        .into()
    }
}

/// A set of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds([bool; 3]);

impl Kinds {
    /// Anonymous pages and page cache: the default, as in TezEdge's memory profiler.
    pub const RESIDENT: Self = Self([true, true, false]);
    /// All kinds.
    pub const ALL: Self = Self([true; 3]);

    /// A single kind.
    #[must_use]
    pub fn only(kind: Kind) -> Self {
        Self(Kind::ALL.map(|other| other == kind))
    }

    /// Whether the set contains a kind.
    #[must_use]
    pub fn has(self, kind: Kind) -> bool {
        self.0[kind.index()]
    }

    /// Sum of the entries in the set, and the page cache within it.
    #[must_use]
    pub fn sum(self, entries: &[i64; 3]) -> (i64, i64) {
        let of = |kind: Kind| if self.has(kind) { entries[kind.index()] } else { 0 };
        let cache = of(Kind::Cache);
        (of(Kind::Anon).saturating_add(cache).saturating_add(of(Kind::Kernel)), cache)
    }
}
