//! Results of the memory probe: types without behaviour.

use std::path::PathBuf;

/// Identifies a process from the start of watching to its exit; `exec` does not change it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId(pub u32);

/// Identifies a file with code, in the version that was mapped. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u32);

/// Identifies a call in the tree. Never reused; 0 is the root, which is never listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The root of all stacks.
    pub const ROOT: Self = Self(0);
}

/// Extent of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Modules, nodes and counts that are new or changed since the last reading of either scope, and all targets.
    Changed,
    /// Everything except counts of 0.
    All,
}

/// An event of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// A target forked a child, which is a target as well.
    Forked {
        /// The child.
        target: TargetId,
        /// The target that forked it.
        parent: TargetId,
        /// Process id of the child.
        pid: u32,
    },
    /// A target executed a program.
    Executed {
        /// The target, with the same id as before.
        target: TargetId,
        /// Process id.
        pid: u32,
    },
    /// The last thread of a target exited. Its pages in the page cache remain counted until they are evicted, or until the
    /// target is removed.
    Exited {
        /// The target.
        target: TargetId,
        /// Process id, which may be reused.
        pid: u32,
    },
    /// The executable mappings of a target changed.
    Mapped {
        /// The target.
        target: TargetId,
        /// Process id.
        pid: u32,
    },
}

/// A file with code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Id of the module.
    pub id: ModuleId,
    /// Path as in `/proc/<pid>/maps`, without ` (deleted)`: inside the root of the process.
    pub path: PathBuf,
    /// Major and minor number of the device, as in `maps`.
    pub device: (u32, u32),
    /// Inode, as in `maps`.
    pub inode: u64,
    /// Process that mapped the file when it was first seen.
    pub pid: u32,
    /// Address range of the mapping in that process, as in `/proc/<pid>/map_files`.
    pub range: (u64, u64),
    /// Whether the file was deleted or replaced when it was first seen.
    pub deleted: bool,
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Code in a file.
    Code {
        /// The target.
        module: ModuleId,
        /// Offset in the file (not an address) of the return address, or of the instruction itself if `exact`.
        offset: u64,
        /// Whether it is the innermost frame, or one that was interrupted by a signal. Otherwise symbols have to be looked
        /// up one byte before `offset`, as a call may be the last instruction of a function.
        exact: bool,
    },
    /// Code in no file: generated code, or the vDSO.
    Anonymous {
        /// The address.
        pc: u64,
        /// As in [`Frame::Code`].
        exact: bool,
    },
    /// Directly below the root only: the stacks of the subtree did not reach their entry point. With [`StackEnd::TreeFull`]:
    /// stacks that did not fit into the call tree.
    Incomplete(StackEnd),
}

/// A call in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Id of the node; greater than that of its parent.
    pub id: NodeId,
    /// Node of the caller.
    pub parent: NodeId,
    /// The frame.
    pub frame: Frame,
}

/// Use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Heap, stacks, private copies of file pages.
    Anonymous,
    /// Page cache, read or written or mapped.
    Cache,
    /// Page tables, socket and pipe buffers, kernel stacks and other memory of the kernel.
    Kernel,
}

impl Kind {
    /// All kinds, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Anonymous, Self::Cache, Self::Kernel];
}

/// Pages of one kind that were allocated by one stack, without those of its callees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Target that allocated them.
    pub target: TargetId,
    /// Innermost frame.
    pub node: NodeId,
    /// Use of the pages.
    pub kind: Kind,
    /// Current number of pages of 4 KiB.
    pub pages: u64,
}

/// How the unwinding of a stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackEnd {
    /// At its entry point.
    Complete,
    /// The process has just executed a program or mapped code: its unwind tables are not loaded yet.
    Loading,
    /// An address in no known mapping.
    NoMapping,
    /// Code without an unwind rule, and without a valid frame pointer.
    NoRule,
    /// A part of the stack was not in memory, or the process was exiting.
    Unreadable,
    /// Deeper than 256 frames: the outermost frames are missing.
    Truncated,
    /// Frames without a node: the call tree is full, or the target has its share of it.
    TreeFull,
    /// A kernel thread allocated for the process (io_uring).
    NoStack,
}

impl StackEnd {
    /// All ends, by their number in `enum stack_end`.
    pub const ALL: [Self; 8] = [
        Self::Complete,
        Self::Loading,
        Self::NoMapping,
        Self::NoRule,
        Self::Unreadable,
        Self::Truncated,
        Self::TreeFull,
        Self::NoStack,
    ];

    /// Stable name for metrics and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Loading => "loading",
            Self::NoMapping => "no_mapping",
            Self::NoRule => "no_rule",
            Self::Unreadable => "unreadable",
            Self::Truncated => "truncated",
            Self::TreeFull => "tree_full",
            Self::NoStack => "no_stack",
        }
    }
}

/// Resident pages of a process, of 4 KiB, as the kernel counts them (`/proc/<pid>/status`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// `RssAnon`
    pub anon: u64,
    /// `RssFile`
    pub file: u64,
    /// `RssShmem`
    pub shmem: u64,
    /// `VmSwap`
    pub swap: u64,
}

/// Kind of a mapping.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MappingKind {
    /// `[heap]`
    Heap,
    /// `[stack]`
    Stack,
    /// Anonymous memory without a name.
    Anonymous,
    /// A file.
    File(PathBuf),
    /// Any other name (`[vdso]`, `[anon: …]`).
    Other(String),
}

/// Resident pages of 4 KiB of the mappings of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingShare {
    /// The mappings.
    pub mapping: MappingKind,
    /// `Rss`
    pub resident: u64,
    /// `Anonymous`
    pub anon: u64,
}

/// A target at the moment of the reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetReading {
    /// The target.
    pub target: TargetId,
    /// The target that forked it.
    pub parent: Option<TargetId>,
    /// Process id.
    pub pid: u32,
    /// Start of the process in clock ticks since boot: field 22 of `/proc/<pid>/stat`.
    pub start_time: u64,
    /// Whether the process is running.
    pub alive: bool,
    /// Count of the kernel, as a control of the attribution; 0 after the exit. Pages shared after a fork are counted for
    /// both processes.
    pub control: Resident,
    /// Attributed pages, in the order of [`Kind::ALL`].
    pub attributed: [u64; 3],
    /// Pages that were resident before the process was watched and still are; frees show within seconds.
    pub before_attach: Resident,
    /// Resident pages by mapping at the moment of attach.
    pub at_attach: Vec<MappingShare>,
    /// Anonymous pages of [`Self::before_attach`] by mapping. `None` if pfns are unknown (without `CAP_SYS_ADMIN`, or for a
    /// process that shared pages at attach): then they are the part of the kernel's count that is not attributed.
    pub before_exact: Option<Vec<(MappingKind, u64)>>,
    /// Whether the process shares pages with a forked copy of itself that has not executed another program: the control
    /// counts such a page for each process, the attribution once, for the process that allocated it. Over all of them, the
    /// sum of `Pss_Anon` equals the sum of attributed pages and pages from before attach.
    pub shares_pages: bool,
    /// Number of stacks since the process is watched, by how their unwinding ended; without zeros.
    pub stacks: Vec<(StackEnd, u64)>,
}

impl TargetReading {
    /// Anonymous pages of the control that are neither attributed nor from before attach; negative if those are more than the
    /// control. 0 for a process that has exited or shares pages, as the control is no total of its pages then.
    #[must_use]
    pub fn unattributed(&self) -> i64 {
        if !self.alive || self.shares_pages {
            return 0;
        }
        let [anon, ..] = self.attributed;
        let signed = |pages: u64| i64::try_from(pages).unwrap_or(i64::MAX);
        signed(self.control.anon) - signed(anon.saturating_add(self.before_attach.anon))
    }
}

/// State of the probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Losses by reason, without zeros.
    pub lost: Vec<(&'static str, u64)>,
    /// Nodes in use in the call tree of the kernel.
    pub nodes_used: u32,
    /// Capacity of the call tree in nodes.
    pub nodes_max: u32,
    /// Rows of unwind tables in the kernel; 12 bytes each, at most 48 Mi of them.
    pub rules: u64,
    /// Pages that the kernel migrated or collapsed, with their owner.
    pub moved: u64,
    /// Stacks that were unwound.
    pub stacks: u64,
    /// Frames of these stacks, and those of them that were unwound; the others were unchanged since the last stack of the
    /// thread.
    pub frames: u64,
    /// See [`Health::frames`].
    pub fresh_frames: u64,
    /// Frames whose rule was not in the cache.
    pub rule_misses: u64,
    /// Verification: stacks that were unwound twice, and those that differed.
    pub checked: u64,
    /// See [`Health::checked`].
    pub mismatches: u64,
    /// Files whose unwind table could not be built, with the reason.
    pub refused: Vec<(PathBuf, String)>,
}

/// A reading of the probe.
#[derive(Clone, Debug)]
pub struct Reading {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub at_ns: u64,
    /// Files; see [`Scope`].
    pub modules: Vec<Module>,
    /// Calls, a parent before its children; see [`Scope`].
    pub nodes: Vec<Node>,
    /// Calls of earlier readings that hold no pages any more.
    pub removed_nodes: Vec<NodeId>,
    /// Files of earlier readings that no process maps any more, and no call is in.
    pub removed_modules: Vec<ModuleId>,
    /// Counters; see [`Scope`].
    pub counts: Vec<Count>,
    /// All watched targets.
    pub targets: Vec<TargetReading>,
    /// State of the probe.
    pub health: Health,
}
