//! Upgrade from an older release under load, rollback, and upgrade again: sessions go on, only what is sent while no agent runs is
//! missing, and nothing is recorded twice.
//!
//! `CHAINSCOPE_OLDER` is the directory that `scripts/older-release` wrote.

use std::path::{Path, PathBuf};

use chainscope_e2e::cluster::release::RELEASE;
use chainscope_e2e::cluster::scene::{NODE, Scene};
use chainscope_e2e::cluster::{Cluster, Level, Setup};
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::{run, transcript, wait};
use chainscope_e2e::image::{self, REGISTRY};

/// Messages per second and side.
const RATE: u64 = 50;
/// Tag of the older release's images.
const OLDER: &str = "older";
/// Messages of a direction in the second before an agent ends and after its successor is ready.
const EDGE: usize = 2 * RATE as usize;

#[test]
fn sessions_survive_an_upgrade_a_rollback_and_an_upgrade() {
    let older = std::env::var_os("CHAINSCOPE_OLDER").expect("CHAINSCOPE_OLDER: run `make e2e-long`");
    let older = PathBuf::from(older);
    let images = tempfile::tempdir().expect("a folder for images");
    let archives = image::write_tagged(&older, images.path(), OLDER).unwrap_or_else(|e| panic!("images: {e:#}"));
    let scene =
        Scene::installed(Setup::new(Level::Hosts(1)).images(archives), |cluster| install_older(cluster, &older));
    scene.play_load(1_000_000, RATE);
    scene.until_count(20 * RATE);

    let mut away = 0;
    let mut counted = Vec::new();
    for step in [upgrade, rollback, upgrade] {
        let listed = scene.transcript().len();
        step(&scene.cluster);
        away += scene.transcript().len() - listed;
        scene.cluster.condition("tezos", "rolling", "Ready", "True");
        scene.cluster.condition("tezos", "rolling", "Recording", "True");
        let before = scene.count();
        scene.until_more_both_ways(before, 10 * RATE);
        counted.push(before);
    }
    assert!(counted.is_sorted(), "{counted:?}");

    let rows = scene.reader.rows(NODE, "");
    let gaps = transcript::gaps(&scene.reader, NODE, &rows, &scene.transcript());
    eprintln!("{} rows; {away} messages sent during the changes; not recorded: {gaps:?}", rows.len());
    // The transcript has the messages of both directions.
    let most = away / 2 + 3 * EDGE;
    assert!(gaps.iter().all(|gaps| gaps.iter().sum::<usize>() <= most), "more than {most} of a direction: {gaps:?}");
    assert_eq!(scene.reader.connections(NODE).len(), 1, "one session is one connection");
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    let nodes = scene.reader.get("/nodes");
    assert_eq!((&nodes[0]["loss"]["records"], &nodes[0]["loss"]["bytes"]), (&0.into(), &0.into()), "{nodes}");
    scene.cluster.kubectl("delete statefulset rolling-node --namespace tezos");
    let reason = scene.cluster.condition("tezos", "rolling", "Ready", "False");
    assert_eq!(reason, "NoPodsSelected");
    Account::wait_settled(&scene.reader, NODE).assert_conserved();
}

fn install_older(cluster: &Cluster, older: &Path) {
    helm(cluster, &["install", RELEASE, &older.join("chart").to_string_lossy()], &[&format!("image.tag={OLDER}")]);
}

fn upgrade(cluster: &Cluster) {
    helm(cluster, &["upgrade", RELEASE, "charts/chainscope", "--reset-values"], &[]);
    until_image(cluster, env!("CARGO_PKG_VERSION"));
}

fn rollback(cluster: &Cluster) {
    let mut command = cluster.program("helm");
    run(command.args(["rollback", RELEASE, "1", "--namespace", RELEASE, "--wait", "--timeout", "3m"]));
    until_image(cluster, OLDER);
}

/// `helm install` or `helm upgrade`, until every pod is ready.
fn helm(cluster: &Cluster, arguments: &[&str], values: &[&str]) {
    let mut command = cluster.program("helm");
    command.args(arguments).args(["--namespace", RELEASE, "--wait", "--timeout", "3m"]);
    command.args(["--set", &format!("image.registry={REGISTRY}")]);
    for value in values {
        command.args(["--set", value]);
    }
    run(&mut command);
}

/// Waits until every pod of the release runs an image with this tag, and no other pod is left.
fn until_image(cluster: &Cluster, tag: &str) {
    wait::until_within(wait::WAIT_TIMEOUT * 3, &format!("pods with the tag {tag}"), || {
        let pods = cluster.find(&format!("pods --namespace {RELEASE}"))?;
        let pods = pods["items"].as_array().filter(|pods| !pods.is_empty())?;
        let all = pods.iter().all(|pod| {
            let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
            image.ends_with(&format!(":{tag}")) && pod["status"]["containerStatuses"][0]["ready"] == true
        });
        all.then_some(())
    });
}
