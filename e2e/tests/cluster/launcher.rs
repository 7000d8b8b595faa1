//! The cluster launcher: each level starts, and leaves nothing behind.

use chainscope_e2e::cluster::{Level, Setup};
use serde_json::json;

#[test]
fn an_api_server_responds_and_has_an_audit_log() {
    let cluster = Setup::new(Level::Api).audit().start();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "first"}});
    cluster.apply(&namespace.to_string());
    let found = cluster.find("namespace first").expect("the namespace");
    assert_eq!(found["metadata"]["name"], "first");
    assert!(cluster.kubectl_with_input("apply -f -", "apiVersion: v1\nkind: Nonsense\n").is_err());
    let audit = cluster.audit();
    let by_us = audit.iter().any(|e| e["user"]["username"] == "admin" && e["objectRef"]["name"] == "first");
    assert!(by_us, "{} requests, none of this test", audit.len());

    // Another cluster at the same time is independent of the first.
    let other = Setup::new(Level::Control).start();
    assert!(other.find("namespace first").is_none());
    let folder = other.folder().to_owned();
    drop(other);
    assert!(!folder.exists(), "{} is left", folder.display());
    assert!(cluster.find("namespace first").is_some());
}
