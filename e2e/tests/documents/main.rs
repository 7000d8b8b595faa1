//! Every command of the documents about one machine, as printed: run by a scene of this test, or named in [`ELSEWHERE`]. What a
//! cluster is needed for is run by `long_cluster_guide`.

mod latency;
mod node;
mod security;
mod trace;
mod user;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use chainscope_e2e::harness::document::Document;

/// The documents.
const DOCUMENTS: [&str; 10] = [
    "README.md",
    "docs/terminal.md",
    "docs/api.md",
    "docs/database.md",
    "docs/tracepoints.md",
    "docs/latency.md",
    "docs/latency-recording.md",
    "docs/kubernetes.md",
    "charts/chainscope/README.md",
    "charts/chainscope/templates/NOTES.txt",
];

/// Runs all blocks of commands for a cluster, and fails if a document has others.
const GUIDE: &str = "a cluster: long_cluster_guide";

/// Starts of commands that this test does not run, and the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    ("make demo", "builds the programs; `scenarios demo` runs its last command"),
    ("make test", "runs this test"),
    ("make images", "a release build of minutes; `make e2e-long` runs its images"),
    ("cargo build --release", "a release build of minutes"),
    (
        "install target/release/chainscope /usr/local/bin/",
        "changes the system; here the program is in a directory of the user",
    ),
    ("for name in agent operator aggregator; do kind load image-archive", "needs kind"),
    ("k3d image import", "needs k3d"),
    ("for name in agent operator aggregator; do minikube image load", "needs minikube"),
    ("for name in agent operator aggregator; do skopeo copy", "needs a registry"),
    (
        "for name in agent operator aggregator; do ctr -n k8s.io images import",
        "the hosts of each cluster import images by it",
    ),
    ("docker load --input target/images/chainscope.tar", "needs docker"),
    ("docker run --rm --privileged --pid=host localhost/chainscope", "needs docker; `scenarios demo` runs its program"),
    ("helm install chainscope charts/chainscope --namespace chainscope", GUIDE),
    ("helm test chainscope --namespace chainscope", GUIDE),
    ("helm upgrade chainscope charts/chainscope -n chainscope --reset-then-reuse-values", GUIDE),
    ("helm rollback chainscope -n chainscope", GUIDE),
    ("helm uninstall chainscope -n chainscope", GUIDE),
    ("kubectl create namespace chainscope", GUIDE),
    ("kubectl label namespace chainscope pod-security.kubernetes.io/enforce=privileged", GUIDE),
    ("kubectl apply -f - <<END", GUIDE),
    ("kubectl apply --server-side -f deploy/manifests/chainscope.yaml", GUIDE),
    ("kubectl explain tezosnode.spec --recursive", GUIDE),
    ("kubectl -n tezos create serviceaccount reader", GUIDE),
    ("kubectl -n tezos create rolebinding reader", GUIDE),
    ("kubectl -n chainscope get configmap chainscope-ca", GUIDE),
    ("kubectl -n chainscope port-forward service/chainscope-aggregator 17732 &", GUIDE),
    ("curl --retry 9 --retry-connrefused --cacert ca.crt", GUIDE),
    ("kubectl auth can-i get tezosnodes.chainscope.dev --subresource=messages -n tezos", GUIDE),
    ("kubectl -n chainscope patch secret chainscope-ca", GUIDE),
    ("kubectl -n tezos describe tezosnode rolling", GUIDE),
    ("kubectl -n tezos get pods --show-labels", GUIDE),
    ("kubectl -n tezos describe pods", GUIDE),
    ("kubectl -n chainscope get pods -o wide", GUIDE),
    ("kubectl -n chainscope describe daemonset", GUIDE),
    ("kubectl rollout undo", "names a command, without what it undoes"),
    ("kubectl delete crd tezosnodes.chainscope.dev nodetraces.chainscope.dev", GUIDE),
    ("kubectl -n chainscope delete pvc -l app.kubernetes.io/instance=chainscope", GUIDE),
    ("kubectl chainscope messages tezos/rolling", GUIDE),
    ("kubectl chainscope nodes", GUIDE),
    ("kubectl get tezosnodes -n tezos", GUIDE),
    ("kubectl get nodetraces -n bitcoin", "a cluster: cluster traces"),
    ("mkdir -p ~/.local/bin", GUIDE),
    ("ln -s \"$(command -v chainscope)\" ~/.local/bin/kubectl-chainscope", GUIDE),
    ("chainscope nodes --kube", GUIDE),
    ("chainscope logs tezos/rolling -f --kube", GUIDE),
    ("chainscope messages tezos/rolling --live --kube", GUIDE),
];

/// How a command is run, and what shows that it works.
enum Outcome {
    /// It ends by itself with this code, and its output contains this.
    Ends(i32, &'static str),
    /// It goes on until its output contains this, and succeeds when it is interrupted.
    Interrupted(&'static str),
    /// It goes on until its output contains this, and is killed.
    Follows(&'static str),
    /// As `Follows`, in a terminal.
    OnTerminal(&'static str),
    /// It goes on until it has written to this file, and succeeds when it is interrupted.
    Writes(&'static str),
}

/// Commands of the documents that one fixture serves, in the order of the documents.
struct Scene {
    /// What is different on this machine: numbers of processes, files, names.
    substitutions: Vec<(&'static str, String)>,
    /// Starts of commands.
    outcomes: &'static [(&'static str, Outcome)],
}

/// Sets it when it is dropped, so that the threads of a scene end, also of one that fails.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// All commands, with their documents.
fn commands() -> Vec<(&'static str, String)> {
    let of = |path: &'static str| Document::read(path).commands().into_iter().map(move |command| (path, command));
    DOCUMENTS.into_iter().flat_map(of).collect()
}

/// The longest of these starts that a command has, with or without `sudo`.
fn longest_start<'a>(command: &str, starts: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let command = command.strip_prefix("sudo ").unwrap_or(command);
    starts.filter(|start| command.starts_with(start)).max_by_key(|start| start.len())
}

#[test]
fn every_command_is_run_or_has_a_reason_not_to_be() {
    let run = [
        node::SERVER,
        node::OUTCOMES,
        node::DATABASE,
        trace::OUTCOMES,
        trace::STORED,
        latency::OUTCOMES,
        latency::STORED,
    ];
    let run = run.into_iter().flatten().map(|(start, _)| *start);
    let mut unused: BTreeSet<&str> = run.chain(ELSEWHERE.iter().map(|(start, _)| *start)).collect();
    let starts = unused.clone();
    for (path, command) in commands() {
        let start = longest_start(&command, starts.iter().copied());
        unused.remove(start.unwrap_or_else(|| panic!("{path}: {command}: add it to a scene or to ELSEWHERE")));
    }
    assert!(unused.is_empty(), "no document has {unused:?}");
}

#[test]
fn images_of_the_guide_have_the_version_of_the_chart() {
    let chart = include_str!("../../../charts/chainscope/Chart.yaml");
    let version = chart.lines().find_map(|line| line.strip_prefix("appVersion: ")).expect("a version");
    let tag = format!(":{version}");
    let guide = Document::read("docs/kubernetes.md").commands();
    let named = ["skopeo copy", "docker run"].map(|program| guide.iter().find(|command| command.contains(program)));
    for command in named {
        let command = command.expect("a command that names images by their version");
        assert!(command.contains(&tag), "{command}: the version is {version}");
    }
}
