//! `kubectl` against a running cluster.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::Cluster;
use crate::harness::wait::{WAIT_TIMEOUT, until_within};

impl Cluster {
    /// Runs `kubectl` and returns its output; arguments are separated by spaces.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, arguments: &str) -> String {
        crate::harness::run(self.program("kubectl").args(arguments.split_whitespace()))
    }

    /// Whether `kubectl` succeeds.
    #[must_use]
    pub fn try_kubectl(&self, arguments: &str) -> Option<()> {
        self.try_kubectl_output(&arguments.split_whitespace().collect::<Vec<_>>()).map(|_| ())
    }

    /// Runs `kubectl` and returns its output if it succeeds.
    #[must_use]
    pub fn try_kubectl_output(&self, arguments: &[&str]) -> Option<String> {
        let answer = self.program("kubectl").args(arguments).output().ok()?;
        answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).into_owned())
    }

    /// Runs `kubectl` with this standard input; returns its standard output, or on failure its standard error.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn kubectl_with_input(&self, arguments: &str, input: &str) -> Result<String, String> {
        let mut command = self.program("kubectl");
        command.args(arguments.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl");
        let mut stdin = child.stdin.take().expect("piped");
        // It may fail before it has read everything.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("kubectl");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Applies manifests in YAML or JSON.
    ///
    /// # Panics
    /// If the API server rejects them.
    pub fn apply(&self, manifest: &str) {
        self.kubectl_with_input("apply --server-side --force-conflicts -f -", manifest)
            .unwrap_or_else(|error| panic!("cannot apply: {error}\n{manifest}"));
    }

    /// A resource, or a list of resources, as JSON; `None` if it does not exist.
    #[must_use]
    pub fn find(&self, arguments: &str) -> Option<Value> {
        let mut all: Vec<_> = vec!["get", "-o", "json"];
        all.extend(arguments.split_whitespace());
        serde_json::from_str(&self.try_kubectl_output(&all)?).ok()
    }

    /// Waits until `probe` finds something in a resource.
    ///
    /// # Panics
    /// After a timeout.
    pub fn until<T>(&self, what: &str, resource: &str, mut probe: impl FnMut(&Value) -> Option<T>) -> T {
        // Long because Kubernetes, too, starts and ends things on the cores that the tests share.
        until_within(WAIT_TIMEOUT * 3, what, || probe(&self.find(resource)?))
    }

    /// Every request to the API server so far, of a cluster with an [audit log](super::Setup::audit).
    ///
    /// # Panics
    /// If the cluster has none.
    #[must_use]
    pub fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.audit).expect("an audit log: start the cluster with audit()");
        // The last line may be incomplete.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Prints the state of pods and components, for failing tests.
    pub(super) fn describe(&mut self) {
        for host in &self.hosts {
            let Ok(pods) = std::fs::read_dir(host.path("log").join("pods")) else { continue };
            for file in pods.flatten().flat_map(|pod| crate::harness::files_below(&pod.path())) {
                tail_of(&file);
            }
        }
        for (name, child) in &mut self.components {
            if let Ok(Some(status)) = child.try_wait() {
                eprintln!("--- {name} exited: {status}\n{}", self.folder.tail(name, 30));
            }
        }
        for arguments in [
            "get pods --all-namespaces -o wide",
            "get events --all-namespaces --sort-by=.lastTimestamp",
            "get tezosnodes -A -o yaml",
        ] {
            let arguments: Vec<_> = arguments.split(' ').collect();
            if let Some(text) = self.try_kubectl_output(&arguments) {
                let lines: Vec<_> = text.lines().collect();
                let last = lines.get(lines.len().saturating_sub(60)..).unwrap_or_default().join("\n");
                eprintln!("--- kubectl {}\n{last}", arguments.join(" "));
            }
        }
    }
}

fn tail_of(file: &Path) {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // A test that waits makes thousands of requests, and each is in the aggregator's audit log.
    let lines: Vec<_> = text.lines().filter(|line| !line.contains(r#""target":"audit""#)).collect();
    let last = lines.get(lines.len().saturating_sub(25)..).unwrap_or_default().join("\n");
    eprintln!("--- {}\n{last}", file.display());
}
