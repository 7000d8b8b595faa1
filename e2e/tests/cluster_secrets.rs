//! Where secrets are not: a node's key, and the key of a session that follows from it.

use std::collections::BTreeMap;

use chainscope_e2e::cluster::release::pods_of;
use chainscope_e2e::cluster::scene::{NODE, Scene};
use chainscope_e2e::harness::search::{contains, needles};
use chainscope_e2e::harness::{files_below, vectors};

#[test]
fn no_secret_leaves_the_agent_and_none_is_in_a_core_dump() {
    let scene = Scene::new(2, &[]);
    scene.play_session("outgoing-all-messages");
    scene.until_count(38);

    let mut places: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut paths: Vec<String> = ["/nodes", "/openapi.json"].map(str::to_owned).to_vec();
    for path in ["/v2/p2p?limit=1000", "/v2/stats?", "/v3/connections?", "/v3/chunks?limit=1000", "/v3/messages?"] {
        paths.push(format!("{path}&node_name={NODE}"));
    }
    paths.extend((0..38).map(|id| format!("/v2/p2p/{id}?node_name={NODE}")));
    for path in paths {
        let (status, body) = scene.reader.ask(&path).unwrap_or_else(|| panic!("no answer to {path}"));
        assert_eq!(status, 200, "{path}: {body}");
        places.insert(path, body.into_bytes());
    }
    for resource in ["tezosnodes -A", "events -A", "configmaps -A", "pods -A"] {
        let found = scene.cluster.find(resource).unwrap_or_else(|| panic!("no {resource}"));
        places.insert(resource.to_owned(), found.to_string().into_bytes());
    }
    // Agents' spools, journals and kept configurations; volumes, of which one is the aggregator's; everybody's logs.
    for host in 0..2 {
        for folder in ["lib/chainscope", "lib/volumes", "log"] {
            for file in files_below(&scene.host_folder(host, folder)) {
                if let Ok(bytes) = std::fs::read(&file) {
                    places.insert(file.display().to_string(), bytes);
                }
            }
        }
    }
    for part in ["lib/chainscope/", "lib/volumes/", "/log/pods/chainscope_chainscope-agent"] {
        assert!(places.keys().any(|place| place.contains(part)), "nothing of {part} was searched");
    }

    let secret = vectors::json("synthetic-two-way/identity.json");
    let expected = vectors::json("synthetic-two-way/outgoing-all-messages.expected.json");
    for (name, key) in [("secret key", &secret["secret_key"]), ("precomputed key", &expected["precomputed_key"])] {
        for needle in needles(key) {
            for (place, bytes) in &places {
                assert!(!contains(bytes, &needle), "the {name} is in {place}");
            }
        }
    }
    // The search itself works: what is no secret is found by it.
    let public = needles(&secret["public_key"]);
    let found = places.values().any(|bytes| public.iter().any(|needle| contains(bytes, needle)));
    assert!(found, "the search finds nothing");

    assert_no_core_dumps(&scene);
}

/// The agents' and the operator's memory holds identities: it is never written to a disk.
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
    assert_eq!(container.len(), 64, "{container:?} is no container");
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut ours = pids.filter(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(container))
    });
    ours.next().unwrap_or_else(|| panic!("no process of {container}"))
}
