//! The pid namespace of a proc file system.
//!
//! The kernel's programs see process ids of the initial namespace. Where the host is a container (kind, k3d, minikube), its
//! `/proc` has others: then the programs translate them (`src/bpf/pidns.h`).

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use aya::{Btf, EbpfLoader};

use crate::error::Error;
use crate::load::run_raw_tracepoint;

/// The object that build.rs compiled, aligned as the ELF parser requires.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("CHAINSCOPE_PIDNS_BPF"));

/// Inode of the initial pid namespace: `PROC_PID_INIT_INO` of `include/linux/proc_ns.h`.
const INITIAL: u32 = 0xEFFF_FFFC;
/// Greatest level of a pid namespace: `MAX_PID_NS_LEVEL` of `pidns.bpf.c`.
const MAX_LEVEL: u32 = 32;
/// `PROC_SUPER_MAGIC`
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// The pid namespace whose process ids a proc file system shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PidNamespace {
    inode: u32,
    is_own: bool,
}

impl PidNamespace {
    /// The namespace of the file system that is mounted at `proc`.
    ///
    /// # Errors
    /// [`Error::PidNamespace`]: it is no proc file system, it does not show this process, or the namespace cannot be read.
    pub fn of_proc(proc: &Path) -> Result<Self, Error> {
        let fail = |cause: String| Error::PidNamespace { proc: proc.to_owned(), cause };
        let kind = rustix::fs::statfs(proc).map_err(|cause| fail(cause.to_string()))?.f_type;
        if kind != PROC_SUPER_MAGIC {
            return Err(fail("it is not a proc file system".to_owned()));
        }
        // The link leads to the reader's own id.
        match std::fs::read_link(proc.join("self")) {
            Ok(_) => {}
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                let cause = "it is of a pid namespace that this process is not in (hostPID in a pod)".to_owned();
                return Err(fail(cause));
            }
            Err(cause) => return Err(fail(cause.to_string())),
        }
        let own = match inode(&proc.join("self/ns/pid")) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                // A kernel without pid namespaces.
                return Ok(Self { inode: INITIAL, is_own: true });
            }
            own => own.map_err(|cause| fail(format!("self/ns/pid: {cause}")))?,
        };
        let inode = namespace_of_any(proc).ok_or_else(|| {
            fail("the namespace of none of its processes can be read: CAP_SYS_PTRACE is needed".to_owned())
        })?;
        Ok(Self { inode, is_own: inode == own })
    }

    /// Whether its process ids are those of the initial namespace.
    #[must_use]
    pub fn is_initial(&self) -> bool {
        self.inode == INITIAL
    }

    /// Whether this process is in the namespace itself, not in one below it: then its system calls take the same process ids.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Values of the constants of the programs: inode and level, 0 for the initial namespace.
    pub(crate) fn inode_and_level(self, btf: &Btf) -> Result<(u32, u32), Error> {
        if self.is_initial() {
            return Ok((0, 0));
        }
        let action = "find the level of the pid namespace";
        let fail = |error: &(dyn std::error::Error + 'static)| Error::from_loader(action.to_owned(), error, 0);
        let mut bpf = EbpfLoader::new().btf(Some(btf)).load(OBJECT).map_err(|error| fail(&error))?;
        let level =
            run_raw_tracepoint(&mut bpf, "find_pidns_level", &[self.inode.into()]).map_err(|error| fail(&error))?;
        if level > MAX_LEVEL {
            let cause = format!("this process is not in pid:[{}]", self.inode);
            return Err(Error::Load { action: action.to_owned(), cause });
        }
        Ok((self.inode, level))
    }
}

/// Formats the namespace as `/proc/<pid>/ns/pid` shows it, with its relation to the initial one.
impl std::fmt::Display for PidNamespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_initial() { "the initial one" } else { "a nested one, process ids are translated" };
        let own = if self.is_own { "" } else { "; this process is in a namespace below it" };
        write!(f, "pid:[{}], {kind}{own}", self.inode)
    }
}

/// The namespace of the first process that is in no namespace below that of the file system: this one; process 1, which never
/// is but may be inaccessible; or any other.
fn namespace_of_any(proc: &Path) -> Option<u32> {
    let all = std::fs::read_dir(proc).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pids = all.filter(|name| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok()));
    let processes = ["self", "1"].map(OsString::from).into_iter().chain(pids).map(|name| proc.join(name));
    let mut found =
        processes.filter(|process| has_one_id(process)).filter_map(|process| inode(&process.join("ns/pid")).ok());
    found.next()
}

/// Whether a process has a single id, counted from the namespace of the file system on.
fn has_one_id(process: &Path) -> bool {
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_some_and(|ids| ids.split_whitespace().count() == 1)
}

fn inode(namespace: &Path) -> io::Result<u32> {
    u32::try_from(std::fs::metadata(namespace)?.ino()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_this_process() {
        let found = PidNamespace::of_proc(Path::new("/proc")).expect("mounted");
        assert!(found.is_own());
        let link = std::fs::read_link("/proc/self/ns/pid").expect("a kernel with pid namespaces");
        assert!(found.to_string().starts_with(&format!("{}, ", link.display())), "{found}");
        assert!(has_one_id(Path::new("/proc/self")));
    }

    #[test]
    fn other_folders_are_refused_by_name() {
        let error = PidNamespace::of_proc(Path::new("/tmp")).expect_err("no process");
        assert_eq!(error.to_string(), "the process ids of /tmp cannot be used: it is not a proc file system");
        let error = PidNamespace::of_proc(Path::new("/none/proc")).expect_err("no folder").to_string();
        assert!(error.starts_with("the process ids of /none/proc cannot be used: No such file"), "{error}");
    }
}
