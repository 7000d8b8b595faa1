//! What this host offers: the self-check at start, and the names in error messages.

use std::collections::HashSet;

/// Where the kernel's type information is.
pub(crate) const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";
/// The tracepoints that [`CaptureMode::Sock`](crate::CaptureMode::Sock) needs (Linux 6.3).
pub(crate) const SOCK_TRACEPOINTS: [&str; 2] = ["sock_send_length", "sock_recv_length"];
const LIFE_TRACEPOINTS: [&str; 3] = ["inet_sock_set_state", "tcp_destroy_sock", "sys_exit"];
/// `bpf_loop`.
const LEAST_KERNEL: (u32, u32) = (5, 17);

/// One line of [`self_check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, for example `capability CAP_BPF`.
    pub name: String,
    /// Whether it is as needed.
    pub ok: bool,
    /// What was found, and what follows if it is not as needed.
    pub detail: String,
}

/// Looks at everything that [`NetworkProbe::load`](crate::NetworkProbe::load) and
/// [`MemoryProbe::load`](crate::memory::MemoryProbe::load) need, without loading anything.
#[must_use]
pub fn self_check() -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |name: &str, ok: bool, detail: String| findings.push(Finding { name: name.to_owned(), ok, detail });

    let release = kernel_release();
    let old = kernel_too_old(&release);
    found("kernel", !old, format!("{release}; 5.17 or later is needed, 6.3 or later is better"));
    found("architecture", cfg!(target_arch = "x86_64"), std::env::consts::ARCH.to_owned());

    match std::fs::read(BTF_PATH) {
        Ok(btf) => {
            found("BTF", true, format!("{BTF_PATH}, {} bytes", btf.len()));
            let names = names_of(&btf);
            for tracepoint in LIFE_TRACEPOINTS {
                let ok = has_tracepoint(&names, tracepoint);
                found(&format!("tracepoint {tracepoint}"), ok, present(ok, "nothing can be captured"));
            }
            for tracepoint in SOCK_TRACEPOINTS {
                let ok = has_tracepoint(&names, tracepoint);
                let without = "payloads are captured at system calls, which costs every process of the host";
                found(&format!("tracepoint {tracepoint}"), ok, present(ok, without));
            }
            for tracepoint in crate::memory::tracepoints() {
                let ok = has_tracepoint(&names, tracepoint);
                found(&format!("tracepoint {tracepoint}"), ok, present(ok, "memory cannot be followed"));
            }
            for (name, helper) in [("ring buffer", "bpf_ringbuf_output"), ("bpf_loop", "bpf_loop")] {
                // The helpers' prototypes are functions of that name in the kernel.
                let ok = names.contains(helper) || !old;
                found(name, ok, present(ok, "nothing can be captured"));
            }
        }
        Err(error) => found("BTF", false, format!("{BTF_PATH}: {error}; CONFIG_DEBUG_INFO_BTF is needed")),
    }

    match effective_capabilities() {
        Some(mask) => {
            for (name, bit) in CAPABILITIES {
                let ok = mask & (1 << bit | 1 << SYS_ADMIN) != 0;
                found(&format!("capability {name}"), ok, present(ok, "the kernel will refuse the programs"));
            }
        }
        None => found("capabilities", false, "/proc/self/status cannot be read".to_owned()),
    }
    findings
}

fn present(ok: bool, without: &str) -> String {
    if ok { "present".to_owned() } else { format!("missing: {without}") }
}

const SYS_ADMIN: u32 = 21;
const CAPABILITIES: [(&str, u32); 2] = [("CAP_BPF", 39), ("CAP_PERFMON", 38)];

fn effective_capabilities() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// For the error message of a refusal.
pub(crate) fn missing_capabilities() -> String {
    let mask = effective_capabilities().unwrap_or(0);
    let missing: Vec<&str> =
        CAPABILITIES.iter().filter(|(_, bit)| mask & (1 << bit | 1 << SYS_ADMIN) == 0).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        "none, so a security module, seccomp or a user namespace refuses it".to_owned()
    } else {
        missing.join(", ")
    }
}

pub(crate) fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

pub(crate) fn kernel_too_old(release: &str) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < LEAST_KERNEL,
        // A release that is not a number is no proof of age; loading will tell.
        _ => false,
    }
}

/// The names in BTF: its string section, which is the last one and consists of strings that end in 0.
pub(crate) fn names_of(btf: &[u8]) -> HashSet<&str> {
    btf.split(|&byte| byte == 0).filter_map(|name| std::str::from_utf8(name).ok()).collect()
}

pub(crate) fn has_tracepoint(names: &HashSet<&str>, tracepoint: &str) -> bool {
    names.contains(format!("btf_trace_{tracepoint}").as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases() {
        for (release, old) in [
            ("5.16.20-generic", true),
            ("4.18.0-553.el8", true),
            ("5.17.0", false),
            ("6.1.0-18-amd64", false),
            ("6.18.44", false),
            ("7.0-rc1", false),
            ("odd", false),
        ] {
            assert_eq!(kernel_too_old(release), old, "{release}");
        }
    }

    #[test]
    fn names_are_whole_strings() {
        let names = names_of(b"\x9f\xeb\x01\0\0btf_trace_sock_send_length\0btf_trace_sock_recv_length_x\0");
        assert!(has_tracepoint(&names, "sock_send_length"));
        assert!(!has_tracepoint(&names, "sock_recv_length"));
    }
}
