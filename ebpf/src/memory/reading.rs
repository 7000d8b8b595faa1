//! What the memory probe says: types without behaviour.

use std::path::PathBuf;

/// One process, from when it is watched to its end; an `exec` does not change it. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId(pub u32);

/// A file with code, as it was when it was mapped. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u32);

/// A call in the tree. Dense; 0 is the root, which is never listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Where all stacks begin.
    pub const ROOT: Self = Self(0);
}

/// What is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Modules, nodes and counts that are new or changed since the last reading of either scope; targets always all.
    Changed,
    /// Everything; counts that are not 0.
    All,
}

/// What happened to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// A target's child is a target too.
    Forked {
        /// The child.
        target: TargetId,
        /// Who forked it.
        parent: TargetId,
        /// The child's process id.
        pid: u32,
    },
    /// It executes another program.
    Executed {
        /// The same as before.
        target: TargetId,
        /// Its process id.
        pid: u32,
    },
    /// Its last thread ended. Its pages in the page cache stay counted until they leave it, or it is forgotten.
    Exited {
        /// Which.
        target: TargetId,
        /// Its process id, which may be somebody else's soon.
        pid: u32,
    },
    /// It maps other files with code than before.
    Mapped {
        /// Which.
        target: TargetId,
        /// Its process id.
        pid: u32,
    },
}

/// A file with code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its number.
    pub id: ModuleId,
    /// As in `/proc/<pid>/maps`, without ` (deleted)`: inside the process's own root.
    pub path: PathBuf,
    /// Major and minor number of the device, as in `maps`.
    pub device: (u32, u32),
    /// As in `maps`.
    pub inode: u64,
    /// A process that mapped it when it was first seen.
    pub pid: u32,
    /// An address range in that process, as `/proc/<pid>/map_files` names it.
    pub range: (u64, u64),
    /// Whether it was deleted or replaced when it was first seen.
    pub deleted: bool,
}

/// Code in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// In a file.
    Code {
        /// Which.
        module: ModuleId,
        /// In the file (not an address): of the return address, or of the instruction itself if `exact`.
        offset: u64,
        /// The innermost frame, or one that was interrupted by a signal. Otherwise symbols are to be looked up one byte
        /// before `offset`: a call may be a function's last instruction.
        exact: bool,
    },
    /// In no file: generated code, or the kernel's vDSO.
    Anonymous {
        /// The address.
        pc: u64,
        /// As in [`Frame::Code`].
        exact: bool,
    },
    /// Only directly below the root: the stacks in its subtree did not reach their entry point.
    Incomplete(StackEnd),
}

/// A call in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number; greater than its parent's.
    pub id: NodeId,
    /// The caller.
    pub parent: NodeId,
    /// The code.
    pub frame: Frame,
}

/// What a page is used for.
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
    /// In the order of counters.
    pub const ALL: [Self; 3] = [Self::Anonymous, Self::Cache, Self::Kernel];
}

/// Pages of one kind that were allocated in one place. Its callees' pages are not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// By whom.
    pub target: TargetId,
    /// Where: the innermost frame.
    pub node: NodeId,
    /// What for.
    pub kind: Kind,
    /// How many there are now, of 4 KiB.
    pub pages: u64,
}

/// How the unwinding of a stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackEnd {
    /// At its entry point.
    Complete,
    /// The process has just begun (exec) or mapped a file with code: its tables are being made.
    Loading,
    /// An address in no mapping that is known.
    NoMapping,
    /// Code without a rule, and no frame pointer to follow instead.
    NoRule,
    /// A part of the stack was not in memory, or the process was ending.
    Unreadable,
    /// Deeper than 256 frames: the innermost ones are there.
    Cut,
    /// The call tree is full.
    TreeFull,
    /// A thread of the kernel worked for the process (io_uring).
    NoStack,
}

impl StackEnd {
    /// By number of the kernel's side.
    pub const ALL: [Self; 8] = [
        Self::Complete,
        Self::Loading,
        Self::NoMapping,
        Self::NoRule,
        Self::Unreadable,
        Self::Cut,
        Self::TreeFull,
        Self::NoStack,
    ];

    /// For metrics and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Loading => "loading",
            Self::NoMapping => "no_mapping",
            Self::NoRule => "no_rule",
            Self::Unreadable => "unreadable",
            Self::Cut => "cut",
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

/// What a mapping is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MappingKind {
    /// `[heap]`
    Heap,
    /// `[stack]`
    Stack,
    /// Without a name.
    Anonymous,
    /// Of a file.
    File(PathBuf),
    /// Anything else that has a name (`[vdso]`, `[anon: …]`).
    Other(String),
}

/// What was resident in the mappings of one kind, in pages of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingShare {
    /// Which mappings.
    pub mapping: MappingKind,
    /// `Rss`
    pub resident: u64,
    /// `Anonymous`
    pub anon: u64,
}

/// One target at the moment of the reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetReading {
    /// Which.
    pub target: TargetId,
    /// The target that forked it.
    pub parent: Option<TargetId>,
    /// Its process id.
    pub pid: u32,
    /// When the process began: field 22 of `/proc/<pid>/stat`, in clock ticks since boot.
    pub start_time: u64,
    /// Whether it still runs.
    pub alive: bool,
    /// What the kernel counts; zeros when it is gone. Pages shared after a fork are in both processes' numbers.
    pub control: Resident,
    /// Pages attributed, in the order of [`Kind::ALL`].
    pub attributed: [u64; 3],
    /// What was resident before it was watched and still is; shrinks within seconds of being freed.
    pub before_attach: Resident,
    /// How that was distributed at the moment of attach.
    pub at_attach: Vec<MappingShare>,
    /// The anonymous part of [`Self::before_attach`] by mapping, as it is now. `None` where frames cannot be told (without
    /// `CAP_SYS_ADMIN`, or of a process that shared pages then): it is what the kernel counts and nobody allocated.
    pub before_exact: Option<Vec<(MappingKind, u64)>>,
    /// Whether it shares pages with a copy of itself that a fork made and that has not executed another program: the
    /// control counts such a page in each, the attribution once, in the process that allocated it. Over all of them,
    /// the sums of `Pss_Anon` and of what is attributed and from before agree.
    pub shares_pages: bool,
    /// Stacks since it is watched, by how their unwinding ended; those that are not 0.
    pub stacks: Vec<(StackEnd, u64)>,
}

impl TargetReading {
    /// Anonymous pages of the control that are neither attributed nor from before; below 0 if more are than the control
    /// has. 0 of a process that is gone or shares pages: the control is no total of its pages then.
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

/// How the probe itself is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What was lost, by reason; only what is not 0.
    pub lost: Vec<(&'static str, u64)>,
    /// Nodes of the kernel's call tree in use.
    pub nodes_used: u32,
    /// Nodes that it has room for.
    pub nodes_room: u32,
    /// Rows of unwind tables in the kernel; 12 bytes each, at most 48 Mi of them.
    pub rules: u64,
    /// Pages whose owner was carried along when the kernel moved them.
    pub moved: u64,
    /// Stacks that were taken.
    pub stacks: u64,
    /// Their frames, and those of them that were unwound anew: the others were unchanged since the thread's last stack.
    pub frames: u64,
    /// See [`Health::frames`].
    pub fresh_frames: u64,
    /// Frames whose rule was searched for in the tables.
    pub rule_misses: u64,
    /// Soundness check: stacks that were unwound twice, and those that differed.
    pub checked: u64,
    /// See [`Health::checked`].
    pub mismatches: u64,
    /// Files whose unwind table could not be made, and why.
    pub refused: Vec<(PathBuf, String)>,
}

/// All of it at one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub at_ns: u64,
    /// Files; see [`Scope`].
    pub modules: Vec<Module>,
    /// Calls, a parent before its children; see [`Scope`].
    pub nodes: Vec<Node>,
    /// Counters; see [`Scope`].
    pub counts: Vec<Count>,
    /// All targets that are not forgotten.
    pub targets: Vec<TargetReading>,
    /// How the probe is.
    pub health: Health,
}
