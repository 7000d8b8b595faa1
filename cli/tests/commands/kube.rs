//! `--kube` and the plugin, with a `kubectl` that records its calls and answers as a cluster would.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
};

use chainscope_aggregator::access::AccessConfig;
use chainscope_proto::v1::LogLevel;
use chainscope_testing::{program, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    chainscope,
    fake::Fake,
    server::{Server, logged},
    tls::write_certificates,
};

/// An aggregator with TLS and tokens, and a `kubectl` that knows it.
struct Cluster {
    folder: TempDir,
    server: Server,
}

const KUBECTL: &str = r#"#!/bin/sh
cd FOLDER
echo "$@" >> calls
case "$*" in
*"get services,statefulsets "*) cat objects ;;
*"get configmap cs-ca --namespace chainscope -o go-template={{index .data \"ca.crt\"}} "*) cat ca.crt ;;
*"config view --minify --raw -o json "*) cat kubeconfig ;;
*"create token "*) head -n 1 issued; sed -i 1d issued ;;
*"port-forward "*) echo $$ > forward.pid; echo "Forwarding from 127.0.0.1:PORT -> 17732"; exec sleep 1000 ;;
*) echo "error: unknown command" >&2; exit 1 ;;
esac
"#;

impl Cluster {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        write_certificates(folder.path());
        fs::write(folder.path().join("tokens"), "5ecret alice *\n").expect("written");
        let mut server = Server::with(|config| {
            config.tls = Some(folder.path().to_owned());
            config.api_tls = true;
            config.access = AccessConfig::TokenFile(folder.path().join("tokens"));
        });
        server.feed(vec![logged(0, LogLevel::Info, "Jul 14 12:02:03.456   INFO │ first")]);
        let cluster = Self { folder, server };
        cluster.write("issued", "5ecret\n5ecret\n");
        cluster.write("objects", &objects(&["--api-tls", "--auth=kubernetes"]).to_string());
        cluster.write("kubeconfig", &kubeconfig(&json!({"token": "5ecret"})).to_string());
        fs::create_dir(cluster.folder.path().join("bin")).expect("made");
        cluster.forward_to(&cluster.port());
        cluster
    }

    /// Makes `kubectl port-forward` reach the server at this port.
    fn forward_to(&self, port: &str) {
        let script = KUBECTL.replace("FOLDER", &self.folder.path().display().to_string()).replace("PORT", port);
        program::script(&self.folder.path().join("bin/kubectl"), &script);
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).expect("written");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).expect("readable")
    }

    fn calls(&self) -> Vec<String> {
        self.read("calls").lines().map(str::to_owned).collect()
    }

    /// A command with this `kubectl` on its PATH.
    fn with_kubectl(&self, mut command: Command) -> Command {
        command.env("PATH", format!("{}:/usr/bin:/bin", self.folder.path().join("bin").display()));
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.with_kubectl(chainscope(arguments)).output().expect("it starts")
    }

    /// Standard error of a command that fails with code 2.
    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    }

    fn port(&self) -> String {
        self.server.url().rsplit_once(':').expect("a port").1.to_owned()
    }

    /// The process of `kubectl port-forward`.
    fn forward(&self) -> Pid {
        wait::until("a forwarded port", || {
            fs::read_to_string(self.folder.path().join("forward.pid")).ok()?.trim().parse().ok().and_then(Pid::from_raw)
        })
    }

    fn forward_ends(&self, pid: Pid) {
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        wait::until("its end", || {
            // It may wait for its new parent to read its exit status.
            fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")).then_some(())
        });
    }
}

fn objects(arguments: &[&str]) -> Value {
    let metadata = json!({"name": "cs-aggregator", "namespace": "chainscope"});
    let volume = json!({"name": "ca", "configMap": {"name": "cs-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}});
    let pod = json!({"containers": [{"name": "aggregator", "args": arguments}], "volumes": [volume]});
    json!({"kind": "List", "items": [
        {"kind": "Service", "metadata": metadata, "spec": {"ports": [{"name": "api", "port": 17732}]}},
        {"kind": "StatefulSet", "metadata": metadata, "spec": {"template": {"spec": pod}}},
    ]})
}

fn kubeconfig(user: &Value) -> Value {
    json!({"current-context": "kind", "users": [{"name": "kind-admin", "user": user}]})
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

const LABELS: &str = "app.kubernetes.io/part-of=chainscope,app.kubernetes.io/component=aggregator";

#[test]
fn the_aggregator_of_a_cluster_is_found_and_reached() {
    let cluster = Cluster::start();
    let arguments = ["nodes", "--context", "kind", "--service-account", "tezos/reader", "-o", "json"];
    let nodes: Value = serde_json::from_str(&text(&cluster.output(&arguments))).expect("JSON");
    assert_eq!(nodes[0]["name"], "9732");
    let port_forward = "port-forward --namespace chainscope --address 127.0.0.1 service/cs-aggregator :17732";
    assert_eq!(
        cluster.calls(),
        [
            format!("--context=kind get services,statefulsets -l {LABELS} --all-namespaces -o json --request-timeout=30s"),
            "--context=kind get configmap cs-ca --namespace chainscope -o go-template={{index .data \"ca.crt\"}} --request-timeout=30s".to_owned(),
            format!("--context=kind {port_forward}"),
            "--context=kind create token reader --namespace tezos --request-timeout=30s".to_owned(),
        ]
    );
    cluster.forward_ends(cluster.forward());

    // The user of the kubeconfig, and the namespace of the installation.
    assert!(text(&cluster.output(&["logs", "--kube", "--namespace", "chainscope"])).ends_with("INFO    first\n"));
    assert!(cluster.calls().iter().any(|call| call.contains(&format!("-l {LABELS} --namespace=chainscope"))));
    assert!(cluster.calls().contains(&"config view --minify --raw -o json --request-timeout=30s".to_owned()));
    // A token of the command line comes first.
    cluster.write("kubeconfig", "{}");
    assert!(cluster.output(&["logs", "--kube", "--token", "5ecret"]).status.success());
    // Flags come before the variables of other flags.
    cluster.write("token", "5ecret\n");
    let token = cluster.folder.path().join("token").display().to_string();
    let mut command = cluster.with_kubectl(chainscope(&["logs", "--kube", "--token-file", &token]));
    command.env("CHAINSCOPE_API", "http://127.0.0.1:9").env("CHAINSCOPE_TOKEN", "other");
    assert!(text(&command.output().expect("it starts")).ends_with("INFO    first\n"));
    assert_eq!(
        chainscope(&["logs", "--kube", "--api", "http://127.0.0.1:9"]).output().expect("it starts").status.code(),
        Some(2)
    );
}

#[test]
fn an_expired_token_is_requested_again() {
    let cluster = Cluster::start();
    cluster.write("issued", "expired\n5ecret\n");
    text(&cluster.output(&["nodes", "--service-account", "reader"]));
    let requested =
        cluster.calls().iter().filter(|call| call.starts_with("create token reader --namespace chainscope")).count();
    assert_eq!(requested, 2);
    cluster.write("issued", "expired\nexpired\n");
    let error = cluster.refusal(&["nodes", "--service-account", "reader"]);
    assert!(error.contains("401"), "{error}");
}

#[test]
fn a_stream_that_ends_with_its_token_goes_on_with_a_new_one() {
    let cluster = Cluster::start();
    let server = Fake::with_expiring_token(|| ());
    cluster.forward_to(server.url.rsplit_once(':').expect("a port").1);
    cluster.write("objects", &objects(&["--auth=kubernetes"]).to_string());
    cluster.write("issued", "old\nnew\n");
    let output = cluster.output(&["logs", "-f", "--service-account", "reader", "-o", "jsonl"]);
    let rows: Vec<Value> =
        String::from_utf8_lossy(&output.stdout).lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    let ids: Vec<&Value> = rows.iter().map(|row| &row["id"]).collect();
    assert_eq!(ids, [1, 2], "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains(": the token has expired; reconnecting\nreconnected\n"), "{errors}");
    assert!(errors.contains("chainscope: the server ended the stream: the end\n"), "{errors}");
    assert_eq!(cluster.calls().iter().filter(|call| call.starts_with("create token reader ")).count(), 2);
}

#[test]
fn the_forwarded_port_is_restored_and_ends_with_the_program() {
    let mut cluster = Cluster::start();
    let mut follow = cluster
        .with_kubectl(chainscope(&["logs", "-f", "--kube", "--token", "5ecret"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(follow.stdout.take().expect("piped")).lines().map(|line| line.expect("a line"));
    assert!(lines.next().expect("a line").ends_with("first"));
    let first = cluster.forward();
    fs::remove_file(cluster.folder.path().join("forward.pid")).expect("removed");
    kill_process(first, Signal::TERM).expect("it runs");
    cluster.forward_ends(first);
    cluster.server.stop();
    cluster.server.resume();
    cluster.server.feed(vec![logged(1, LogLevel::Info, "Jul 14 12:02:04.456   INFO │ second")]);
    assert!(lines.next().expect("a line").ends_with("second"));
    let again = format!("service/cs-aggregator {}:17732", cluster.port());
    assert!(cluster.calls().iter().any(|call| call.ends_with(&again)), "{:?}", cluster.calls());

    let second = cluster.forward();
    follow.kill().expect("it runs");
    follow.wait().expect("it ends");
    cluster.forward_ends(second);
}

#[test]
fn what_is_missing_is_named_with_the_way_out() {
    let cluster = Cluster::start();
    cluster.write("kubeconfig", &kubeconfig(&json!({"client-certificate-data": "x"})).to_string());
    let error = cluster.refusal(&["nodes", "--kube"]);
    assert!(error.contains("its user kind-admin has none\nhint: --service-account NAMESPACE/NAME"), "{error}");
    cluster.write("objects", &objects(&["--auth=token-file"]).to_string());
    let error = cluster.refusal(&["nodes", "--kube"]);
    assert!(error.contains("auth.mode is token-file") && error.contains("hint: --token-file"), "{error}");
    cluster.write("objects", &json!({"kind": "List", "items": []}).to_string());
    let output = cluster.output(&["nodes", "--kube", "--namespace", "other"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.starts_with("chainscope: namespace other of the current context has no aggregator"), "{error}");
    assert!(!cluster.calls().iter().any(|call| call.starts_with("port-forward")), "{:?}", cluster.calls());

    let forbidden = "#!/bin/sh\necho 'Error from server (Forbidden): services is forbidden' >&2\nexit 1\n";
    program::script(&cluster.folder.path().join("bin/kubectl"), forbidden);
    let error = cluster.refusal(&["nodes", "--kube"]);
    assert!(error.contains("services is forbidden\nhint: --namespace NAMESPACE"), "{error}");
    let without = chainscope(&["nodes", "--kube"]).env("PATH", "/nowhere").output().expect("it starts");
    let error = String::from_utf8_lossy(&without.stderr).into_owned();
    assert_eq!(without.status.code(), Some(2));
    assert!(
        error.starts_with("chainscope: cannot start kubectl: ") && error.contains("hint: --kube needs kubectl"),
        "{error}"
    );
}

#[test]
fn a_plugin_of_kubectl_requests_from_the_cluster() {
    let cluster = Cluster::start();
    let plugin = cluster.folder.path().join("kubectl-chainscope");
    symlink(Path::new(env!("CARGO_BIN_EXE_chainscope")), &plugin).expect("linked");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&plugin);
        command.args(arguments).env_clear();
        cluster.with_kubectl(command).output().expect("it starts")
    };
    assert!(text(&run(&["nodes"])).contains("9732"));
    let help = text(&run(&["--help"]));
    assert!(help.contains("Usage: kubectl chainscope ") && !help.contains("  demo  "), "{help}");
    assert!(help.contains("\n  3  latency compare: "), "every exit code: {help}");
    let help = text(&run(&["messages", "--help"]));
    assert!(help.contains("Usage: kubectl chainscope messages"), "{help}");
    assert!(help.contains("\n  kubectl chainscope messages --since 5m\n"), "{help}");
    assert!(!help.contains("\n  chainscope "), "{help}");
    let missing = run(&["logs", "nobody"]);
    let error = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(error.starts_with("kubectl chainscope: ") && error.contains("hint: `kubectl chainscope nodes`"), "{error}");
    // A server of the command line comes first.
    let calls = cluster.calls().len();
    run(&["nodes", "--api", "http://127.0.0.1:9"]);
    assert_eq!(cluster.calls().len(), calls);
}
