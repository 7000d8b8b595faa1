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

/// Passes if something useful can run.
///
/// # Errors
/// [`Error::Unfit`] with one sentence that names everything that is missing.
pub fn require_fit() -> Result<(), Error> {
    let missing: Vec<String> = access()
        .into_iter()
        .filter(|finding| !finding.ok)
        .map(|finding| format!("{}: {}", finding.name, finding.detail))
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::Unfit(missing.join("; "))) }
}

/// Whether other processes can be looked at. The first process is looked at: it is there, and another user's unless
/// the agent is root.
fn access() -> Vec<Finding> {
    let probe = |name: &str, path: &str, result: std::io::Result<()>, without: &str| match result {
        Ok(()) => Finding { name: name.to_owned(), ok: true, detail: "readable".to_owned() },
        Err(cause) => Finding { name: name.to_owned(), ok: false, detail: format!("{path}: {cause}; {without}") },
    };
    vec![
        probe(
            "processes",
            "/proc/1/stat",
            fs::read("/proc/1/stat").map(drop),
            "the host's /proc is needed (hostPID in a pod)",
        ),
        probe(
            "descriptors of other processes",
            "/proc/1/fd",
            fs::read_dir("/proc/1/fd").map(drop),
            "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH are needed",
        ),
        probe(
            "root of other processes",
            "/proc/1/root",
            fs::metadata("/proc/1/root/").map(drop),
            "CAP_SYS_PTRACE is needed, or identities cannot be read",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_passes_as_root() {
        require_fit().unwrap();
        let findings = self_check();
        assert!(findings.iter().any(|finding| finding.name == "root of other processes" && finding.ok));
        assert!(findings.iter().any(|finding| finding.name.starts_with("capability")));
    }
}
