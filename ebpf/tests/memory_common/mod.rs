//! What the tests of the memory probe share: programs compiled when a test begins, told line by line what to do with
//! their memory, and what the kernel says about it.
//!
//! The tests need root: a missing privilege makes them fail, by the probe's own error.
#![allow(dead_code, missing_docs, unreachable_pub, unsafe_code)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use chainscope_ebpf::memory::{
    Frame, Kind, MemoryEvent, MemoryOptions, MemoryProbe, Module, ModuleId, Node, NodeId, Reading, Scope, StackEnd,
    TargetId, TargetReading,
};

/// Compiles a program of `memory_common/programs`; once for each name.
pub fn compile(compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory_common/programs").join(source);
    chainscope_testing::program::compile(compiler, &source, Path::new(env!("CARGO_TARGET_TMPDIR")), name, flags)
}

/// A program that waits for orders.
pub struct TestProcess {
    path: PathBuf,
    child: Child,
    orders: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl TestProcess {
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: prctl is async-signal-safe. A test that panics must not leave its program behind.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().expect("the program starts");
        let orders = child.stdin.take().expect("piped");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        Self { path: program.to_owned(), child, orders, replies }
    }

    /// The program `workload`, after its first snapshot.
    pub fn memory_workload() -> Self {
        let mut workload =
            Self::start(&chainscope_testing::program::memory_workload(Path::new(env!("CARGO_TARGET_TMPDIR"))), &[]);
        assert_eq!(workload.call("ready"), 0);
        workload
    }

    /// The file that it executes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn send_command(&mut self, command: &str) {
        writeln!(self.orders, "{order}").expect("the program lives");
        self.orders.flush().expect("the program lives");
    }

    pub fn read_reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the program replies");
        assert!(!line.is_empty(), "the program has ended");
        line.trim().to_owned()
    }

    /// Whether it has replied, after having taken in what has happened meanwhile.
    pub fn try_read_reply(&mut self, probe: &mut MemoryProbe) -> bool {
        use std::os::fd::AsFd;
        probe.poll(Duration::from_millis(10)).expect("it is polled");
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
        self.send_command(order);
        self.read_reply().parse().expect("a number")
    }

    /// Lets it end by itself.
    pub fn finish(mut self) {
        drop(self.orders);
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// A number of `smaps_rollup`, in pages.
pub fn rollup(pid: u32, name: &str) -> u64 {
    pages_in(&format!("/proc/{pid}/smaps_rollup"), name)
}

/// Pages of a process's page tables, as the kernel counts them.
pub fn page_tables(pid: u32) -> u64 {
    pages_in(&format!("/proc/{pid}/status"), "VmPTE")
}

/// A number of kibibytes in a file of a live process, in pages.
fn pages_in(path: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).expect("the process lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("such a line");
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    kib / 4
}

/// Waits until the pages of a reading, as `sum` adds them up, are as many as the kernel counts. Not always at once: a page
/// that the kernel is about to move, or to put on one of its lists, is freed when it has.
#[track_caller]
pub fn wait_until_counted(probe: &mut MemoryProbe, pid: u32, sum: impl Fn(&Snapshot) -> u64) -> Snapshot {
    let mut snapshot = Snapshot::take(probe);
    let is_counted = chainscope_testing::wait::until_or(|| {
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

/// A reading put together for questions.
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

    /// Anonymous pages of a target: attributed, or there before.
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

    /// Pages of the stacks that pass through a function of a program.
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

    /// Stacks of a target, and those of them that reached their entry point.
    pub fn stack_totals(&self, target: TargetId) -> (u64, u64) {
        let stacks = &self.target(target).stacks;
        let complete = stacks.iter().find(|(end, _)| *end == StackEnd::Complete).map_or(0, |(_, count)| *count);
        (stacks.iter().map(|(_, count)| count).sum(), complete)
    }
}

/// Where in the file a function is.
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

/// Takes in what has happened.
pub fn drain(probe: &mut MemoryProbe) -> Vec<MemoryEvent> {
    let mut events = Vec::new();
    loop {
        let more = probe.poll(Duration::ZERO).expect("it is polled");
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

/// Writes a file out and forgets its pages.
pub fn drop_from_cache(path: &Path) {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path).expect("it is there");
    file.sync_all().expect("it is written");
    // SAFETY: a plain system call on an open file.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(result, 0);
    assert_eq!(in_cache(path), 0, "nobody else uses it");
}

/// Pages of a file that are in the page cache.
pub fn in_cache(path: &Path) -> u64 {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path).expect("it is there");
    let length = usize::try_from(file.metadata().expect("it is open").len()).expect("small");
    let mut resident = vec![0_u8; length.div_ceil(4096)];
    // SAFETY: a new mapping of the file, which is not touched, with room for a byte a page.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::mincore(start, length, resident.as_mut_ptr()), 0);
        libc::munmap(start, length);
    }
    resident.iter().map(|page| u64::from(page & 1)).sum()
}

/// Pages that the kernel has moved since it started.
pub fn moved_by_kernel() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").expect("it can be read");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("pgmigrate_success "));
    lines.next().expect("a kernel that compacts").parse().expect("a number")
}
