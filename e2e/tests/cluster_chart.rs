//! The chart's life on a cluster that decides, but runs no pods.

use std::process::Command;

use chainscope_e2e::cluster::{Level, Setup, programs};
use chainscope_e2e::harness::run;

#[test]
fn an_older_release_is_upgraded_rolled_back_and_uninstalled() {
    let cluster = Setup::new(Level::Control).start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/tests/lifecycle");
    let said = run(Command::new(script)
        .env("HELM", programs().join("helm"))
        .env("KUBECTL", programs().join("kubectl"))
        .env("KUBECONFIG", cluster.kubeconfig()));
    assert!(said.contains("all is well"), "{said}");
}
