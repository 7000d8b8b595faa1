//! The memory of a pod's process, by call stack, through the aggregator's Service.

use chainscope_e2e::cluster::scene::{NODE, Scene};
use chainscope_e2e::harness::wait;
use chainscope_testing::tree::check;
use chainscope_testing::usage;
use serde_json::Value;

#[test]
fn the_memory_of_a_pod_is_served_to_authorized_readers() {
    let scene = Scene::new(1, &[]);
    // It writes a transcript, whose pages are page cache of the process.
    scene.play_load(1_000_000, 100);
    scene.until_count(100);
    assert_eq!(scene.reader.get(&path("pid")), 0, "memory is not enabled");

    // For a running process, earlier memory is attributed to no stack, and the sum matches the kernel's counter.
    scene.cluster.kubectl(r#"patch tezosnode rolling --namespace tezos --type merge --patch {"spec":{"memory":{}}}"#);
    let first = wait::until("a process", || process(&scene, 0));
    wait::until("the kernel's count", || is_explained(&scene, first));
    assert!(target(&scene, first)["anon"]["beforeAttach"].as_u64() > Some(0), "the process was running before");

    // The next process is observed; allocating functions are shown by name.
    scene.cluster.kubectl("exec rolling-node-0 --namespace tezos -- killall -9 octez-node");
    let second = wait::until("the next process", || process(&scene, first));
    wait::until("the kernel's count", || is_explained(&scene, second));
    wait::until("functions of the node", || {
        let tree = scene.reader.get(&path("tree?threshold=0&reverse=true"));
        check(&tree, 0, false);
        let mut names = Vec::new();
        functions(&tree, &mut names);
        names.iter().any(|name| name.contains("chainscope_demo_node")).then_some(())
    });

    let stranger = scene.client.api.with_token(&scene.cluster.token("tezos", "stranger"));
    assert_eq!(stranger.request(&path("tree")).expect("response").0, 403);
    assert_eq!(scene.client.api.request(&path("tree")).expect("response").0, 401);
}

fn path(what: &str) -> String {
    format!("/nodes/{NODE}/v1/{what}")
}

/// The pid of the observed process, if it is not `not`.
fn process(scene: &Scene, not: u64) -> Option<u64> {
    let (status, body) = scene.reader.request(&path("pid"))?;
    assert_eq!(status, 200, "{body}");
    body.parse().ok().filter(|pid| ![0, not].contains(pid))
}

fn target(scene: &Scene, pid: u64) -> Value {
    let targets = scene.reader.get(&path("targets"));
    let found = targets.as_array().and_then(|all| all.iter().find(|one| one["pid"] == pid));
    found.cloned().unwrap_or_else(|| panic!("{pid} is not among {targets}"))
}

/// Whether the reported anonymous memory equals the kernel's current count.
fn is_explained(scene: &Scene, pid: u64) -> Option<()> {
    let resident = usage::memory(u32::try_from(pid).expect("a process id"), "RssAnon") >> 10;
    let shown = target(scene, pid);
    let anon = &shown["anon"];
    let sum = anon["attributed"].as_u64()? + anon["beforeAttach"].as_u64()?;
    (sum == resident && anon["unattributed"] == 0).then_some(())
}

fn functions(node: &Value, names: &mut Vec<String>) {
    names.extend(node["name"]["functionName"].as_str().map(str::to_owned));
    for child in node["frames"].as_array().into_iter().flatten() {
        functions(child, names);
    }
}
