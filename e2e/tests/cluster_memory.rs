//! The memory of a pod's process, by call stack, through the aggregator's Service.

use chainscope_e2e::cluster::scene::{NODE, Scene};
use chainscope_e2e::harness::wait;
use chainscope_testing::tree::check;
use serde_json::Value;

#[test]
fn the_memory_of_a_pod_is_served_to_who_may_read_it() {
    let scene = Scene::new(1, &[]);
    // It notes what it says and hears in a file, whose pages it holds.
    scene.play_load(1_000_000, 100);
    scene.until_count(100);
    assert_eq!(scene.reader.get(&path("pid")), 0, "memory was not asked for");

    // Of a process that runs: what it had before is no stack's, and the sum is the kernel's own.
    scene.cluster.kubectl(r#"patch tezosnode rolling --namespace tezos --type merge --patch {"spec":{"memory":{}}}"#);
    let first = wait::until("a process", || process(&scene, 0));
    wait::until("the kernel's own count", || is_explained(&scene, first));
    assert!(target(&scene, first)["anon"]["beforeAttach"].as_u64() > Some(0), "it ran before");

    // The next one is followed; functions that ask for pages are there by name.
    scene.cluster.kubectl("exec rolling-node-0 --namespace tezos -- killall -9 octez-node");
    let second = wait::until("the next process", || process(&scene, first));
    wait::until("the kernel's own count", || is_explained(&scene, second));
    wait::until("functions of the node", || {
        let tree = scene.reader.get(&path("tree?threshold=0&reverse=true"));
        check(&tree, 0, false);
        let mut names = Vec::new();
        functions(&tree, &mut names);
        names.iter().any(|name| name.contains("chainscope_demo_node")).then_some(())
    });

    let stranger = scene.door.api.with_token(&scene.cluster.token("tezos", "stranger"));
    assert_eq!(stranger.request(&path("tree")).expect("an answer").0, 403);
    assert_eq!(scene.door.api.request(&path("tree")).expect("an answer").0, 401);
}

fn path(what: &str) -> String {
    format!("/nodes/{NODE}/v1/{what}")
}

/// The observed process, if it is another one than that.
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

/// Whether the anonymous memory that is shown is what the kernel counts at this moment.
fn is_explained(scene: &Scene, pid: u64) -> Option<()> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
    let resident: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
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
