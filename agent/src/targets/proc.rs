//! Reading `/proc`. A process may exit at any moment: then the functions return nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    net::SocketAddr,
    os::unix::{ffi::OsStringExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use procfs::{
    ProcResult,
    net::{TcpNetEntry, TcpState},
    process::{FDTarget, Process},
};

use super::{ContainerId, ContainerLocation, ProcessFacts, entry_match::owner};

/// Descriptors that are read of a process, those with the lowest numbers. Nodes have some hundreds; a process may have a
/// million, and discovery would wait for each of its executions.
const MAX_DESCRIPTORS: usize = 16_384;
/// Bytes of a command line that are read for its first argument.
const MAX_ARGUMENT: u64 = 4096;
/// Bytes of a command line or an environment that are read: a process can make both as long as it wants.
pub(crate) const MAX_STRINGS: u64 = 1 << 20;

/// A socket of a network namespace, from `/proc/<pid>/net/tcp` and `tcp6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) inode: u64,
    pub(crate) local: SocketAddr,
    pub(crate) is_listening: bool,
}

/// Returns the first argument of a process in a container; empty if it cannot be read.
pub(crate) type ReadArgument<'a> = dyn Fn(u32, &ContainerLocation) -> String + 'a;

/// The host's `/proc`. All process ids are those of its pid namespace.
#[derive(Debug, Clone)]
pub(crate) struct Proc(Arc<Path>);

impl Default for Proc {
    fn default() -> Self {
        Self::at(Path::new("/proc"))
    }
}

impl Proc {
    pub(crate) fn at(root: &Path) -> Self {
        Self(root.into())
    }

    /// Where it is mounted.
    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// A file of a process.
    pub(crate) fn path(&self, pid: u32, file: &str) -> PathBuf {
        self.0.join(pid.to_string()).join(file)
    }

    pub(crate) fn open(&self, pid: u32) -> Option<Process> {
        // The number first: the crate accepts any directory.
        i32::try_from(pid).ok()?;
        Process::new_with_root(self.0.join(pid.to_string())).ok()
    }

    /// The TCP sockets of the namespace that the process is in.
    pub(crate) fn sockets(&self, pid: u32) -> Vec<Socket> {
        let Some(process) = self.open(pid) else { return Vec::new() };
        tcp_entries(&process)
            .into_iter()
            .map(|entry| Socket {
                inode: entry.inode,
                local: entry.local_address,
                is_listening: entry.state == TcpState::Listen,
            })
            .collect()
    }

    /// Everything about one process; none if it is gone, or a zombie. `argument` reads its first argument, which may wait
    /// for the process; it is called for processes in containers only.
    pub(crate) fn facts(&self, pid: u32, argument: &ReadArgument<'_>) -> Option<ProcessFacts> {
        let process = self.open(pid)?;
        let mut facts = self.brief(&process, argument)?;
        let held: BTreeSet<u64> = socket_inodes(&process, MAX_DESCRIPTORS).unwrap_or_default().into_iter().collect();
        if !held.is_empty() {
            facts.listens = tcp_entries(&process)
                .iter()
                .filter(|entry| entry.state == TcpState::Listen && held.contains(&entry.inode))
                .map(|entry| entry.local_address)
                .collect();
        }
        Some(facts)
    }

    /// Everything but the listening sockets.
    fn brief(&self, process: &Process, argument: &ReadArgument<'_>) -> Option<ProcessFacts> {
        let pid = u32::try_from(process.pid()).ok()?;
        let stat = process.stat().ok()?;
        // A kernel thread or a zombie has none.
        let exe = without_deleted(process.exe().ok()?);
        let cgroup = fs::read_to_string(self.path(pid, "cgroup")).unwrap_or_default();
        let location = ContainerLocation::from_cgroup(&cgroup);
        let argument = location.as_ref().map(|location| argument(pid, location)).unwrap_or_default();
        Some(ProcessFacts {
            pid,
            start: stat.starttime,
            exe,
            netns: self.netns_of(pid)?,
            container: ContainerId::from_cgroup(&cgroup),
            location,
            parent: u32::try_from(stat.ppid).unwrap_or(0),
            argument,
            listens: BTreeSet::new(),
        })
    }

    /// The first argument without its directory. Reads the memory of the process, which may never return.
    pub(crate) fn argument(&self, pid: u32) -> String {
        let file = fs::File::open(self.path(pid, "cmdline"));
        let bytes = file.map(|file| read_at_most(file, MAX_ARGUMENT)).unwrap_or_default();
        let first = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = first.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    fn netns_of(&self, pid: u32) -> Option<u32> {
        netns_inode(&self.path(pid, "ns/net"))
    }

    /// Clock ticks from boot to the start of a process; none if it is gone.
    pub(crate) fn start_of(&self, pid: u32) -> Option<u64> {
        Some(self.open(pid)?.stat().ok()?.starttime)
    }

    /// The processes that descend from one and run now; parents before their children.
    pub(crate) fn descendants(&self, pid: u32) -> Vec<u32> {
        let mut children: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
        for stat in self.processes().filter_map(|process| process.stat().ok()) {
            children.entry(stat.ppid).or_default().extend(u32::try_from(stat.pid));
        }
        let mut found = vec![pid];
        let mut next = 0;
        while let Some(parent) = found.get(next).and_then(|parent| i32::try_from(*parent).ok()) {
            // Each once: a process id may have been reused while this was read.
            found.extend(children.remove(&parent).into_iter().flatten());
            next += 1;
        }
        found.split_off(1)
    }

    fn processes(&self) -> impl Iterator<Item = Process> {
        let all = fs::read_dir(&*self.0).into_iter().flatten().flatten();
        all.filter_map(|entry| self.open(entry.file_name().to_str()?.parse().ok()?))
    }

    /// Every process, with its listening sockets on `ports`, unless another process is the one that serves them. Descriptors are
    /// read only where a namespace has such a listening socket.
    pub(crate) fn scan(&self, ports: &BTreeSet<u16>, argument: &ReadArgument<'_>) -> Vec<ProcessFacts> {
        let mut processes = Vec::new();
        for process in self.processes() {
            if let Some(facts) = self.brief(&process, argument) {
                // The process is a descriptor: it is kept open only if ports have to be read.
                processes.push(((!ports.is_empty()).then_some(process), facts));
            }
        }
        let mut listening: BTreeMap<u32, BTreeMap<u64, SocketAddr>> = BTreeMap::new();
        for (process, facts) in &processes {
            let Some(process) = process else { continue };
            listening.entry(facts.netns).or_insert_with(|| {
                let entries = tcp_entries(process).into_iter();
                entries
                    .filter(|entry| entry.state == TcpState::Listen && ports.contains(&entry.local_address.port()))
                    .map(|entry| (entry.inode, entry.local_address))
                    .collect()
            });
        }
        let mut holders: BTreeMap<u64, Vec<(u32, u64)>> = BTreeMap::new();
        for (process, facts) in &processes {
            let Some(process) = process else { continue };
            let Some(inodes) = listening.get(&facts.netns).filter(|inodes| !inodes.is_empty()) else { continue };
            for inode in socket_inodes(process, MAX_DESCRIPTORS).unwrap_or_default() {
                if inodes.contains_key(&inode) {
                    holders.entry(inode).or_default().push((facts.pid, facts.start));
                }
            }
        }
        let owners: BTreeMap<u64, u32> =
            holders.iter().filter_map(|(inode, holders)| Some((*inode, owner(holders)?))).collect();
        let mut found: Vec<ProcessFacts> = processes.into_iter().map(|(_, facts)| facts).collect();
        for facts in &mut found {
            let Some(inodes) = listening.get(&facts.netns) else { continue };
            facts.listens = inodes
                .iter()
                .filter(|(inode, _)| owners.get(inode) == Some(&facts.pid))
                .map(|(_, local)| *local)
                .collect();
        }
        // The agent's own namespace first, then the oldest: names of nodes do not depend on the order of /proc.
        let own = netns_inode(&self.0.join("self/ns/net"));
        found.sort_by_key(|facts| (Some(facts.netns) != own, facts.start, facts.pid));
        found
    }
}

/// The strings in `cmdline` or `environ` of a process, of [`MAX_STRINGS`] bytes at most. Reads the memory of the process,
/// which may never return.
pub(crate) fn strings(process: &Process, file: &str) -> Vec<Vec<u8>> {
    process.open_relative(file).map(whole_strings).unwrap_or_default()
}

/// The strings, each with a NUL at its end, without one that is cut at the limit.
fn whole_strings(file: impl Read) -> Vec<Vec<u8>> {
    let mut bytes = read_at_most(file, MAX_STRINGS);
    if bytes.len() as u64 == MAX_STRINGS {
        let end = bytes.iter().rposition(|byte| *byte == 0).unwrap_or(0);
        bytes.truncate(end);
    }
    bytes.split(|byte| *byte == 0).filter(|string| !string.is_empty()).map(<[u8]>::to_vec).collect()
}

/// The beginning of a file; what was read before an error.
fn read_at_most(file: impl Read, bytes: u64) -> Vec<u8> {
    let mut content = Vec::new();
    let _ = file.take(bytes).read_to_end(&mut content);
    content
}

/// Either table may be missing: a kernel without IPv6.
fn tcp_entries(process: &Process) -> Vec<TcpNetEntry> {
    let mut entries = process.tcp().unwrap_or_default();
    entries.extend(process.tcp6().unwrap_or_default());
    entries
}

/// Removes the suffix that the kernel appends to the path of a deleted or replaced executable.
fn without_deleted(exe: PathBuf) -> PathBuf {
    let bytes = exe.into_os_string().into_vec();
    let path = bytes.strip_suffix(b" (deleted)").map(<[u8]>::to_vec).unwrap_or(bytes);
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

/// Inode of the namespace behind `/run/netns/<name>` or `/proc/<pid>/ns/net`.
pub(crate) fn netns_inode(path: &Path) -> Option<u32> {
    u32::try_from(fs::metadata(path).ok()?.ino()).ok()
}

/// The sockets among the first `max` descriptors, in the order of their numbers.
fn socket_inodes(process: &Process, max: usize) -> ProcResult<Vec<u64>> {
    Ok(process
        .fd()?
        .take(max)
        .flatten()
        .filter_map(|fd| match fd.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn this_process_is_found_by_its_listening_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let proc = Proc::default();
        let me = std::process::id();
        let found: Vec<ProcessFacts> = proc
            .scan(&BTreeSet::from([port]), &|_, _| String::new())
            .into_iter()
            .filter(|facts| facts.is_listening_on(port))
            .collect();
        assert_eq!(found.iter().map(|facts| facts.pid).collect::<Vec<_>>(), [me]);
        let alone = proc.facts(me, &|_, _| String::new()).unwrap();
        assert!(alone.is_listening_on(port));
        assert_eq!(alone.exe, std::env::current_exe().unwrap());
        assert_eq!(Some(alone.start), proc.start_of(me));
        assert_eq!(Some(alone.netns), netns_inode(Path::new("/proc/self/ns/net")));
        assert!(proc.sockets(me).iter().any(|socket| socket.is_listening && socket.local.port() == port));
    }

    #[test]
    fn descriptors_beyond_the_maximum_are_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(&listener).unwrap().st_ino;
        let process = Proc::default().open(std::process::id()).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&listener).unsigned_abs() as usize;
        assert!(socket_inodes(&process, number + 1).unwrap().contains(&inode));
        assert!(!socket_inodes(&process, 1).unwrap().contains(&inode));
    }

    /// Counts what is read of an endless file.
    struct Endless<'a>(&'a [u8], u64);

    impl Read for Endless<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            buffer.iter_mut().zip(self.0.iter().cycle()).for_each(|(byte, next)| *byte = *next);
            self.1 += buffer.len() as u64;
            Ok(buffer.len())
        }
    }

    #[test]
    fn endless_strings_are_read_up_to_the_limit() {
        let mut one = Endless(b"a", 0);
        assert!(whole_strings(&mut one).is_empty(), "cut");
        assert_eq!(one.1, MAX_STRINGS);
        let mut many = Endless(b"\0", 0);
        assert!(whole_strings(&mut many).is_empty());
        assert_eq!(many.1, MAX_STRINGS);
        assert_eq!(whole_strings(&b"node\0--data-dir\0\0/x"[..]), [&b"node"[..], b"--data-dir", b"/x"]);
    }

    #[test]
    fn a_process_that_is_gone_has_no_facts() {
        let proc = Proc::default();
        assert_eq!(proc.facts(u32::MAX, &|_, _| String::new()), None);
        assert_eq!(proc.facts(4_194_305, &|_, _| String::new()), None);
        assert!(proc.sockets(4_194_305).is_empty());
        assert_eq!(without_deleted("/usr/bin/octez-node (deleted)".into()), PathBuf::from("/usr/bin/octez-node"));
    }
}
