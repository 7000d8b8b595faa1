//! The self-check of the host: kernel, BTF, tracepoints and capabilities.

use std::fmt;

use crate::kernel::{
    self, BTF_PATH, CAPABILITIES, KERNELS, SOCK_TRACEPOINTS, effective_capabilities, has_helper, has_tracepoint,
    is_capable, missing_helper, names_of,
};

const LIFECYCLE_TRACEPOINTS: [&str; 3] = ["inet_sock_set_state", "tcp_destroy_sock", "sys_exit"];

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

/// Checks the requirements of [`NetworkProbe::load`](crate::network::NetworkProbe::load),
/// [`MemoryProbe::load`](crate::memory::MemoryProbe::load) and [`TraceProbe::load`](crate::trace::TraceProbe::load) without
/// loading anything.
#[must_use]
pub fn self_check() -> Vec<Finding> {
    let btf = std::fs::read(BTF_PATH).map_err(|error| error.to_string());
    let mut findings = kernel_findings(&kernel::release(), btf.as_deref());
    let uprobes = std::path::Path::new(crate::uprobe::UPROBE_TYPE).exists();
    let detail = present(uprobes, "static tracepoints of programs (USDT) cannot be attached");
    findings.push(Finding { optional: true, ..needed("uprobes", uprobes, detail) });
    match effective_capabilities() {
        Some(mask) => findings.extend(CAPABILITIES.into_iter().map(|(name, bit)| {
            let ok = is_capable(mask, bit);
            needed(&format!("capability {name}"), ok, present(ok, "the kernel will refuse the programs"))
        })),
        None => findings.push(needed("capabilities", false, "/proc/self/status cannot be read".to_owned())),
    }
    findings
}

/// Findings for a kernel of this release and BTF; or the reason why BTF is missing.
fn kernel_findings(release: &str, btf: Result<&[u8], &String>) -> Vec<Finding> {
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
    for name in LIFECYCLE_TRACEPOINTS {
        tracepoint(name, false, "nothing can be captured");
    }
    for name in SOCK_TRACEPOINTS {
        tracepoint(name, true, "payloads are captured at system calls, which costs every process of the host");
    }
    for name in crate::memory::tracepoints() {
        tracepoint(name, true, "memory cannot be followed");
    }
    let ok = has_helper(&names, "ringbuf_output") || !kernel::is_older(release);
    findings.push(needed("ring buffer", ok, present(ok, "nothing can be captured")));
    findings
}

fn needed(name: &str, ok: bool, detail: String) -> Finding {
    Finding { name: name.to_owned(), ok, optional: false, detail }
}

fn present(ok: bool, without: &str) -> String {
    if ok { "present".to_owned() } else { format!("missing: {without}") }
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
    fn a_feature_with_a_fallback_is_no_obstacle() {
        let findings =
            kernel_findings("6.1.0-18-amd64", Ok(NETWORK.replace("btf_trace_sock", "no_trace_sock").as_bytes()));
        assert!(obstacles(&findings).is_empty(), "{findings:?}");
        let line = |name: &str| findings.iter().find(|finding| finding.name == name).unwrap().to_string();
        let sock = line("tracepoint sock_send_length");
        assert!(sock.starts_with("limited tracepoint sock_send_length: missing: payloads are captured at"), "{sock}");
        let memory = line("tracepoint mm_page_free");
        assert_eq!(memory, "limited tracepoint mm_page_free: missing: memory cannot be followed");
        assert_eq!(line("tracepoint sys_exit"), "ok      tracepoint sys_exit: present");
    }

    #[test]
    fn a_required_feature_is_an_obstacle() {
        let findings = kernel_findings("6.18.44", Ok(NETWORK.replace("btf_trace_sys_exit", "sys_exit").as_bytes()));
        assert_eq!(obstacles(&findings), ["tracepoint sys_exit"]);
        let findings = kernel_findings("5.14.0-1.el9", Ok(NETWORK.as_bytes()));
        assert_eq!(obstacles(&findings), ["kernel"]);
        let findings = kernel_findings("5.14.0-427.el9", Ok(format!("{NETWORK}bpf_loop\0").as_bytes()));
        assert!(obstacles(&findings).is_empty(), "{findings:?}");
        let findings = kernel_findings("4.9.0", Err(&"no such file".to_owned()));
        assert_eq!(obstacles(&findings), ["BTF"]);
    }
}
