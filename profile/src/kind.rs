//! Kinds of memory, and choices of them.

use chainscope_proto::v1::MemoryKind;

/// A kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Anonymous pages: heap, stacks, private copies.
    Anon,
    /// Page cache that was read or written on the process's behalf.
    Cache,
    /// Of the kernel for the process: page tables, socket buffers and the like.
    Kernel,
}

impl Kind {
    /// Every kind, in the order of [`Kind::index`].
    pub const ALL: [Self; 3] = [Self::Anon, Self::Cache, Self::Kernel];

    /// Its place in arrays that have one entry a kind.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Anon => 0,
            Self::Cache => 1,
            Self::Kernel => 2,
        }
    }

    /// Its name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Anon => "anon",
            Self::Cache => "cache",
            Self::Kernel => "kernel",
        }
    }

    /// The kind that the wire means; none for one that a later version has.
    #[must_use]
    pub fn of_wire(number: i32) -> Option<Self> {
        match MemoryKind::try_from(number).ok()? {
            MemoryKind::Unspecified => None,
            MemoryKind::Anon => Some(Self::Anon),
            MemoryKind::Cache => Some(Self::Cache),
            MemoryKind::Kernel => Some(Self::Kernel),
        }
    }

    /// As the wire has it.
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

/// A choice of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds([bool; 3]);

impl Kinds {
    /// Anonymous pages and page cache: what the original showed, and what is shown if nothing is said.
    pub const RESIDENT: Self = Self([true, true, false]);
    /// Every kind.
    pub const ALL: Self = Self([true; 3]);

    /// One kind.
    #[must_use]
    pub fn only(kind: Kind) -> Self {
        Self(Kind::ALL.map(|other| other == kind))
    }

    /// Whether the kind is chosen.
    #[must_use]
    pub fn has(self, kind: Kind) -> bool {
        self.0[kind.index()]
    }

    /// The sum of the chosen entries, and the part of it that is page cache.
    #[must_use]
    pub fn sum(self, entries: &[i64; 3]) -> (i64, i64) {
        let of = |kind: Kind| if self.has(kind) { entries[kind.index()] } else { 0 };
        let cache = of(Kind::Cache);
        (of(Kind::Anon).saturating_add(cache).saturating_add(of(Kind::Kernel)), cache)
    }
}
