//! Checks of the host: kernel, BTF, tracepoints and capabilities.

use std::collections::HashSet;
use std::fmt;

use crate::error::Error;

/// BTF of the running kernel.
pub(crate) const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";
/// The tracepoints that [`CaptureMode::Sock`](crate::network::CaptureMode::Sock) needs (Linux 6.3).
pub(crate) const SOCK_TRACEPOINTS: [&str; 2] = ["sock_send_length", "sock_recv_length"];
const LIFE_TRACEPOINTS: [&str; 3] = ["inet_sock_set_state", "tcp_destroy_sock", "sys_exit"];
/// The newest helper that the programs need, without `bpf_`. Vendors backport it to older kernels.
const NEWEST_HELPER: &str = "loop";
/// First release with this helper.
const SURE_KERNEL: (u32, u32) = (5, 17);
/// The same, for messages.
pub(crate) const KERNELS: &str = "Linux 5.17 or later, or an older one with it backported,";

/// One line of [`self_check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The checked item, for example `capability CAP_BPF`.
    pub name: String,
    /// Whether the check passed.
    pub ok: bool,
    /// Whether recording works without it.
    pub optional: bool,
    /// The result, and the consequence of a failure.
    pub detail: String,
}

impl Finding {
    /// Whether recording is impossible because of it.
    #[must_use]
    pub fn is_obstacle(&self) -> bool {
        !self.ok && !self.optional
    }
}

/// Formats the finding as one line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match (self.ok, self.optional) {
            (true, _) => "ok     ",
            (false, true) => "limited",
            (false, false) => "MISSING",
        };
        write!(f, "{mark} {}: {}", self.name, self.detail)
    }
}

/// Checks the requirements of [`NetworkProbe::load`](crate::network::NetworkProbe::load) and
/// [`MemoryProbe::load`](crate::memory::MemoryProbe::load) without loading anything.
#[must_use]
pub fn self_check() -> Vec<Finding> {
    let btf = std::fs::read(BTF_PATH).map_err(|error| error.to_string());
    let mut findings = kernel(&kernel_release(), btf.as_deref());
    match effective_capabilities() {
        Some(mask) => findings.extend(CAPABILITIES.into_iter().map(|(name, bit)| {
            let ok = mask & (1 << bit | 1 << SYS_ADMIN) != 0;
            needed(&format!("capability {name}"), ok, present(ok, "the kernel will refuse the programs"))
        })),
        None => findings.push(needed("capabilities", false, "/proc/self/status cannot be read".to_owned())),
    }
    findings
}

/// Findings for a kernel of this release and BTF; or the reason why BTF is missing.
fn kernel(release: &str, btf: Result<&[u8], &String>) -> Vec<Finding> {
    let names = btf.map(names_of).unwrap_or_default();
    // Without BTF the helpers are unknown; the missing BTF is a finding of its own.
    let lacking = btf.ok().and_then(|_| missing_helper(release, &names));
    let detail = match lacking {
        Some(helper) => format!("{release} lacks {helper}; {KERNELS} is needed"),
        None => format!("{release}; 6.3 or later is better"),
    };
    let mut findings = vec![
        needed("kernel", lacking.is_none(), detail),
        needed("architecture", cfg!(target_arch = "x86_64"), std::env::consts::ARCH.to_owned()),
    ];
    match btf {
        Ok(btf) => findings.push(needed("BTF", true, format!("{BTF_PATH}, {} bytes", btf.len()))),
        Err(cause) => {
            findings.push(needed("BTF", false, format!("{BTF_PATH}: {cause}; CONFIG_DEBUG_INFO_BTF is needed")));
            return findings;
        }
    }
    let mut tracepoint = |name: &str, optional: bool, without: &str| {
        let ok = has_tracepoint(&names, name);
        findings.push(Finding { optional, ..needed(&format!("tracepoint {name}"), ok, present(ok, without)) });
    };
    for name in LIFE_TRACEPOINTS {
        tracepoint(name, false, "nothing can be captured");
    }
    for name in SOCK_TRACEPOINTS {
        tracepoint(name, true, "payloads are captured at system calls, which costs every process of the host");
    }
    for name in crate::memory::tracepoints() {
        tracepoint(name, true, "memory cannot be followed");
    }
    let ok = has_helper(&names, "ringbuf_output") || !is_older(release);
    findings.push(needed("ring buffer", ok, present(ok, "nothing can be captured")));
    findings
}

fn needed(name: &str, ok: bool, detail: String) -> Finding {
    Finding { name: name.to_owned(), ok, optional: false, detail }
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

/// Names of the missing capabilities, for the message of a refusal.
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

/// Refuses a kernel without the helpers that all programs need.
pub(crate) fn require_helpers(release: &str, names: &HashSet<&str>) -> Result<(), Error> {
    match missing_helper(release, names) {
        Some(need) => Err(Error::KernelTooOld { release: release.to_owned(), need }),
        None => Ok(()),
    }
}

fn missing_helper(release: &str, names: &HashSet<&str>) -> Option<&'static str> {
    (is_older(release) && !has_helper(names, NEWEST_HELPER)).then_some("bpf_loop")
}

/// A helper is a function of that name in the kernel, and a value of the enumeration of helpers.
fn has_helper(names: &HashSet<&str>, helper: &str) -> bool {
    names.contains(format!("bpf_{helper}").as_str()) || names.contains(format!("BPF_FUNC_{helper}").as_str())
}

/// Whether the release does not guarantee the helpers.
fn is_older(release: &str) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < SURE_KERNEL,
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

    const NETWORK: &str = "btf_trace_inet_sock_set_state\0btf_trace_tcp_destroy_sock\0btf_trace_sys_exit\0\
                           btf_trace_sock_send_length\0btf_trace_sock_recv_length\0bpf_ringbuf_output\0";

    fn obstacles(findings: &[Finding]) -> Vec<&str> {
        findings.iter().filter(|finding| finding.is_obstacle()).map(|finding| finding.name.as_str()).collect()
    }

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
    fn an_older_kernel_with_the_helper_is_taken_and_one_without_is_refused() {
        let red_hat = "5.14.0-427.13.1.el9_4.x86_64";
        for backported in ["x\0bpf_loop\0y", "x\0BPF_FUNC_loop\0y"] {
            assert!(require_helpers(red_hat, &names_of(backported.as_bytes())).is_ok());
        }
        let error = require_helpers("5.10.0-28-amd64", &names_of(b"bpf_loop_inline_state\0bpf_ringbuf_output\0"));
        assert_eq!(
            error.unwrap_err().to_string(),
            "kernel 5.10.0-28-amd64 lacks bpf_loop: Linux 5.17 or later, or an older one with it backported, is needed"
        );
        // BTF may leave functions out; such a kernel has it all the same.
        assert!(require_helpers("6.1.0-18-amd64", &names_of(b"")).is_ok());
    }

    #[test]
    fn what_there_is_a_stand_in_for_is_no_obstacle() {
        let findings = kernel("6.1.0-18-amd64", Ok(NETWORK.replace("btf_trace_sock", "no_trace_sock").as_bytes()));
        assert!(obstacles(&findings).is_empty(), "{findings:?}");
        let line = |name: &str| findings.iter().find(|finding| finding.name == name).unwrap().to_string();
        let sock = line("tracepoint sock_send_length");
        assert!(sock.starts_with("limited tracepoint sock_send_length: missing: payloads are captured at"), "{sock}");
        let memory = line("tracepoint mm_page_free");
        assert_eq!(memory, "limited tracepoint mm_page_free: missing: memory cannot be followed");
        assert_eq!(line("tracepoint sys_exit"), "ok      tracepoint sys_exit: present");
    }

    #[test]
    fn what_nothing_can_be_captured_without_is_an_obstacle() {
        let findings = kernel("6.18.44", Ok(NETWORK.replace("btf_trace_sys_exit", "sys_exit").as_bytes()));
        assert_eq!(obstacles(&findings), ["tracepoint sys_exit"]);
        let findings = kernel("5.14.0-1.el9", Ok(NETWORK.as_bytes()));
        assert_eq!(obstacles(&findings), ["kernel"]);
        let findings = kernel("5.14.0-427.el9", Ok(format!("{NETWORK}bpf_loop\0").as_bytes()));
        assert!(obstacles(&findings).is_empty(), "{findings:?}");
        let findings = kernel("4.9.0", Err(&"no such file".to_owned()));
        assert_eq!(obstacles(&findings), ["BTF"]);
    }

    #[test]
    fn names_are_whole_strings() {
        let names = names_of(b"\x9f\xeb\x01\0\0btf_trace_sock_send_length\0btf_trace_sock_recv_length_x\0");
        assert!(has_tracepoint(&names, "sock_send_length"));
        assert!(!has_tracepoint(&names, "sock_recv_length"));
    }
}
