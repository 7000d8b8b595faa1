//! Which container, and which pod, a process is in, from `/proc/<pid>/cgroup`.
//!
//! Every runtime puts the container's 64 hexadecimal digits into the last path element that is its own:
//! `/kubepods/burstable/pod<uid>/<id>`, `…-pod<uid>.slice/cri-containerd-<id>.scope`, `crio-<id>.scope`,
//! `docker-<id>.scope`, `/docker/<id>`, nested below a prefix (kind), or relative (`/../..`) when seen from another
//! cgroup namespace. On v1 and hybrid hosts the v2 line is `0::/` for every process, so all lines are read.
//!
//! **Trust.** The kubelet and the runtime make the elements up to the container's own; a container that
//! may make control groups names everything below. Therefore the first pod on the way down counts, and the container
//! in the element right after it: the names of a container's inner groups cannot make it another pod's.

use std::fmt;

/// A container's id: 64 lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ContainerId(String);

/// Least number of digits of an abbreviated id.
const LEAST_PREFIX: usize = 12;

impl ContainerId {
    /// The id in the text of a cgroup file. Where containers are nested, the innermost one.
    pub(crate) fn from_cgroup(text: &str) -> Option<Self> {
        paths(text).find_map(|path| path.rsplit('/').find_map(Self::from_element))
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

    /// Whether `wanted` is this id or a prefix of sufficient length; a leading `docker://` or the like is allowed, as
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

/// A pod's uid without its separators, which are `-` or `_` in paths.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodUid(String);

impl PodUid {
    /// Any spelling of a uid; none if it is not 32 hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|letter| !matches!(letter, '-' | '_')).collect();
        let is_uid = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_uid.then(|| Self(digits.to_ascii_lowercase()))
    }

    /// `pod<uid>`, `kubepods-pod<uid>.slice`, `kubepods-burstable-pod<uid>.slice`.
    fn from_element(element: &str) -> Option<Self> {
        let name = element.strip_suffix(".slice").unwrap_or(element);
        let uid = match name.rsplit_once("-pod") {
            Some((_, uid)) => uid,
            None => name.strip_prefix("pod")?,
        };
        Self::parse(uid)
    }
}

/// The container, and the pod if there is one, that a process runs in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ContainerLocation {
    pub(crate) container: ContainerId,
    /// None where the path has no pod: Docker without Kubernetes.
    pub(crate) pod: Option<PodUid>,
}

impl ContainerLocation {
    /// The location in the text of a cgroup file; none if there is none, or if its lines contradict each other.
    pub(crate) fn from_cgroup(text: &str) -> Option<Self> {
        let all: Vec<Self> = paths(text).filter_map(Self::from_path).collect();
        let in_pods: Vec<&Self> = all.iter().filter(|location| location.pod.is_some()).collect();
        // A controller that is not delegated to a nested runtime shows the outer container only.
        let candidates = if in_pods.is_empty() { all.iter().collect() } else { in_pods };
        let first = candidates.first()?;
        candidates.iter().all(|location| location == first).then(|| (*first).clone())
    }

    fn from_path(path: &str) -> Option<Self> {
        // With containerd's own names for systemd's groups pod and container are in one element, with ':' between.
        let mut elements = path.split(['/', ':']);
        let Some(pod) = elements.by_ref().find_map(PodUid::from_element) else {
            let container = path.rsplit('/').find_map(ContainerId::from_element)?;
            return Some(Self { container, pod: None });
        };
        let container = elements.find(|element| !is_runtime(element)).and_then(ContainerId::from_element)?;
        Some(Self { container, pod: Some(pod) })
    }
}

/// The middle of `<slice>:cri-containerd:<id>`.
fn is_runtime(element: &str) -> bool {
    matches!(element, "cri-containerd" | "crio" | "docker")
}

/// The paths of the text's lines, `hierarchy:controllers:path`; a path may hold colons.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "8d3f2a9c-1111-2222-3333-444455556666";
    const OTHER_POD: &str = "00000000-1111-2222-3333-444455556666";

    fn in_pods() -> Vec<String> {
        let under = POD.replace('-', "_");
        vec![
            format!("0::/kubepods/burstable/pod{POD}/{ID}"),
            format!("0::/kubepods/besteffort/pod{POD}/{ID}"),
            format!("11:memory:/kubepods/pod{POD}/{ID}"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{ID}.scope"
            ),
            format!("0::/kubepods.slice/kubepods-pod{under}.slice/crio-{ID}.scope"),
            format!("0::/kubepods.slice/kubepods-pod{under}.slice/crio-{ID}.scope/container"),
            format!("0::/kubepods.slice/kubepods-pod{under}.slice/docker-{ID}.scope"),
            format!("0::/system.slice/kubepods-pod{under}.slice:cri-containerd:{ID}"),
            format!("0::/docker/{}/kubelet/kubepods/pod{POD}/{ID}", "f".repeat(64)),
            format!("0::/docker/{}/kubelet.slice/kubelet-kubepods-pod{under}.slice/{ID}", "f".repeat(64)),
            format!("0::/../../pod{POD}/{ID}"),
            format!("0::/../kubepods-pod{under}.slice/cri-containerd-{ID}.scope"),
            format!("12:pids:/kubepods/pod{POD}/{ID}\n1:name=systemd:/kubepods/pod{POD}/{ID}\n0::/"),
            format!("9:name=systemd:/\n8:pids:/kubepods/pod{POD}/{ID}\n4:memory:/docker/{}\n0::/", "f".repeat(64)),
            // A container in the pod's container is the pod's.
            format!("0::/kubepods/pod{POD}/{ID}/docker/{}", "f".repeat(64)),
        ]
    }

    fn in_none() -> Vec<String> {
        vec![
            format!("0::/system.slice/docker-{ID}.scope"),
            format!("4:cpu,cpuacct:/docker/{ID}"),
            format!("0::/machine.slice/libpod-{ID}.scope/container"),
            format!("0::/\n1:name=systemd:/docker/{ID}"),
        ]
    }

    #[test]
    fn every_form_of_the_path_gives_the_id() {
        for line in in_none().into_iter().chain(in_pods().into_iter().take(13)) {
            assert_eq!(ContainerId::from_cgroup(&line), ContainerId::parse(ID), "{line}");
        }
    }

    #[test]
    fn every_form_of_the_path_gives_the_place() {
        let container = ContainerId::parse(ID).unwrap();
        for line in in_pods() {
            let location = ContainerLocation { container: container.clone(), pod: PodUid::parse(POD) };
            assert_eq!(ContainerLocation::from_cgroup(&line), Some(location), "{line}");
        }
        for line in in_none() {
            let location = ContainerLocation { container: container.clone(), pod: None };
            assert_eq!(ContainerLocation::from_cgroup(&line), Some(location), "{line}");
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
            format!("0::/kubepods.slice/kubepods-pod{POD}.slice/crio-conmon-{ID}.scope"),
            String::new(),
            "nonsense".to_owned(),
        ] {
            assert_eq!(ContainerId::from_cgroup(&line), None, "{line}");
            assert_eq!(ContainerLocation::from_cgroup(&line), None, "{line}");
        }
        // A pod's own group, outside of its containers.
        assert_eq!(ContainerLocation::from_cgroup(&format!("0::/kubepods/pod{POD}")), None);
    }

    #[test]
    fn a_container_cannot_name_itself_into_another_pod() {
        let (mine, others) = (ID, "e".repeat(64));
        let own = ContainerLocation { container: ContainerId::parse(mine).unwrap(), pod: PodUid::parse(POD) };
        for inner in [
            format!("pod{OTHER_POD}/{others}"),
            format!("kubepods-pod{}.slice/cri-containerd-{others}.scope", OTHER_POD.replace('-', "_")),
            others.clone(),
        ] {
            let line = format!("0::/kubepods/pod{POD}/{mine}/{inner}");
            assert_eq!(ContainerLocation::from_cgroup(&line).as_ref(), Some(&own), "{line}");
        }
        // In the pod's group, but in no container of the runtime's: no location at all.
        let line = format!("0::/kubepods/pod{POD}/mine/pod{OTHER_POD}/{others}");
        assert_eq!(ContainerLocation::from_cgroup(&line), None);
        // Two hierarchies that say different things.
        let lines = format!("2:pids:/kubepods/pod{POD}/{mine}\n1:cpu:/kubepods/pod{OTHER_POD}/{others}");
        assert_eq!(ContainerLocation::from_cgroup(&lines), None);
    }

    #[test]
    fn a_uid_has_two_spellings() {
        assert_eq!(PodUid::parse(POD), PodUid::parse(&POD.replace('-', "_").to_uppercase()));
        assert_ne!(PodUid::parse(POD), PodUid::parse(OTHER_POD));
        assert_eq!(PodUid::parse("pod"), None);
        assert_eq!(PodUid::parse(""), None);
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

    proptest! {
        /// Whatever a container appends below its own group, and whatever it is nested in, the location stays.
        #[test]
        fn what_is_below_a_container_never_matters(
            form in 0_usize..12,
            below in proptest::collection::vec("(pod[0-9a-f-]{36}|[0-9a-f]{64}|crio-[0-9a-f]{64}\\.scope|[ -.0-~]{0,20})", 0..4),
        ) {
            let line = &in_pods()[form];
            let longer = format!("{line}/{}", below.join("/"));
            prop_assert_eq!(ContainerLocation::from_cgroup(&longer), ContainerLocation::from_cgroup(line));
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in "(\\PC|\n|:|/|pod|-|\\.slice|[0-9a-f]{32,64}){0,40}") {
            if let Some(location) = ContainerLocation::from_cgroup(&text) {
                prop_assert!(text.contains(&location.container.to_string()));
            }
        }
    }
}
