//! The self-check of this machine, before anything is loaded.

use std::{fs, path::Path};

use chainscope_ebpf::{Finding, PidNamespace};

use crate::Error;

/// Checks everything that the agent needs: the prerequisites of the kernel part, and access to the processes in `host_proc`.
#[must_use]
pub fn self_check(host_proc: &Path) -> Vec<Finding> {
    let mut findings = chainscope_ebpf::self_check();
    findings.extend([processes(host_proc), pid_namespace(host_proc)]);
    findings.extend(capabilities());
    findings
}

/// Passes if anything can be recorded. Restrictions of single processes are reported later, for example as an identity
/// that cannot be read.
///
/// # Errors
/// [`Error::Unsupported`] with the missing prerequisite.
pub fn require_supported(host_proc: &Path) -> Result<(), Error> {
    require(&[processes(host_proc), pid_namespace(host_proc)])
}

/// Passes if the processes of all containers can be read.
pub(crate) fn require_supported_for_pods(proc: &Path) -> Result<(), Error> {
    let mut needed = vec![processes(proc), Finding { optional: false, ..pid_namespace(proc) }];
    needed.extend(capabilities());
    require(&needed)
}

fn require(findings: &[Finding]) -> Result<(), Error> {
    let missing: Vec<String> = findings
        .iter()
        .filter(|finding| finding.is_obstacle())
        .map(|finding| format!("{}: {}", finding.name, finding.detail))
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::Unsupported(missing.join("; "))) }
}

fn processes(proc: &Path) -> Finding {
    let path = proc.join("1/stat");
    readable(
        "processes",
        &path.display().to_string(),
        fs::read(&path).map(drop),
        "the host's /proc is needed (hostPID in a pod)",
    )
}

/// The kernel's process ids are translated to those of this file system. Not required: that it shows other processes than
/// this one and its children.
fn pid_namespace(proc: &Path) -> Finding {
    const OWN: &str =
        "it begins with this process, so no process of the host is seen (hostPID in a pod, --pid=host in Docker)";
    let name = "pid namespace".to_owned();
    match PidNamespace::of_proc(proc) {
        Err(error) => needed(name, false, error.to_string()),
        Ok(found) if !found.is_initial() && fs::read_link(proc.join("self")).is_ok_and(|id| id == Path::new("1")) => {
            Finding { optional: true, ..needed(name, false, format!("{found}; {OWN}")) }
        }
        Ok(found) => needed(name, true, found.to_string()),
    }
}

fn needed(name: String, ok: bool, detail: String) -> Finding {
    Finding { name, ok, optional: false, detail }
}

fn readable(name: &str, path: &str, result: std::io::Result<()>, without: &str) -> Finding {
    match result {
        Ok(()) => needed(name.to_owned(), true, "readable".to_owned()),
        Err(cause) => needed(name.to_owned(), false, format!("{path}: {cause}; {without}")),
    }
}

/// Capabilities beside those of the kernel part; either of the bits suffices.
const CAPABILITIES: [(&str, &[u32], &str); 2] = [
    ("CAP_SYS_PTRACE", &[19], "processes of other users are not found, and their identities cannot be read"),
    ("CAP_DAC_READ_SEARCH", &[2, 1], "identities that only the node's user may read cannot be read"),
];

fn capabilities() -> Vec<Finding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    findings_of(mask)
}

fn findings_of(mask: u64) -> Vec<Finding> {
    let finding = |(name, bits, without): &(&str, &[u32], &str)| {
        let ok = bits.iter().any(|bit| mask & (1 << bit) != 0);
        let detail = if ok { "present".to_owned() } else { format!("missing: {without}") };
        needed(format!("capability {name}"), ok, detail)
    };
    CAPABILITIES.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_passes() {
        let proc = Path::new("/proc");
        require_supported(proc).unwrap();
        let findings = self_check(proc);
        assert!(findings.iter().any(|finding| finding.name == "processes" && finding.ok));
        assert!(findings.iter().any(|finding| finding.name.starts_with("capability")));
        let found = findings.iter().find(|finding| finding.name == "pid namespace").unwrap();
        assert!(found.ok && found.detail.starts_with("pid:["), "{found}");
    }

    #[test]
    fn a_folder_that_is_no_proc_is_an_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let error = require_supported(dir.path()).unwrap_err().to_string();
        assert!(error.contains("it is not a proc file system"), "{error}");
        assert!(self_check(dir.path()).iter().any(|finding| finding.name == "pid namespace" && finding.is_obstacle()));
    }

    #[test]
    fn each_missing_capability_is_named() {
        let missing = |mask| {
            let findings = findings_of(mask).into_iter().filter(|finding| !finding.ok);
            findings.map(|finding| finding.name).collect::<Vec<_>>()
        };
        assert_eq!(missing(0), ["capability CAP_SYS_PTRACE", "capability CAP_DAC_READ_SEARCH"]);
        assert_eq!(missing(1 << 2), ["capability CAP_SYS_PTRACE"]);
        assert!(missing(1 << 19 | 1 << 2).is_empty());
        assert!(missing(1 << 19 | 1 << 1).is_empty(), "CAP_DAC_OVERRIDE is more");
        let error = require(&findings_of(0)).unwrap_err().to_string();
        assert!(error.contains("CAP_SYS_PTRACE") && error.contains("CAP_DAC_READ_SEARCH"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named_with_what_follows() {
        let cause = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let finding = readable("root", "/proc/1/root", Err(cause), "then identities cannot be read");
        assert!(!finding.ok);
        assert_eq!(finding.detail, "/proc/1/root: permission denied; then identities cannot be read");
    }
}
