//! The commands of docs/kubernetes.md, of docs/terminal.md in a cluster, of the README's section on Kubernetes and of the notes that
//! `helm install` prints, exactly as printed, in an installed cluster. Left out are those that build images or load them into clusters.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use chainscope_e2e::cluster::pki::CertificateAuthority;
use chainscope_e2e::cluster::release::RELEASE;
use chainscope_e2e::cluster::{Cluster, Level, Setup, programs};
use chainscope_e2e::harness::document::{Document, assert_has_columns};
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::{self, binary, run, wait};
use chainscope_e2e::image;
use serde_json::Value;
use tempfile::TempDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The pods, as tezos-k8s creates them.
const PODS: &str = include_str!("../manifests/octez.yaml");

#[test]
fn commands_of_guide_and_notes_work_as_printed() {
    let images = tempfile::tempdir().expect("a folder for images");
    let archives = image::write_all(&harness::programs(), images.path()).unwrap_or_else(|e| panic!("images: {e:#}"));
    let cluster = Setup::new(Level::Hosts(1)).images(archives).start();
    let user = User::new(&cluster);
    let guide = Document::read("docs/kubernetes.md");
    cluster.kubectl("create namespace tezos");

    let installed = user.shell(guide.block("helm install chainscope"));
    cluster.apply(PODS);
    let notes = commands_of_notes(&installed);
    assert!(notes.contains("kubectl -n chainscope rollout status daemonset/chainscope-agent"), "{notes}");
    let (until_recording, read) =
        notes.split_at(notes.find("kubectl -n chainscope port-forward").expect("a forwarder"));
    user.shell(until_recording);
    wait::until("messages", || {
        cluster.metric("aggregator", "chainscope_messages_stored_total").filter(|stored| *stored >= 5.0)
    });
    assert_is_page(&user.shell(read));

    assert_has_columns(
        &user.shell("kubectl get tezosnodes -n tezos"),
        guide.block("$ kubectl get tezosnodes -n tezos"),
    );

    // The guide's own commands, for an account that the notes have created already.
    cluster.kubectl("delete serviceaccount reader --namespace tezos");
    cluster.kubectl("delete rolebinding reader --namespace tezos");
    cluster.apply(guide.block("metadata: {name: rolling, namespace: tezos}"));
    assert_is_page(&user.shell(guide.block("create rolebinding reader")));

    cluster.kubectl(r#"patch tezosnode rolling --namespace tezos --type merge --patch {"spec":{"logs":{}}}"#);
    let (terminal, readme) = (Document::read("docs/terminal.md"), Document::read("README.md"));
    for command in [guide.block("--live --kube"), terminal.block("chainscope nodes --kube")].concat().lines() {
        user.command_line(command);
    }
    let plugin = user.shell(terminal.block("kubectl-chainscope"));
    assert!(plugin.contains("connection"), "{plugin}");
    // The user of the context has a client certificate and no token.
    let token = "export CHAINSCOPE_TOKEN=$(kubectl -n tezos create token reader)";
    let plugin = user.shell(&format!("{token}\n{}", readme.block("kubectl chainscope nodes")));
    assert!(plugin.contains("tezos/rolling"), "{plugin}");

    commands_of_troubleshooting_work_as_printed(&user, &guide, &installed);
    a_ca_whose_secret_is_emptied_is_replaced(&cluster, &user, &guide);
    notes_of_other_values_work_as_printed(&cluster, &user);

    user.shell(guide.block("operator.secretNamespaces"));
    user.shell(guide.block("helm rollback"));
    user.shell(guide.block("kubectl delete crd"));
    assert!(cluster.find("crd tezosnodes.chainscope.dev").is_none());

    // Without Helm.
    user.shell(guide.block("deploy/manifests/chainscope.yaml"));
    for workload in
        ["daemonset/chainscope-agent", "deployment/chainscope-operator", "statefulset/chainscope-aggregator"]
    {
        cluster.kubectl(&format!("rollout status {workload} --namespace {RELEASE} --timeout=3m"));
    }
    cluster.kubectl("delete --ignore-not-found --filename deploy/manifests/chainscope.yaml");

    // The README's commands, which create the namespace by themselves.
    let (_, install) =
        readme.block("helm install chainscope").split_once("done\n").expect("commands after the images' loop");
    user.shell(install);
    assert!(cluster.find("tezosnode rolling --namespace tezos").is_some());

    // Prompts (`$`) show what is printed. The others build images and load them into clusters that are not here.
    let unused: Vec<&str> = [&guide, &terminal, &readme].into_iter().flat_map(Document::unused).collect();
    let of_cluster = |block: &&str| ["helm ", "kubectl", "--kube"].iter().any(|word| block.contains(word));
    let unused: Vec<&str> = unused.into_iter().filter(of_cluster).collect();
    assert!(unused.is_empty(), "not run: {unused:#?}");
}

/// The commands of the guide that only show something.
fn commands_of_troubleshooting_work_as_printed(user: &User, guide: &Document, notes: &str) {
    let shown = [
        ("kubectl explain tezosnode.spec", "podSelector"),
        ("describe tezosnode", "ProcessRunning"),
        ("get pods --show-labels", "appType=octez-node"),
        ("-n tezos describe pods", "rolling-node-0"),
        ("get pods -o wide", "chainscope-agent-"),
        ("describe daemonset", "chainscope-agent"),
        ("kubectl auth can-i", "yes"),
    ];
    for (command, expected) in shown {
        let printed = user.shell(guide.block(command));
        assert!(printed.contains(expected), "{command}: {printed}");
    }
    let named = format!("`{}`", guide.block("describe tezosnode").trim_end());
    assert!(notes.contains(&named), "the notes name another command than {named}: {notes}");
}

/// The certificate of the API is signed by the new CA, and an agent that restarts trusts it.
fn a_ca_whose_secret_is_emptied_is_replaced(cluster: &Cluster, user: &User, guide: &Document) {
    let config_map = format!("configmap {RELEASE}-ca --namespace {RELEASE}");
    let bundle = |found: &Value| found["data"]["ca.crt"].as_str().map(str::to_owned);
    let before = cluster.until("the CA bundle", &config_map, bundle);
    user.shell(guide.block("patch secret chainscope-ca"));
    cluster.until("the bundle of another CA", &config_map, |found| bundle(found).filter(|bundle| *bundle != before));
    // The kubelet updates the files of the pods.
    wait::until_within(wait::WAIT_TIMEOUT * 3, "an API that the new CA certifies", || {
        cluster.chainscope("tezos/reader", &["nodes"]).status.success().then_some(())
    });
    cluster.kill("agent");
    wait::until_within(wait::WAIT_TIMEOUT * 3, "an agent that trusts the operator", || {
        cluster.metric("agent", "chainscope_agent_operator_connected").filter(|connected| *connected >= 1.0)
    });
}

/// The commands that read messages, of the notes that other values print.
fn notes_of_other_values_work_as_printed(cluster: &Cluster, user: &User) {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = CertificateAuthority::new(folder.path());
    for component in ["operator", "aggregator"] {
        let service = format!("{RELEASE}-{component}.{RELEASE}.svc");
        cluster.apply_certificate(component, &ca.server(component, &[&service, "localhost"]));
    }
    let certificate = ca.own().certificate;
    cluster.kubectl(&format!(
        "create secret generic given-ca --namespace {RELEASE} --from-file ca.crt={}",
        certificate.display()
    ));
    let mut create = cluster.program("kubectl");
    create.args(["create", "secret", "generic", "readers", "--namespace", RELEASE]);
    run(create.args(["--from-literal", "tokens=secret-token-of-alice alice tezos/*"]));

    let variants: [(&[&str], &str); 5] = [
        (&["auth.mode=none"], "every client that can connect"),
        (&["certificates.apiTls=false"], "http://localhost"),
        (&["auth.mode=token-file", "auth.tokenFile.secretName=readers"], "read -rsp"),
        (&["rbac.userRoles=false"], "create role reader"),
        (
            &[
                "certificates.mode=secret",
                "certificates.secret.operator=given-operator",
                "certificates.secret.aggregator=given-aggregator",
                "certificates.ca.name=given-ca",
                "certificates.ca.kind=Secret",
            ],
            "base64 -d",
        ),
    ];
    for (values, expected) in variants {
        for what in ["serviceaccount", "rolebinding", "role"] {
            cluster.kubectl(&format!("delete {what} reader --namespace tezos --ignore-not-found"));
        }
        let values: String = values.iter().map(|value| format!(" --set {value}")).collect();
        let upgrade = format!(
            "helm upgrade {RELEASE} charts/chainscope -n {RELEASE} --reset-values --set image.registry=localhost{values} \
             --wait --timeout 3m"
        );
        let printed = user.shell(&upgrade);
        assert!(printed.contains(expected), "{values}: {printed}");
        let notes = commands_of_notes(&printed);
        let (_, read) = notes.split_at(notes.find("kubectl -n chainscope port-forward").expect("a forwarder"));
        assert_is_page(&user.shell_with_input(read, "secret-token-of-alice\n"));
    }
    for what in ["serviceaccount", "rolebinding"] {
        cluster.kubectl(&format!("delete {what} reader --namespace tezos"));
    }
    user.shell(&format!(
        "helm upgrade {RELEASE} charts/chainscope -n {RELEASE} --reset-values --set image.registry=localhost --wait --timeout 3m"
    ));
}

/// The API's page of messages, at the end of what a shell printed.
fn assert_is_page(printed: &str) {
    let page = printed.lines().rfind(|line| line.starts_with('[')).unwrap_or_else(|| panic!("no page: {printed}"));
    let page: Value = serde_json::from_str(page).unwrap_or_else(|e| panic!("{e}: {page}"));
    let rows = page.as_array().map_or(0, Vec::len);
    assert_eq!(rows, 5, "{page}");
}

/// The indented lines of the notes.
fn commands_of_notes(printed: &str) -> String {
    let (_, notes) = printed.split_once("NOTES:\n").unwrap_or_else(|| panic!("no notes: {printed}"));
    let (notes, _) = notes.split_once("For troubleshooting").expect("the end of the notes");
    notes.lines().filter_map(|line| line.strip_prefix("     ")).collect::<Vec<_>>().join("\n")
}

/// A user of the cluster with a home directory, `kubectl`, `helm` and `chainscope`, in a checkout of the project.
struct User {
    home: TempDir,
    kubeconfig: PathBuf,
}

impl User {
    fn new(cluster: &Cluster) -> Self {
        let home = tempfile::tempdir().expect("a home directory");
        for folder in ["charts", "deploy"] {
            symlink(Path::new(ROOT).join(folder), home.path().join(folder)).expect("a link to a folder");
        }
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).expect("a directory");
        for program in [programs().join("kubectl"), programs().join("helm"), binary("chainscope")] {
            symlink(&program, bin.join(program.file_name().expect("a name"))).expect("a link to a program");
        }
        Self { home, kubeconfig: cluster.kubeconfig().to_owned() }
    }

    fn bash(&self, script: &str) -> Command {
        let home = self.home.path().display();
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(self.home.path());
        command.env("HOME", self.home.path()).env("KUBECONFIG", &self.kubeconfig);
        command.env("PATH", format!("{home}/bin:{home}/.local/bin:/usr/bin:/bin"));
        command
    }

    /// Runs commands to their end and returns what they print. Programs that they start in the background end with them.
    fn shell(&self, commands: &str) -> String {
        self.shell_with_input(commands, "")
    }

    fn shell_with_input(&self, commands: &str, input: &str) -> String {
        let mut script = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned();
        for line in commands.lines() {
            // The forwarder's own output would keep the pipe open.
            let line = line.strip_suffix(" &").map_or(line.to_owned(), |line| format!("{line} >/dev/null &"));
            script.push_str(&line);
            script.push('\n');
        }
        let file = self.home.path().join("input");
        std::fs::write(&file, input).expect("the input");
        run(self.bash(&script).stdin(File::open(&file).expect("the input")))
    }

    /// Runs a command of the command line; one that follows a node is ended after its first line, and one that needs a terminal gets one.
    fn command_line(&self, command: &str) {
        if command.contains(" --live ") {
            let screen = self.home.path().join("screen");
            let script = format!("exec script --quiet --flush --return --command '{command}' screen");
            let program = Program::start(command, &mut self.bash(&script));
            wait::until("the node on the screen", || {
                let screen = std::fs::read(&screen).ok()?;
                String::from_utf8_lossy(&screen).contains("tezos/rolling").then_some(())
            });
            drop(program.kill());
        } else if command.contains(" -f ") {
            let program = Program::start(command, &mut self.bash(&format!("exec {command}")));
            program.wait_stdout("line", |lines| (!lines.is_empty()).then_some(()));
            drop(program.kill());
        } else {
            let output = self.shell(command);
            assert!(output.contains("tezos/rolling"), "{command}: {output}");
        }
    }
}
