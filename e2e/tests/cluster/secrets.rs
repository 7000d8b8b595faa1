//! A node's secret key and the shared key of its session are in no output.

use chainscope_e2e::cluster::release::{find_condition, pods_of};
use chainscope_e2e::cluster::scene::{NODE, Scene, node_trace};
use chainscope_e2e::harness::files_below;
use chainscope_e2e::harness::search::{Places, assert_no_secret};
use serde_json::json;

/// Messages of the session in both directions.
const SESSION: u64 = 38;
/// Directories of a host: data of agents; volumes, of which one is the aggregator's; logs of all pods.
const FOLDERS: [&str; 3] = ["lib/chainscope", "lib/volumes", "log"];
/// Paths whose files contain the node's name, to check the search itself.
const NAMED: [&str; 3] = ["lib/chainscope/", "lib/volumes/", "/log/pods/chainscope_chainscope-agent"];

#[test]
fn no_secret_leaves_the_agent_and_none_is_in_a_core_dump() {
    let scene = Scene::new(2, &["operator.secretNamespaces={tezos}"]);
    scene.play_session("outgoing-all-messages");
    scene.until_count(SESSION);
    // The same session again, decrypted with the identity of a Secret.
    let cluster = &scene.cluster;
    let vectors = "vectors/tezos/synthetic-two-way/identity.json";
    cluster.kubectl(&format!("create secret generic keys --namespace tezos --from-file identity.json={vectors}"));
    cluster.kubectl(
        r#"patch tezosnode rolling --namespace tezos --type merge --patch {"spec":{"identity":{"secretRef":{"name":"keys"}}}}"#,
    );
    cluster.kubectl("delete pod --namespace tezos --selector app=peer");
    cluster.kubectl("delete pod --namespace tezos rolling-node-0");
    scene.until_count(2 * SESSION);
    cluster.condition("tezos", "rolling", "IdentityResolved", "True");
    // The operator's permission for the status of a NodeTrace is used as well.
    let labels = json!({"app": "rolling-node"});
    cluster.apply(&node_trace("tezos", "rolling", &labels, &["net:*"]).to_string());
    cluster.until("a status", "nodetrace rolling --namespace tezos", |found| find_condition(found, "Ready").map(drop));
    cluster.assert_permissions_are_used();

    assert_no_secret(&everything_written(&scene), &NAMED.map(|part| (part, NODE)));
    assert_no_core_dumps(&scene);
}

/// Responses of the API, resources, and files of all hosts, by path.
fn everything_written(scene: &Scene) -> Places {
    let mut places = Places::new();
    let mut paths: Vec<String> = ["/nodes", "/openapi.json"].map(str::to_owned).to_vec();
    for path in ["/v2/p2p?limit=1000", "/v2/stats?", "/v3/connections?", "/v3/chunks?limit=1000", "/v3/messages?"] {
        paths.push(format!("{path}&node_name={NODE}"));
    }
    paths.extend((0..scene.count()).map(|id| format!("/v2/p2p/{id}?node_name={NODE}")));
    for path in paths {
        let (status, body) = scene.reader.request(&path).unwrap_or_else(|| panic!("no response to {path}"));
        assert_eq!(status, 200, "{path}: {body}");
        places.insert(path, body.into_bytes());
    }
    for resource in ["tezosnodes -A", "events -A", "configmaps -A", "pods -A"] {
        let found = scene.cluster.find(resource).unwrap_or_else(|| panic!("no {resource}"));
        places.insert(resource.to_owned(), found.to_string().into_bytes());
    }
    for host in 0..2 {
        for folder in FOLDERS {
            for file in files_below(&scene.host_folder(host, folder)) {
                if let Ok(bytes) = std::fs::read(&file) {
                    places.insert(file.display().to_string(), bytes);
                }
            }
        }
    }
    places
}

/// Agents and operator hold identities in memory: their core dumps are disabled.
fn assert_no_core_dumps(scene: &Scene) {
    for component in ["agent", "operator"] {
        let pods = scene.cluster.find(&pods_of(component)).expect("pods");
        let pods = pods["items"].as_array().expect("a list");
        assert!(!pods.is_empty(), "no {component}");
        for pod in pods {
            let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
            let id = id.trim_start_matches("containerd://");
            let pid = process_of(id);
            let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
            let line = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
            let words: Vec<_> = line.split_whitespace().collect();
            assert_eq!(words.get(4..6), Some(&["0", "0"][..]), "{component}: {line}");
        }
    }
}

/// The process of a container.
fn process_of(container: &str) -> u32 {
    assert_eq!(container.len(), 64, "{container:?} is not the id of a container");
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut ours = pids.filter(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(container))
    });
    ours.next().unwrap_or_else(|| panic!("no process of {container}"))
}
