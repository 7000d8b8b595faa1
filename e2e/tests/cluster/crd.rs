//! The CRDs on a real API server, which accepts them and validates the resources of a table for each.

use chainscope_e2e::cluster::{Cluster, Level, Setup};
use chainscope_e2e::harness::wait;
use serde::Deserialize;
use serde_json::{Value, json};

/// A row of a table in `operator/tests/crd`; the fields are described in `tezosnodes.yaml`.
#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    resource: Value,
    refused: Option<Refused>,
}

#[derive(Debug, Deserialize)]
struct Refused {
    says: String,
}

fn read(path: &str) -> String {
    let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn apply_crd(cluster: &Cluster, resource: &str) {
    cluster.apply(&read(&format!("operator/crd/{resource}.chainscope.dev.yaml")));
    cluster.until("the CRD to be established", &format!("crd {resource}.chainscope.dev"), |found| {
        let conditions = found["status"]["conditions"].as_array()?;
        let is = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
        let not = |kind: &str| conditions.iter().all(|c| c["type"] != kind || c["status"] != "True");
        assert!(not("NonStructuralSchema"), "{conditions:?}");
        is("Established").then_some(())
    });
    // The discovery endpoint lists the resource later than `Established`.
    wait::until("the resource to be served", || cluster.try_kubectl(&format!("get {resource}")));
}

#[test]
fn the_tables_hold_on_a_real_api_server() {
    let cluster = Setup::new(Level::Api).start();
    for (kind, resource, least) in [("TezosNode", "tezosnodes", 40), ("NodeTrace", "nodetraces", 25)] {
        apply_crd(&cluster, resource);
        check_table(&cluster, kind, resource, least);
    }
}

fn check_table(cluster: &Cluster, kind: &str, resource: &str, least: usize) {
    let table = read(&format!("operator/tests/crd/{resource}.yaml"));
    let cases: Vec<Case> = serde_saphyr::from_str(&table).expect("the table");
    assert!(cases.len() >= least, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let mut resource = case.resource.clone();
        resource["apiVersion"] = json!("chainscope.dev/v1alpha1");
        resource["kind"] = json!(kind);
        if resource.get("metadata").is_none() {
            resource["metadata"] = json!({"name": "case"});
        }
        let answer =
            cluster.kubectl_with_input("create --dry-run=server --validate=strict -f -", &resource.to_string());
        let as_expected = match (&case.refused, &answer) {
            (None, Ok(_)) => true,
            (Some(refused), Err(error)) => error.contains(&refused.says),
            _ => false,
        };
        if !as_expected {
            wrong.push(format!("{}: expected {:?}, was {answer:?}", case.name, case.refused));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn a_resource_is_shown_and_explained() {
    let cluster = Setup::new(Level::Api).start();
    apply_crd(&cluster, "tezosnodes");
    // The OpenAPI schema is published later than the resource.
    let explained = wait::until("the fields to be explained", || {
        cluster.try_kubectl_output(&["explain", "tezosnode.spec", "--recursive"])
    });
    for field in ["podSelector", "identity", "secretRef", "logs", "redact", "retention", "aliases"] {
        assert!(explained.contains(field), "{field} is not explained:\n{explained}");
    }
    cluster.apply(
        &json!({
            "apiVersion": "chainscope.dev/v1alpha1", "kind": "TezosNode",
            "metadata": {"name": "rolling", "namespace": "default"}, "spec": {},
        })
        .to_string(),
    );
    let stored = cluster.find("tzn rolling").expect("the short name");
    assert_eq!(stored["spec"]["podSelector"]["matchLabels"]["appType"], "octez-node", "{stored}");
    let table = cluster.kubectl("get tezosnodes");
    for column in ["PODS", "RECORDING", "AGE"] {
        assert!(table.contains(column), "no column {column}:\n{table}");
    }
    // A status is written through its subresource only.
    let status = json!({
        "apiVersion": "chainscope.dev/v1alpha1", "kind": "TezosNode",
        "metadata": {"name": "rolling", "namespace": "default"}, "spec": {}, "status": {"observedGeneration": 7},
    });
    cluster.apply(&status.to_string());
    let stored = cluster.find("tezosnode rolling").expect("the resource");
    assert_eq!(stored["status"]["observedGeneration"], Value::Null, "{stored}");
}

#[test]
fn a_trace_is_shown_and_explained() {
    let cluster = Setup::new(Level::Api).start();
    apply_crd(&cluster, "nodetraces");
    let explained = wait::until("the fields to be explained", || {
        cluster.try_kubectl_output(&["explain", "nodetrace.spec", "--recursive"])
    });
    for field in ["podSelector", "container", "process", "tracepoints", "patterns", "filter", "maxPayload", "retention"]
    {
        assert!(explained.contains(field), "{field} is not explained:\n{explained}");
    }
    let example = read("operator/crd/examples/bitcoin-core.yaml").replace("namespace: bitcoin", "namespace: default");
    cluster.apply(&example);
    let stored = cluster.find("ntr bitcoind").expect("the short name");
    assert_eq!(stored["spec"]["maxPayload"], "1KiB", "{stored}");
    let table = cluster.kubectl("get chainscope");
    for column in ["PODS", "RECORDING", "READY", "REASON", "AGE"] {
        assert!(table.contains(column), "no column {column}:\n{table}");
    }
}
