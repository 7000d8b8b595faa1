//! Features of the running kernel, and the capabilities of this process.

use std::collections::HashSet;

/// BTF of the running kernel.
pub(crate) const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";
/// The tracepoints that [`CaptureMode::Sock`](crate::network::CaptureMode::Sock) needs (Linux 6.3).
pub(crate) const SOCK_TRACEPOINTS: [&str; 2] = ["sock_send_length", "sock_recv_length"];
/// The newest helper that the programs need, without `bpf_`. Vendors backport it to older kernels.
const NEWEST_HELPER: &str = "loop";
/// First release with this helper.
const SURE_KERNEL: (u32, u32) = (5, 17);
/// The same, for messages.
pub(crate) const KERNELS: &str = "Linux 5.17 or later, or an older one with it backported,";

/// `CAP_SYS_ADMIN`, which includes the others.
const SYS_ADMIN: u32 = 21;
/// Name and bit of the required capabilities.
pub(crate) const CAPABILITIES: [(&str, u32); 2] = [("CAP_BPF", 39), ("CAP_PERFMON", 38)];

/// The mask of effective capabilities.
pub(crate) fn effective_capabilities() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Whether a mask of capabilities grants the one of this bit.
pub(crate) fn is_capable(mask: u64, bit: u32) -> bool {
    mask & (1 << bit | 1 << SYS_ADMIN) != 0
}

/// Names of the missing capabilities, for the message of a refusal.
pub(crate) fn missing_capabilities() -> String {
    let mask = effective_capabilities().unwrap_or(0);
    let missing: Vec<&str> =
        CAPABILITIES.iter().filter(|(_, bit)| !is_capable(mask, *bit)).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        "none, so a security module, seccomp or a user namespace refuses it".to_owned()
    } else {
        missing.join(", ")
    }
}

/// `uname -r`.
pub(crate) fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The helper that a kernel of this release and BTF lacks, if any.
pub(crate) fn missing_helper(release: &str, names: &HashSet<&str>) -> Option<&'static str> {
    (is_older(release) && !has_helper(names, NEWEST_HELPER)).then_some("bpf_loop")
}

/// A helper is a function of that name in the kernel, and a value of the enumeration of helpers.
pub(crate) fn has_helper(names: &HashSet<&str>, helper: &str) -> bool {
    names.contains(format!("bpf_{helper}").as_str()) || names.contains(format!("BPF_FUNC_{helper}").as_str())
}

/// Whether the release does not guarantee the helpers.
pub(crate) fn is_older(release: &str) -> bool {
    is_before(release, SURE_KERNEL)
}

/// Whether a release is known to be before a version.
pub(crate) fn is_before(release: &str, version: (u32, u32)) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < version,
        // Unknown version scheme: loading the programs shows whether the helpers exist.
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
    fn releases_that_prove_nothing() {
        for (release, older) in [
            ("5.16.20-generic", true),
            ("4.18.0-553.el8", true),
            ("5.17.0", false),
            ("6.1.0-18-amd64", false),
            ("6.18.44", false),
            ("7.0-rc1", false),
            ("odd", false),
        ] {
            assert_eq!(is_older(release), older, "{release}");
        }
    }

    #[test]
    fn an_older_kernel_may_have_the_helper_backported() {
        let red_hat = "5.14.0-427.13.1.el9_4.x86_64";
        for backported in ["x\0bpf_loop\0y", "x\0BPF_FUNC_loop\0y"] {
            assert_eq!(missing_helper(red_hat, &names_of(backported.as_bytes())), None);
        }
        let similar = names_of(b"bpf_loop_inline_state\0bpf_ringbuf_output\0");
        assert_eq!(missing_helper("5.10.0-28-amd64", &similar), Some("bpf_loop"));
        // BTF may omit functions; a newer kernel has the helper nevertheless.
        assert_eq!(missing_helper("6.1.0-18-amd64", &names_of(b"")), None);
    }

    #[test]
    fn names_are_whole_strings() {
        let names = names_of(b"\x9f\xeb\x01\0\0btf_trace_sock_send_length\0btf_trace_sock_recv_length_x\0");
        assert!(has_tracepoint(&names, "sock_send_length"));
        assert!(!has_tracepoint(&names, "sock_recv_length"));
    }
}
