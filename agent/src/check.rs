//! The self-check: what this machine offers, before anything is loaded.

use std::fs;

use chainscope_ebpf::Finding;

use crate::Error;

/// Looks at everything that the agent needs: what the kernel part needs, and access to other processes.
#[must_use]
pub fn self_check() -> Vec<Finding> {
    let mut findings = chainscope_ebpf::self_check();
    findings.extend(access());
    findings
}

/// Passes if something useful can run. What only some processes may refuse is no reason to stop: it is told where it
/// matters, as an identity that cannot be read.
///
/// # Errors
/// [`Error::Unfit`] with one sentence that says what is missing.
pub fn require_fit() -> Result<(), Error> {
    let finding = processes();
    if finding.ok { Ok(()) } else { Err(Error::Unfit(format!("{}: {}", finding.name, finding.detail))) }
}

fn processes() -> Finding {
    look(
        "processes",
        "/proc/1/stat",
        fs::read("/proc/1/stat").map(drop),
        "the host's /proc is needed (hostPID in a pod)",
    )
}

fn look(name: &str, path: &str, result: std::io::Result<()>, without: &str) -> Finding {
    match result {
        Ok(()) => Finding { name: name.to_owned(), ok: true, detail: "readable".to_owned() },
        Err(cause) => Finding { name: name.to_owned(), ok: false, detail: format!("{path}: {cause}; {without}") },
    }
}

/// Whether other processes can be looked at. The first process is looked at: it is there, and another user's unless
/// the agent is root.
fn access() -> Vec<Finding> {
    vec![
        processes(),
        look(
            "descriptors of other processes",
            "/proc/1/fd",
            fs::read_dir("/proc/1/fd").map(drop),
            "without CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH such processes are not found by their port",
        ),
        look(
            "root of other processes",
            "/proc/1/root",
            fs::metadata("/proc/1/root/").map(drop),
            "without CAP_SYS_PTRACE the identities of such processes cannot be read",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_passes() {
        require_fit().unwrap();
        let findings = self_check();
        assert!(findings.iter().any(|finding| finding.name == "processes" && finding.ok));
        assert!(findings.iter().any(|finding| finding.name.starts_with("capability")));
    }

    #[test]
    fn what_is_missing_is_named_with_what_follows() {
        let cause = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let finding = look("root", "/proc/1/root", Err(cause), "then identities cannot be read");
        assert!(!finding.ok);
        assert_eq!(finding.detail, "/proc/1/root: permission denied; then identities cannot be read");
    }
}
