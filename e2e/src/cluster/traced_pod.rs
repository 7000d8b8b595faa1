//! A pod of the fake node, whose commands a test gives.

use std::{fs::File, io::Write as _, path::PathBuf};

use chainscope_testing::fakenode::{Fired, Flavour};
use serde_json::{Value, json};

use super::{Cluster, release::find_condition};
use crate::{harness::wait, image};

/// A pod with the container `node`. The test writes to its standard input and reads its log.
pub struct TracedPod<'a> {
    cluster: &'a Cluster,
    /// The command `logs` of kubectl.
    logs: String,
    input: File,
    /// Lines of the log that belong to earlier commands.
    read: usize,
}

impl<'a> TracedPod<'a> {
    /// Starts `NAME-0` with the label `app: NAME`.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start(cluster: &'a Cluster, namespace: &str, name: &str, flavour: Flavour) -> Self {
        let image = image::traced_reference(flavour.program());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{name}-0"), "namespace": namespace, "labels": {"app": name}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [
                {"name": "node", "image": image, "imagePullPolicy": "Never", "stdin": true},
            ]},
        });
        cluster.apply(&pod.to_string());
        let resource = format!("pod {name}-0 --namespace {namespace}");
        let uid = cluster.until("the pod to be ready", &resource, |found| {
            find_condition(found, "Ready").filter(|ready| ready["status"] == "True")?;
            found["metadata"]["uid"].as_str().map(str::to_owned)
        });
        let logs = format!("logs {name}-0 --namespace {namespace}");
        let mut pod = Self { cluster, logs, input: input_of_pod(&uid, flavour.program()), read: 0 };
        pod.read = wait::until("the node to be ready", || Some(pod.log().len()).filter(|lines| *lines > 0));
        pod
    }

    /// Executes a command of the fake node; returns what it fired.
    ///
    /// # Panics
    /// If the node does not know it.
    pub fn execute(&mut self, command: &str) -> Vec<Fired> {
        let lines = self.lines(command);
        let fired = lines.into_iter().filter(|line| line["event"] == "fired");
        fired.map(|line| serde_json::from_value(line).expect("a firing")).collect()
    }

    /// Whether the semaphore of a tracepoint is raised.
    ///
    /// # Panics
    /// If there is no such tracepoint.
    pub fn is_attached(&mut self, tracepoint: &str) -> bool {
        let lines = self.lines("semaphores");
        let values = lines.iter().find(|line| line["event"] == "semaphores").expect("semaphores");
        values["values"][tracepoint].as_u64().expect("a semaphore") > 0
    }

    fn lines(&mut self, command: &str) -> Vec<Value> {
        self.input.write_all(format!("{command}\n").as_bytes()).expect("the pipe of the container");
        let lines = wait::until(&format!("the end of {command:?}"), || {
            let lines = self.log().split_off(self.read);
            lines.last().is_some_and(|line| line["event"] == "done" || line["event"] == "error").then_some(lines)
        });
        let last = lines.last().expect("the last line");
        assert_eq!(last["event"], "done", "{command}: {last}");
        self.read += lines.len();
        lines
    }

    /// What the node has written so far.
    fn log(&self) -> Vec<Value> {
        self.cluster.kubectl(&self.logs).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// Standard input of a pod's process with this program.
fn input_of_pod(uid: &str, program: &str) -> File {
    let uids = [uid.to_owned(), uid.replace('-', "_")];
    let processes = std::fs::read_dir("/proc").expect("/proc").map(|entry| entry.expect("an entry").path());
    let is_node = |process: &PathBuf| {
        let cgroup = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        uids.iter().any(|uid| cgroup.contains(uid))
            && std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe.ends_with(program))
    };
    let found: Vec<_> = processes.filter(is_node).collect();
    let [process] = &found[..] else { panic!("processes of the node: {found:?}") };
    File::options().append(true).open(process.join("fd/0")).expect("a pipe")
}
