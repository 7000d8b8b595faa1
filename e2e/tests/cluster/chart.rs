//! Installation, upgrade, rollback and removal of the chart on a cluster.

use std::process::Command;

use chainscope_e2e::cluster::{Level, Setup, programs};
use chainscope_e2e::harness::{self, run};
use chainscope_e2e::image;

#[test]
fn an_older_release_is_upgraded_rolled_back_and_uninstalled() {
    let images = tempfile::tempdir().expect("a folder for images");
    let archives = image::write_all(&harness::programs(), images.path()).unwrap_or_else(|e| panic!("images: {e:#}"));
    let cluster = Setup::new(Level::Hosts(1)).images(archives).start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/tests/lifecycle");
    let output = run(Command::new(script)
        .args(["--wait", "--timeout", "3m"])
        .env("HELM", programs().join("helm"))
        .env("KUBECTL", programs().join("kubectl"))
        .env("KUBECONFIG", cluster.kubeconfig()));
    assert!(output.contains("all is well"), "{output}");
}
