//! The command line against the cluster's aggregator, which it finds and reaches by `kubectl`.

use std::process::{Command, Output};

use serde_json::Value;

use super::{Cluster, programs};
use crate::harness::binary;

impl Cluster {
    /// Runs `chainscope` with `--kube` and the token of a service account, `namespace/name`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn chainscope(&self, account: &str, arguments: &[&str]) -> Output {
        let path = format!("{}:/usr/bin:/bin", programs().display());
        let mut command = Command::new(binary("chainscope"));
        command.args(arguments).args(["--kube", "--service-account", account]);
        command.env("KUBECONFIG", self.kubeconfig()).env("PATH", path).output().expect("chainscope starts")
    }

    /// Checks that the command line shows a node with messages to `reader`, and nothing to `stranger`; both are service accounts.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_command_line(&self, node: &str, reader: &str, stranger: &str) {
        let shown = |arguments: &[&str]| {
            let output = self.chainscope(reader, arguments);
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        let nodes: Value = serde_json::from_str(&shown(&["nodes", "-o", "json"])).expect("JSON");
        let is_listed = nodes.as_array().is_some_and(|nodes| nodes.iter().any(|listed| listed["name"] == node));
        assert!(is_listed, "{nodes}");
        assert_eq!(shown(&["messages", node, "--limit", "3", "-o", "jsonl"]).lines().count(), 3);
        assert!(shown(&["connections", node]).contains("OPENED"));
        assert!(shown(&["stats", node]).contains(node));
        let refused = self.chainscope(stranger, &["messages", node]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(error.contains("403") && error.contains("hint: "), "{error}");
    }
}
