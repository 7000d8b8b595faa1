//! What `/proc` tells about processes. A process may end at any moment: then there is nothing to tell.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs,
    net::SocketAddr,
    os::unix::{ffi::OsStringExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use procfs::{
    ProcResult,
    net::{TcpNetEntry, TcpState},
    process::{FDTarget, Process, all_processes},
};

use super::{
    container::ContainerId,
    matching::{ProcessFacts, owner},
};

/// A socket of a network namespace, from `/proc/<pid>/net/tcp` and `tcp6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) inode: u64,
    pub(crate) local: SocketAddr,
    pub(crate) is_listening: bool,
}

/// The TCP sockets of the namespace that the process is in.
pub(crate) fn sockets(pid: u32) -> Vec<Socket> {
    let Some(process) = open(pid) else { return Vec::new() };
    tcp_entries(&process)
        .into_iter()
        .map(|entry| Socket {
            inode: entry.inode,
            local: entry.local_address,
            is_listening: entry.state == TcpState::Listen,
        })
        .collect()
}

/// Either table may be missing: a kernel without IPv6.
fn tcp_entries(process: &Process) -> Vec<TcpNetEntry> {
    let mut entries = process.tcp().unwrap_or_default();
    entries.extend(process.tcp6().unwrap_or_default());
    entries
}

fn open(pid: u32) -> Option<Process> {
    Process::new(i32::try_from(pid).ok()?).ok()
}

/// Everything about one process; none if it is gone, or a zombie.
pub(crate) fn facts(pid: u32) -> Option<ProcessFacts> {
    let process = open(pid)?;
    let mut facts = brief(&process)?;
    let held: HashSet<u64> = socket_inodes(&process).unwrap_or_default().into_iter().collect();
    facts.listens = tcp_entries(&process)
        .iter()
        .filter(|entry| entry.state == TcpState::Listen && held.contains(&entry.inode))
        .map(|entry| entry.local_address.port())
        .collect();
    Some(facts)
}

/// Everything but the ports.
fn brief(process: &Process) -> Option<ProcessFacts> {
    let pid = u32::try_from(process.pid()).ok()?;
    Some(ProcessFacts {
        pid,
        start: process.stat().ok()?.starttime,
        // A kernel thread or a zombie has none.
        exe: without_deleted(process.exe().ok()?),
        netns: netns_of(pid)?,
        container: fs::read_to_string(format!("/proc/{pid}/cgroup"))
            .ok()
            .and_then(|text| ContainerId::from_cgroup(&text)),
        listens: BTreeSet::new(),
    })
}

/// An executable that was replaced on disk (an upgrade) is shown with this ending.
fn without_deleted(exe: PathBuf) -> PathBuf {
    let bytes = exe.into_os_string().into_vec();
    let path = bytes.strip_suffix(b" (deleted)").map(<[u8]>::to_vec).unwrap_or(bytes);
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

fn netns_of(pid: u32) -> Option<u32> {
    netns_inode(Path::new(&format!("/proc/{pid}/ns/net")))
}

/// Inode of the namespace behind `/run/netns/<name>` or `/proc/<pid>/ns/net`.
pub(crate) fn netns_inode(path: &Path) -> Option<u32> {
    u32::try_from(fs::metadata(path).ok()?.ino()).ok()
}

/// Clock ticks from boot to the start of a process; none if it is gone.
pub(crate) fn start_of(pid: u32) -> Option<u64> {
    Some(open(pid)?.stat().ok()?.starttime)
}

fn socket_inodes(process: &Process) -> ProcResult<Vec<u64>> {
    Ok(process
        .fd()?
        .flatten()
        .filter_map(|fd| match fd.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect())
}

/// Every process, with those of `ports` on which it is the one that listens. Descriptors are read only where a
/// namespace has such a listening socket.
pub(crate) fn scan(ports: &BTreeSet<u16>) -> Vec<ProcessFacts> {
    let mut processes = Vec::new();
    for process in all_processes().into_iter().flatten().flatten() {
        if let Some(facts) = brief(&process) {
            processes.push((process, facts));
        }
    }
    let mut listening: BTreeMap<u32, HashMap<u64, u16>> = BTreeMap::new();
    if !ports.is_empty() {
        for (process, facts) in &processes {
            listening.entry(facts.netns).or_insert_with(|| {
                let entries = tcp_entries(process).into_iter();
                entries
                    .filter(|entry| entry.state == TcpState::Listen && ports.contains(&entry.local_address.port()))
                    .map(|entry| (entry.inode, entry.local_address.port()))
                    .collect()
            });
        }
    }
    let mut holders: HashMap<u64, Vec<(u32, u64)>> = HashMap::new();
    for (process, facts) in &processes {
        let Some(inodes) = listening.get(&facts.netns).filter(|inodes| !inodes.is_empty()) else { continue };
        for inode in socket_inodes(process).unwrap_or_default() {
            if inodes.contains_key(&inode) {
                holders.entry(inode).or_default().push((facts.pid, facts.start));
            }
        }
    }
    let owners: HashMap<u64, u32> =
        holders.iter().filter_map(|(inode, holders)| Some((*inode, owner(holders)?))).collect();
    let mut found: Vec<ProcessFacts> = processes.into_iter().map(|(_, facts)| facts).collect();
    for facts in &mut found {
        let Some(inodes) = listening.get(&facts.netns) else { continue };
        facts.listens =
            inodes.iter().filter(|(inode, _)| owners.get(inode) == Some(&facts.pid)).map(|(_, port)| *port).collect();
    }
    // The agent's own namespace first, then the oldest: so the names of nodes do not depend on the order of /proc.
    let own = netns_inode(Path::new("/proc/self/ns/net"));
    found.sort_by_key(|facts| (Some(facts.netns) != own, facts.start, facts.pid));
    found
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn this_process_is_found_by_its_listening_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let me = std::process::id();
        let found: Vec<ProcessFacts> =
            scan(&BTreeSet::from([port])).into_iter().filter(|facts| facts.listens.contains(&port)).collect();
        assert_eq!(found.iter().map(|facts| facts.pid).collect::<Vec<_>>(), [me]);
        let alone = facts(me).unwrap();
        assert!(alone.listens.contains(&port));
        assert_eq!(alone.exe, std::env::current_exe().unwrap());
        assert_eq!(Some(alone.start), start_of(me));
        assert_eq!(Some(alone.netns), netns_inode(Path::new("/proc/self/ns/net")));
        assert!(sockets(me).iter().any(|socket| socket.is_listening && socket.local.port() == port));
    }

    #[test]
    fn a_process_that_is_gone_has_no_facts() {
        assert_eq!(facts(u32::MAX), None);
        assert_eq!(facts(4_194_305), None);
        assert!(sockets(4_194_305).is_empty());
        assert_eq!(without_deleted("/usr/bin/octez-node (deleted)".into()), PathBuf::from("/usr/bin/octez-node"));
    }
}
