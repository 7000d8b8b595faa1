//! Which container a process is in, from `/proc/<pid>/cgroup`.
//!
//! Every runtime puts the container's 64 hexadecimal digits into the last path element that is its own:
//! `/kubepods/burstable/pod<uid>/<id>`, `…-pod<uid>.slice/cri-containerd-<id>.scope`, `crio-<id>.scope`,
//! `docker-<id>.scope`, `/docker/<id>`, nested below a prefix (kind), or relative (`/../..`) when seen from another
//! cgroup namespace. On v1 and hybrid hosts the v2 line is `0::/` for everybody, so every line is looked at.

use std::fmt;

/// A container's id: 64 lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ContainerId(String);

/// Least digits of an id that a person may abbreviate it to.
const LEAST_PREFIX: usize = 12;

impl ContainerId {
    /// The id in the text of a cgroup file. Where containers are nested, the innermost one.
    pub(crate) fn from_cgroup(text: &str) -> Option<Self> {
        text.lines().find_map(|line| {
            // hierarchy:controllers:path; a path may hold colons
            let path = line.splitn(3, ':').nth(2)?;
            path.rsplit('/').find_map(Self::from_element)
        })
    }

    /// `<id>`, `docker-<id>.scope`, `cri-containerd:<id>` and the like.
    fn from_element(element: &str) -> Option<Self> {
        let name = element.strip_suffix(".scope").unwrap_or(element);
        // `crio-conmon-<id>` and `libpod-conmon-<id>` hold the container's monitor, not the container.
        if name.contains("conmon-") {
            return None;
        }
        let id = name.rsplit(['-', ':']).next()?;
        Self::parse(id)
    }

    /// An id written out in full.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let is_id = id.len() == 64 && id.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        is_id.then(|| Self(id.to_owned()))
    }

    /// Whether `wanted` is this id or a long enough beginning of it; a leading `docker://` or the like is allowed, as
    /// Kubernetes writes it.
    pub(crate) fn is_named(&self, wanted: &str) -> bool {
        let digits = wanted.rsplit("//").next().unwrap_or(wanted);
        digits.len() >= LEAST_PREFIX && self.0.starts_with(digits)
    }

    pub(crate) fn short(&self) -> &str {
        self.0.get(..LEAST_PREFIX).unwrap_or(&self.0)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "8d3f2a9c-1111-2222-3333-444455556666";

    #[test]
    fn every_form_of_the_path_gives_the_id() {
        let under = POD.replace('-', "_");
        for line in [
            format!("0::/kubepods/burstable/pod{POD}/{ID}"),
            format!("0::/kubepods/besteffort/pod{POD}/{ID}"),
            format!("11:memory:/kubepods/pod{POD}/{ID}"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{ID}.scope"
            ),
            format!("0::/kubepods.slice/kubepods-pod{under}.slice/crio-{ID}.scope"),
            format!("0::/kubepods.slice/kubepods-pod{under}.slice/crio-{ID}.scope/container"),
            format!("0::/system.slice/docker-{ID}.scope"),
            format!("4:cpu,cpuacct:/docker/{ID}"),
            format!("0::/machine.slice/libpod-{ID}.scope/container"),
            format!("0::/system.slice/kubepods-pod{under}.slice:cri-containerd:{ID}"),
            format!("0::/docker/{}/kubelet/kubepods/pod{POD}/{ID}", "f".repeat(64)),
            format!("0::/../../pod{POD}/{ID}"),
            format!("12:pids:/kubepods/pod{POD}/{ID}\n1:name=systemd:/kubepods/pod{POD}/{ID}\n0::/"),
            format!("0::/\n1:name=systemd:/docker/{ID}"),
        ] {
            assert_eq!(ContainerId::from_cgroup(&line), ContainerId::parse(ID), "{line}");
        }
    }

    #[test]
    fn what_is_no_container_gives_none() {
        let upper = ID.to_uppercase();
        for line in [
            "0::/".to_owned(),
            "0::/user.slice/user-1000.slice/session-2.scope".to_owned(),
            format!("0::/system.slice/docker-{}.scope", &ID[..63]),
            format!("0::/docker/{upper}"),
            format!("0::/machine.slice/libpod-conmon-{ID}.scope"),
            String::new(),
            "nonsense".to_owned(),
        ] {
            assert_eq!(ContainerId::from_cgroup(&line), None, "{line}");
        }
    }

    #[test]
    fn a_long_enough_beginning_names_it() {
        let id = ContainerId::parse(ID).unwrap();
        assert!(id.is_named(ID));
        assert!(id.is_named(&ID[..12]));
        assert!(id.is_named(&format!("containerd://{ID}")));
        assert!(!id.is_named(&ID[..11]));
        assert!(!id.is_named(""));
        assert!(!id.is_named(&ID[1..20]));
    }
}
