//! The log of a pod, through the aggregator's Service: as the node wrote it, redacted, each message once.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use chainscope_e2e::cluster::release::{RELEASE, find_condition, pods_of};
use chainscope_e2e::cluster::scene::{NODE, Scene};
use chainscope_e2e::cluster::{Level, Setup};
use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::{files_below, wait};
use memchr::memmem;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Matches unencrypted secret keys of Tezos.
const KEYS: &str = "edsk[1-9A-HJ-NP-Za-km-z]{50}";
/// P2P messages per second and side.
const RATE: u64 = 50;
/// Between batches of 20 log messages: at most 10,000 a second.
const PAUSE: Duration = Duration::from_millis(2);
/// Length at which containerd splits a line.
const PART: usize = 16 << 10;

#[test]
fn the_log_of_a_pod_is_served_once_in_order_and_redacted() {
    let setup = Setup::new(Level::Hosts(1)).rotate_logs_at("64Ki");
    let scene = Scene::on(setup, &[], |_| {});
    set_patterns(&scene, KEYS);
    scene.play_load(1_000_000, RATE);
    scene.until_count(RATE);
    let mut node = Node::new(&scene);
    node.log(60);
    node.until_served();

    // The agent is killed while the node writes.
    std::thread::scope(|scope| {
        let killing = scope.spawn(|| scene.cluster.kill("agent"));
        while !killing.is_finished() {
            node.log(20);
            std::thread::sleep(PAUSE);
        }
        killing.join().expect("the agent is restarted");
    });
    node.log(20);
    node.until_served();

    let spool = a_file_is_rotated_while_nobody_reads_it(&mut node);
    node.until_served();
    for (file, bytes) in spool {
        // The pattern is in the agent's configuration.
        let mut found = memmem::find_iter(&bytes, b"edsk").filter(|at| bytes.get(at + 4) != Some(&b'['));
        assert_eq!(found.next(), None, "a secret key is in {}", file.display());
    }

    only_readers_of_logs_are_served(&scene);
    nothing_is_recorded_with_an_invalid_pattern(&mut node);
}

/// Without agent and aggregator the node writes until the kubelet has rotated the file twice, and beyond. The agent returns before
/// the aggregator; the result is what it then has on disk.
fn a_file_is_rotated_while_nobody_reads_it(node: &mut Node<'_>) -> Vec<(PathBuf, Vec<u8>)> {
    let scene = node.scene;
    let agents = format!("daemonset {RELEASE}-agent --namespace {RELEASE}");
    let select_hosts = |selector: &str| {
        let patch = format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"nobody":{selector}}}}}}}}}}}"#);
        scene.cluster.kubectl(&format!("patch {agents} --type merge --patch {patch}"));
    };
    select_hosts(r#""has""#);
    scene
        .cluster
        .until("the agent to be gone", &pods_of("agent"), |found| found["items"].as_array()?.is_empty().then_some(()));
    scene.cluster.scale_aggregator(0);

    // The second time, the kubelet compresses the file of the first.
    for _ in 0..2 {
        let (before, keys) = write_to_the_current_file(node);
        let file = wait::until("the file to be rotated", || rotated_files(scene).difference(&before).next().cloned());
        let bytes = std::fs::read(&file).expect("the rotated file");
        assert!(memmem::find(&bytes, b" stdout P ").is_some(), "no line is in parts: {}", file.display());
        assert!(memmem::find(&bytes, b"edsk").is_some(), "no secret key is in {}", file.display());
        assert!(keys.iter().all(|key| memmem::find(&bytes, key.as_bytes()).is_none()), "a secret key is in one part");
    }
    let last = node.log(60);

    select_hosts("null");
    let data = scene.host_folder(0, "lib/chainscope");
    let spool = wait::until("the messages to be in the spool", || {
        let files: Vec<_> = files_below(&data)
            .into_iter()
            .filter_map(|file| std::fs::read(&file).ok().map(|bytes| (file, bytes)))
            .collect();
        files.iter().any(|(_, bytes)| memmem::find(bytes, last.as_bytes()).is_some()).then_some(files)
    });
    scene.cluster.scale_aggregator(1);
    wait::until("the aggregator", || scene.reader.request("/v2/version").filter(|(status, _)| *status == 200));
    spool
}

/// Writes what makes the kubelet rotate the file. Returns the files that were rotated before, and the secret keys.
fn write_to_the_current_file(node: &mut Node<'_>) -> (BTreeSet<PathBuf>, [String; 3]) {
    let scene = node.scene;
    loop {
        let before = rotated_files(scene);
        let first = mark(node.count + 1);
        node.log(20);
        let keys = [(); 3].map(|()| node.log_long());
        let last = mark(node.count);
        let has = |path: &PathBuf, mark: &str| {
            std::fs::read(path).is_ok_and(|bytes| memmem::find(&bytes, mark.as_bytes()).is_some())
        };
        let written = wait::until("the messages to be in a file", || {
            files_below(&log_folder(scene)).into_iter().find(|path| has(path, &last))
        });
        // The kubelet renames a file before it lets the runtime open another: until then messages are added to the renamed one,
        // and if that is while they are written, what is left for the other may be too short for a rotation.
        if !before.contains(&written) && has(&written, &first) {
            return (before, keys);
        }
    }
}

/// The folder of the log of the node's container.
fn log_folder(scene: &Scene) -> PathBuf {
    let pods = std::fs::read_dir(scene.host_folder(0, "log/pods")).expect("a folder of logs");
    let mut pods = pods.map(|pod| pod.expect("a pod").path());
    let pod = pods.find(|pod| pod.to_string_lossy().contains("/tezos_rolling-node-0_")).expect("the pod");
    pod.join("octez-node")
}

/// Rotated log files of the node's container that are not compressed.
fn rotated_files(scene: &Scene) -> BTreeSet<PathBuf> {
    let is_rotated = |path: &PathBuf| {
        path.to_string_lossy().contains("/0.log.") && path.extension().is_some_and(|end| end != "gz" && end != "tmp")
    };
    files_below(&log_folder(scene)).into_iter().filter(is_rotated).collect()
}

fn only_readers_of_logs_are_served(scene: &Scene) {
    let status = |api: &Api, path: &str| api.request(&format!("/nodes/{NODE}/v2/{path}?limit=1")).expect("response").0;
    assert_eq!(status(&scene.client.api, "log"), 401);
    let metadata = json!({"name": "messages", "namespace": "tezos"});
    scene.cluster.apply(
        &json!({"apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
                "rules": [{"apiGroups": ["chainscope.dev"], "resources": ["tezosnodes/messages"], "verbs": ["get"]}],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "messages"},
                "subjects": [{"kind": "ServiceAccount", "name": "stranger", "namespace": "tezos"}],
            },
        ]})
        .to_string(),
    );
    let stranger = scene.client.api.with_token(&scene.cluster.token("tezos", "stranger"));
    wait::until("the role to be in force", || (status(&stranger, "p2p") == 200).then_some(()));
    assert_eq!(status(&stranger, "log"), 403);
}

/// Messages and everything else are still recorded.
fn nothing_is_recorded_with_an_invalid_pattern(node: &mut Node<'_>) {
    let scene = node.scene;
    let rows = scene.reader.log(NODE).len();
    let when_ready_is = |reason: &str| {
        scene.cluster.until(&format!("Ready to be {reason}"), "tezosnode rolling --namespace tezos", |found| {
            let of = |kind| {
                find_condition(found, kind).filter(|one| one["observedGeneration"] == found["metadata"]["generation"])
            };
            // The agent has applied the specification.
            let is_recording = of("Recording")?["status"] == "True";
            (is_recording && of("Ready")?["reason"] == reason).then(|| of("Ready").cloned()).flatten()
        })
    };
    set_patterns(scene, "(");
    let ready = when_ready_is("LogPatternInvalid");
    assert_eq!(ready["status"], "False");
    assert!(ready["message"].as_str().is_some_and(|text| text.contains("unclosed group")), "{ready}");
    node.write(20);
    scene.until_count(scene.count() + 4 * RATE);
    assert_eq!(scene.reader.log(NODE).len(), rows, "log messages were recorded");

    set_patterns(scene, KEYS);
    when_ready_is("Available");
    let last = node.log(20);
    let rows = wait::until("the log to go on", || {
        let rows = scene.reader.log(NODE);
        rows.iter().any(|row| row["message"].as_str().is_some_and(|text| text.contains(&last))).then_some(rows)
    });
    assert!(!Value::from(rows).to_string().contains("edsk"), "a message is not redacted");
}

fn set_patterns(scene: &Scene, pattern: &str) {
    let patch = json!({"spec": {"logs": {"redact": [pattern]}}});
    scene.cluster.kubectl(&format!("patch tezosnode rolling --namespace tezos --type merge --patch {patch}"));
}

/// Level, section and text of a message, as served.
#[derive(Debug, PartialEq)]
struct Message {
    level: &'static str,
    section: &'static str,
    text: String,
}

/// The node, whose log the test writes.
struct Node<'a> {
    scene: &'a Scene,
    /// Standard output of the container.
    output: File,
    /// Messages so far.
    count: usize,
    expected: Vec<Message>,
}

impl<'a> Node<'a> {
    fn new(scene: &'a Scene) -> Self {
        let pod = scene.cluster.find("pod rolling-node-0 --namespace tezos").expect("the pod");
        let uid = pod["metadata"]["uid"].as_str().expect("its uid");
        Self { scene, output: output_of_pod(uid), count: 0, expected: Vec::new() }
    }

    /// Writes messages; returns the mark of the last.
    fn log(&mut self, messages: usize) -> String {
        let expected = self.write(messages);
        self.expected.extend(expected);
        mark(self.count)
    }

    fn write(&mut self, messages: usize) -> Vec<Message> {
        let mut lines = String::new();
        let expected = (0..messages).map(|_| {
            self.count += 1;
            message(self.count, &mut lines)
        });
        let expected = expected.collect();
        self.append(&lines);
        expected
    }

    /// Writes a message that the container runtime splits twice, first in the middle of its secret key, which is returned.
    fn log_long(&mut self) -> String {
        const PREFIX: &str = "Nov 24 13:57:00.000  DEBUG │ ";
        self.count += 1;
        let (mark, key) = (mark(self.count), key(self.count));
        let (before, after) = ("x".repeat(PART - PREFIX.len() - mark.len() - key.len() / 2), "y".repeat(PART));
        let text = |key: &str| format!("{mark}{before}{key} {after}");
        self.append(&format!("{PREFIX}{}\n", text(&key)));
        self.expected.push(Message { level: "Debug", section: "", text: text("[redacted]") });
        key
    }

    /// Writes to the output of the container. (`kubectl exec -i` now and then succeeds without having passed its input on.)
    fn append(&mut self, lines: &str) {
        self.output.write_all(lines.as_bytes()).expect("the pipe to the container runtime");
    }

    /// Waits until the last message is served, and compares all of them.
    fn until_served(&self) {
        let last = mark(self.count);
        let is_last = |row: &Value| row["message"].as_str().is_some_and(|text| text.contains(&last));
        let rows = wait::until_within(wait::WAIT_TIMEOUT * 3, &format!("{last} to be served"), || {
            Some(self.scene.reader.log(NODE)).filter(|rows| rows.iter().any(is_last))
        });
        assert!(rows.iter().enumerate().all(|(n, row)| id(row) == n as u64), "ids are not dense from 0");
        // The container's shell and the simulated node write, too.
        let ours = rows.iter().filter(|row| row["message"].as_str().is_some_and(|text| text.starts_with("message-")));
        let served: Vec<_> = ours.map(|row| (&row["level"], &row["section"], &row["message"])).collect();
        let marks = |texts: &mut dyn Iterator<Item = &str>| texts.map(|text| text[..last.len()].to_owned()).collect();
        let served_marks: Vec<String> = marks(&mut served.iter().filter_map(|row| row.2.as_str()));
        let expected_marks: Vec<String> = marks(&mut self.expected.iter().map(|message| &*message.text));
        let first =
            served_marks.iter().zip(&expected_marks).take_while(|(served, expected)| served == expected).count();
        assert_eq!(served_marks[first..], expected_marks[first..], "from message {first} on");
        for (served, Message { level, section, text }) in served.into_iter().zip(&self.expected) {
            assert_eq!(served, (&Value::from(*level), &Value::from(*section), &Value::from(&**text)));
        }
    }
}

/// Standard output of the first process of a pod's container: the pipe to the container runtime, which the pause container has
/// not.
fn output_of_pod(uid: &str) -> File {
    let uids = [uid.to_owned(), uid.replace('-', "_")];
    let processes = std::fs::read_dir("/proc").expect("/proc").map(|entry| entry.expect("an entry").path());
    let is_output = |process: &PathBuf| {
        let read = |file: &str| std::fs::read_to_string(process.join(file)).unwrap_or_default();
        uids.iter().any(|uid| read("cgroup").contains(uid))
            && read("status").lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
            && std::fs::read_link(process.join("fd/1")).is_ok_and(|file| file.to_string_lossy().starts_with("pipe:"))
    };
    let found: Vec<_> = processes.filter(is_output).collect();
    let [process] = &found[..] else { panic!("the first processes of the pod: {found:?}") };
    File::options().append(true).open(process.join("fd/1")).expect("a pipe")
}

/// The beginning of a message.
fn mark(number: usize) -> String {
    format!("message-{number:05}")
}

/// A secret key.
fn key(number: usize) -> String {
    let digests = [number, number + 1_000_000].map(|seed| Sha256::digest(seed.to_le_bytes()).to_vec());
    format!("edsk{:.50}", bs58::encode(digests.concat()).into_string())
}

/// Appends the lines of a message in the forms of Octez 23.
fn message(number: usize, lines: &mut String) -> Message {
    let (mark, key) = (mark(number), key(number));
    let seconds = format!("{:02}.{:03}", number / 1000 % 60, number % 1000);
    let mut octez = |level: &str, text: &str| {
        for line in text.lines() {
            lines.push_str(&format!("Nov 24 13:56:{seconds} {level:>6} │ {line}\n"));
        }
    };
    let (level, section, text) = match number % 6 {
        0 => {
            let text = format!("{mark} block refused\n  by peer {key}\n  and by another");
            octez("WARN", &text);
            ("Warning", "", text)
        }
        1 => {
            let text = format!("{mark} signs with {key}, then with {key}");
            octez("INFO", &text);
            ("Info", "", text)
        }
        2 => {
            let text = format!("{mark} of a file log: {key}");
            lines.push_str(&format!("<003> 2026-11-24T13:56:{seconds}-00:00 [validator.block] {text}\n"));
            ("Error", "validator.block", text)
        }
        3 => {
            let text = format!("{mark} │ café - p2p: [x]");
            octez("FATAL", &text);
            ("Fatal", "", text)
        }
        _ => {
            let text = format!("{mark} head is now {number}");
            octez("NOTICE", &text);
            ("Notice", "", text)
        }
    };
    Message { level, section, text: text.replace(&key, "[redacted]") }
}
