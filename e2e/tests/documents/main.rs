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
const DOCUMENTS: [&str; 9] = [
    "README.md",
    "docs/terminal.md",
    "docs/api.md",
    "docs/database.md",
    "docs/tracepoints.md",
    "docs/latency.md",
    "docs/latency-recording.md",
    "docs/kubernetes.md",
    "charts/chainscope/README.md",
];

/// Runs all blocks of commands for a cluster, and fails if a document has others.
const GUIDE: &str = "a cluster: long_cluster_guide";

/// Starts of commands that this test does not run, and the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    ("make demo", "builds the programs; `scenarios demo` runs its last command"),
    ("make test", "runs this test"),
    ("make images", "a release build of minutes; `make e2e-long` runs its images"),
    ("cargo build --release", "a release build of minutes"),
    ("for name in agent operator aggregator", "needs kind"),
    ("helm install chainscope charts/chainscope --namespace chainscope", GUIDE),
    ("helm test chainscope --namespace chainscope", GUIDE),
    ("helm upgrade chainscope charts/chainscope -n chainscope --reset-then-reuse-values", GUIDE),
    ("helm rollback chainscope -n chainscope", GUIDE),
    ("helm uninstall chainscope -n chainscope", GUIDE),
    ("kubectl create namespace chainscope", GUIDE),
    ("kubectl label namespace chainscope pod-security.kubernetes.io/enforce=privileged", GUIDE),
    ("kubectl apply -f - <<END", GUIDE),
    ("kubectl -n tezos create serviceaccount reader", GUIDE),
    ("kubectl -n tezos create rolebinding reader", GUIDE),
    ("kubectl -n chainscope get configmap chainscope-ca", GUIDE),
    ("kubectl -n chainscope port-forward service/chainscope-aggregator 17732 &", GUIDE),
    ("curl --cacert ca.crt", GUIDE),
    ("kubectl delete crd tezosnodes.chainscope.dev nodetraces.chainscope.dev", GUIDE),
    ("kubectl -n chainscope delete pvc -l app.kubernetes.io/instance=chainscope", GUIDE),
    ("kubectl chainscope messages tezos/rolling", GUIDE),
    ("kubectl get tezosnodes -n tezos", GUIDE),
    ("kubectl get nodetraces -n bitcoin", "a cluster: cluster_traces"),
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
