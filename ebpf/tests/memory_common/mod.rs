//! Shared support of the memory probe's tests: programs compiled at the start of a test and controlled line by line,
//! and the kernel's counters of their memory.
//!
//! The tests need root. Without it they fail with the probe's error.
#![allow(dead_code, missing_docs, unreachable_pub, unsafe_code, reason = "each test binary uses a part of it")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use chainscope_ebpf::memory::{
    Frame, Kind, MappingKind, MemoryEvent, MemoryOptions, MemoryProbe, Module, ModuleId, Node, NodeId, Reading, Scope,
    StackEnd, TargetId, TargetReading,
};

/// Compiles a program of `memory_common/programs` to the file `name`.
pub fn compile(compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory_common/programs").join(source);
    chainscope_testing::program::compile(compiler, &source, Path::new(env!("CARGO_TARGET_TMPDIR")), name, flags)
}

/// A child process that reads commands from standard input.
pub struct TestProcess {
    path: PathBuf,
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl TestProcess {
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: prctl is async-signal-safe. It kills the process if the test panics.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().expect("the program starts");
        let commands = child.stdin.take().expect("piped");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        Self { path: program.to_owned(), child, commands, replies }
    }

    /// Starts `memory_workload.c` and waits for its first reply.
    pub fn memory_workload() -> Self {
        let mut workload =
            Self::start(&chainscope_testing::program::memory_workload(Path::new(env!("CARGO_TARGET_TMPDIR"))), &[]);
        assert_eq!(workload.call("ready"), 0);
        workload
    }

    /// Path of the executable file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn send_command(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the program runs");
        self.commands.flush().expect("the program runs");
    }

    pub fn read_reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the program replies");
        assert!(!line.is_empty(), "the program has ended");
        line.trim().to_owned()
    }

    /// Polls the probe, then returns whether the process has replied.
    pub fn try_read_reply(&mut self, probe: &mut MemoryProbe) -> bool {
        use std::os::fd::AsFd;
        probe.poll(Duration::from_millis(10)).expect("a successful poll");
        let mut ready =
            [rustix::event::PollFd::from_borrowed_fd(self.replies.get_ref().as_fd(), rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let replied = rustix::event::poll(&mut ready, Some(&now)).expect("a pipe") > 0;
        if replied {
            self.read_reply();
        }
        replied
    }

    pub fn call(&mut self, command: &str) -> i64 {
        self.send_command(command);
        self.read_reply().parse().expect("a number")
    }

    /// Closes standard input and waits for a successful exit.
    pub fn finish(mut self) {
        drop(self.commands);
        assert!(self.child.wait().expect("an exit status").success());
    }
}

/// A field of `smaps_rollup`, in pages.
pub fn rollup(pid: u32, name: &str) -> u64 {
    pages_in(&format!("/proc/{pid}/smaps_rollup"), name)
}

/// Pages of a process's page tables (`VmPTE`).
pub fn page_tables(pid: u32) -> u64 {
    pages_in(&format!("/proc/{pid}/status"), "VmPTE")
}

/// A field in KiB of a file in `/proc`, in pages.
fn pages_in(path: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("such a line");
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    kib / 4
}

/// Lets `memory_workload.c` hold an area of huge pages. While no contiguous memory is free, the kernel gives small ones.
#[track_caller]
pub fn hold_huge_pages(workload: &mut TestProcess, area: u32, pages: u64) {
    chainscope_testing::wait::until_true("the kernel to give huge pages", || {
        workload.call(&format!("huge {area} {pages}"));
        let is_huge = rollup(workload.pid(), "AnonHugePages") >= pages;
        if !is_huge {
            workload.call(&format!("unmap {area}"));
        }
        is_huge
    });
}

/// Polls until the pages of a reading, as `sum` adds them up, equal the kernel's count of anonymous pages. The count
/// lags because pages isolated for migration or held in per-CPU batches are freed late.
#[track_caller]
pub fn wait_until_counted(probe: &mut MemoryProbe, pid: u32, sum: impl Fn(&Snapshot) -> u64) -> Snapshot {
    let mut snapshot = Snapshot::take(probe);
    let is_counted = chainscope_testing::wait::holds_within_timeout(|| {
        snapshot = Snapshot::take(probe);
        let is_counted = sum(&snapshot) == rollup(pid, "Anonymous");
        if !is_counted {
            chainscope_testing::flush_page_lists();
        }
        is_counted
    });
    let (shown, control) = (sum(&snapshot), rollup(pid, "Anonymous"));
    assert!(
        is_counted,
        "{shown} pages instead of {control}: {:?}, {:?}",
        snapshot.reading.targets, snapshot.reading.health
    );
    snapshot
}

/// Polls until pages were freed: those in per-CPU batches are freed late.
#[track_caller]
pub fn wait_until_freed(probe: &mut MemoryProbe, what: &str, are_freed: impl Fn(&Snapshot) -> bool) {
    chainscope_testing::wait::until_true(what, || {
        chainscope_testing::flush_page_lists();
        are_freed(&Snapshot::take(probe))
    });
}

/// A reading indexed by node and module.
pub struct Snapshot {
    pub reading: Reading,
    nodes: HashMap<NodeId, Node>,
    modules: HashMap<ModuleId, Module>,
}

impl Snapshot {
    pub fn new(reading: Reading) -> Self {
        let nodes = reading.nodes.iter().map(|node| (node.id, *node)).collect();
        let modules = reading.modules.iter().map(|module| (module.id, module.clone())).collect();
        Self { reading, nodes, modules }
    }

    pub fn take(probe: &mut MemoryProbe) -> Self {
        drain(probe);
        Self::new(probe.read(Scope::All).expect("a reading"))
    }

    pub fn target(&self, target: TargetId) -> &TargetReading {
        self.reading.targets.iter().find(|reading| reading.target == target).expect("a target")
    }

    /// Anonymous pages of a target that are attributed or were resident before the attach.
    pub fn accounted_anon(&self, target: TargetId) -> u64 {
        let reading = self.target(target);
        reading.attributed[0] + reading.before_attach.anon
    }

    pub fn anon(&self, target: TargetId) -> u64 {
        self.target(target).attributed[0]
    }

    /// The frames of a stack, innermost first.
    pub fn stack(&self, mut node: NodeId) -> Vec<Frame> {
        let mut frames = Vec::new();
        while node != NodeId::ROOT {
            let found = self.nodes.get(&node).expect("parents are there");
            assert!(found.parent < found.id);
            frames.push(found.frame);
            node = found.parent;
        }
        frames
    }

    /// Pages attributed to stacks that contain a function of a program.
    pub fn pages_in_function(&self, target: TargetId, kind: Kind, program: &Path, function: &str) -> u64 {
        let range = symbol(program, function);
        let passes = |frame: &Frame| match frame {
            Frame::Code { module, offset, exact } => {
                self.modules[module].path == program && range.contains(&(offset - u64::from(!exact)))
            }
            _ => false,
        };
        let counts = self.reading.counts.iter().filter(|count| count.target == target && count.kind == kind);
        counts.filter(|count| self.stack(count.node).iter().any(passes)).map(|count| count.pages).sum()
    }

    /// Numbers of all stacks of a target and of those that reached their entry point.
    pub fn stack_totals(&self, target: TargetId) -> (u64, u64) {
        let stacks = &self.target(target).stacks;
        let complete = stacks.iter().find(|(end, _)| *end == StackEnd::Complete).map_or(0, |(_, count)| *count);
        (stacks.iter().map(|(_, count)| count).sum(), complete)
    }
}

/// Checks that attributed pages and pages resident before the attach add up to the kernel's count of anonymous pages.
#[track_caller]
pub fn assert_exact(probe: &mut MemoryProbe, target: TargetId, workload: &TestProcess) -> Snapshot {
    let snapshot = wait_until_counted(probe, workload.pid(), |snapshot| {
        let is_explained = snapshot.target(target).unattributed() == 0;
        if is_explained { snapshot.accounted_anon(target) } else { 0 }
    });
    let reading = snapshot.target(target);
    assert_eq!(snapshot.reading.health.mismatches, 0, "{:?}", snapshot.reading.health);
    let (all, complete) = snapshot.stack_totals(target);
    assert_eq!(all, complete, "{:?}", reading.stacks);
    snapshot
}

#[track_caller]
pub fn assert_gone(probe: &mut MemoryProbe, target: TargetId) {
    wait_until_freed(probe, "all pages to be released", |snapshot| {
        let reading = snapshot.target(target);
        // Some kernel pages remain: the dentry and inode caches outlive the process.
        !reading.alive && reading.attributed[0] == 0 && reading.attributed[2] < 64
    });
}

/// Allows one extra page, for the function's stack.
#[track_caller]
pub fn assert_near(held: u64, expected: u64) {
    assert!((expected..=expected + 1).contains(&held), "{held} pages instead of {expected}");
}

/// Pages in mappings of a kind that were resident before the attach and still are.
#[track_caller]
pub fn in_mapping(snapshot: &Snapshot, target: TargetId, mapping: &MappingKind) -> u64 {
    let exact = snapshot.target(target).before_exact.as_ref().expect("page by page");
    exact.iter().find(|(kind, _)| kind == mapping).map_or(0, |(_, pages)| *pages)
}

/// File offsets of a function.
fn symbol(program: &Path, function: &str) -> std::ops::Range<u64> {
    let output = Command::new("readelf").args(["-sW"]).arg(program).output().expect("binutils");
    let text = String::from_utf8(output.stdout).expect("text");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let line = text.lines().map(words).find(|words| words.get(7).is_some_and(|name| name == function));
    let line = line.unwrap_or_else(|| panic!("no function {function}"));
    let address = u64::from_str_radix(&line[1], 16).expect("an address");
    let size: u64 = line[2].parse().expect("a size");
    let elf = std::fs::read(program).expect("the program");
    let elf = chainscope_unwind::ElfSegments::read(elf.as_slice()).expect("an ELF file");
    let segment = elf.as_slice().iter().find(|s| address >= s.address && address < s.address + s.size);
    let segment = segment.expect("a segment");
    let offset = address - segment.address + segment.offset;
    offset..offset + size
}

/// Polls the probe until no event is left.
pub fn drain(probe: &mut MemoryProbe) -> Vec<MemoryEvent> {
    let mut events = Vec::new();
    loop {
        let more = probe.poll(Duration::ZERO).expect("a successful poll");
        if more.is_empty() {
            return events;
        }
        events.extend(more);
    }
}

pub fn probe() -> MemoryProbe {
    MemoryProbe::load(&MemoryOptions { verify_stacks: true, ..MemoryOptions::default() })
        .expect("root, and a kernel with BTF")
}

/// Writes a file back and drops its pages from the page cache.
pub fn drop_from_cache(path: &Path) {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path).expect("it is there");
    file.sync_all().expect("it is written");
    // A page that the kernel holds at this moment, to reclaim or to migrate it, stays until the next try.
    chainscope_testing::wait::until_true("the cache to drop a file that no process maps", || {
        // SAFETY: a plain system call on an open file.
        let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(result, 0);
        in_cache(path) == 0
    });
}

/// Number of a file's pages in the page cache.
pub fn in_cache(path: &Path) -> u64 {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path).expect("it is there");
    let length = usize::try_from(file.metadata().expect("it is open").len()).expect("small");
    let mut resident = vec![0_u8; length.div_ceil(4096)];
    // SAFETY: the mapping is new and not accessed; `resident` has one byte for each page.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::mincore(start, length, resident.as_mut_ptr()), 0);
        libc::munmap(start, length);
    }
    resident.iter().map(|page| u64::from(page & 1)).sum()
}

/// Number of pages that the kernel has migrated since boot (`pgmigrate_success`).
pub fn moved_by_kernel() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").expect("it can be read");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("pgmigrate_success "));
    lines.next().expect("a kernel that compacts").parse().expect("a number")
}
