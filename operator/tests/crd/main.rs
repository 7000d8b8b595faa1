//! The CustomResourceDefinitions: the committed files are current, and a table of valid and invalid resources for each.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod structural;

use std::{collections::BTreeSet, fs, path::Path};

use chainscope_operator::crd::{NodeTrace, TezosNode, definitions, yaml};
use chainscope_spec::{Logs, Retention, Trace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::cel::{Validator, apply_defaults};
use serde::Deserialize;
use serde_json::{Value, json};
use structural::{Schema, Violation};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    resource: Value,
    refused: Option<Refused>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    by: Stage,
    says: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stage {
    Schema,
    Strict,
    Cel,
}

/// Definitions and tables, by kind.
const KINDS: [(&str, &str); 2] =
    [("TezosNode", include_str!("tezosnodes.yaml")), ("NodeTrace", include_str!("nodetraces.yaml"))];

fn cases(kind: &str) -> Vec<Case> {
    serde_saphyr::from_str(KINDS.iter().find(|(own, _)| *own == kind).unwrap().1).unwrap()
}

fn resource(kind: &str, case: &Value) -> Value {
    let mut resource = case.clone();
    let fields = resource.as_object_mut().unwrap();
    fields.insert("apiVersion".to_owned(), json!("chainscope.dev/v1alpha1"));
    fields.insert("kind".to_owned(), json!(kind));
    fields.entry("metadata").or_insert_with(|| json!({ "name": "case" }));
    resource
}

fn definition(kind: &str) -> CustomResourceDefinition {
    definitions().into_iter().find(|definition| definition.spec.names.kind == kind).unwrap()
}

fn schema(kind: &str) -> Value {
    let versions = definition(kind).spec.versions;
    assert_eq!(versions.len(), 1);
    serde_json::to_value(versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap()).unwrap()
}

#[test]
fn the_committed_definitions_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crd");
    for definition in definitions() {
        let path = folder.join(format!("{}.yaml", definition.metadata.name.as_deref().unwrap()));
        let made = yaml(&definition).unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
            fs::write(&path, &made).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap();
        assert!(committed == made, "run UPDATE_GOLDEN=1 cargo test -p chainscope-operator --test crd");
    }
}

#[test]
fn the_tables_are_large_and_names_are_unique() {
    for (kind, _) in KINDS {
        let cases = cases(kind);
        let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), cases.len());
        for stage in [Stage::Schema, Stage::Strict, Stage::Cel] {
            assert!(cases.iter().any(|case| case.refused.as_ref().is_some_and(|refused| refused.by == stage)));
        }
        let taken = cases.iter().filter(|case| case.refused.is_none()).count();
        assert!(taken >= 10 && cases.len() - taken >= 10, "{kind}: {taken} of {}", cases.len());
    }
}

/// Each case is validated by the stages of the API server, in their order, until one refuses it.
#[test]
fn the_tables_are_valid() {
    KINDS.into_iter().for_each(|(kind, _)| check_table(kind));
}

fn check_table(kind: &str) {
    let schema = schema(kind);
    let structural = Schema::new(&schema);
    let mut wrong = Vec::new();
    for case in cases(kind) {
        let resource = apply_defaults(&schema, &resource(kind, &case.resource));
        let violations = structural.check(&resource);
        let (stage, message) = if let Some(violation) = violations.first() {
            let stage = if matches!(violation, Violation::Unknown(_)) { Stage::Strict } else { Stage::Schema };
            (Some(stage), violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        } else if let Err(errors) = Validator::new().validate(&schema, &resource, None) {
            (Some(Stage::Cel), errors.to_string())
        } else {
            (None, String::new())
        };
        let as_expected = match (&case.refused, stage) {
            (None, None) => true,
            (Some(expected), Some(stage)) => expected.by == stage && message.contains(&expected.says),
            _ => false,
        };
        if !as_expected {
            wrong.push(format!("{}: expected {:?}, was {stage:?} {message:?}", case.name, case.refused));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The operator can parse every resource that the API server accepts.
#[test]
fn accepted_resources_can_be_parsed() {
    const KIND: &str = "TezosNode";
    let schema = schema(KIND);
    for case in cases(KIND).into_iter().filter(|case| case.refused.is_none()) {
        let resource = apply_defaults(&schema, &resource(KIND, &case.resource));
        let node: TezosNode = serde_json::from_value(resource).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let retention = node.spec.retention;
        if case.name == "every limit" {
            assert_eq!(retention.rows, Some(1_000_000));
            assert_eq!(retention.bytes.map(|bytes| bytes.as_u64()), Some(20 << 30));
            assert_eq!(retention.age.map(|age| age.as_secs()), Some(14 * 86_400));
        }
        if case.name == "no limit at all" {
            assert_eq!((retention.rows, retention.bytes, retention.age), (None, None, None));
        }
        let logs = node.spec.logs;
        match &*case.name {
            "logs with everything by default" => assert_eq!(logs, Some(Logs::default())),
            "logs without a limit, switched off for now" => {
                let retention = Retention { rows: None, bytes: None, age: None };
                assert_eq!(logs, Some(Logs { enabled: false, redact: Vec::new(), retention }));
            }
            name => assert_eq!(logs.is_some(), name.contains("logs"), "{name}"),
        }
    }
}

/// The operator can parse every `NodeTrace` that the API server accepts; what it cannot use is said by its condition.
#[test]
fn accepted_traces_can_be_parsed_and_checked() {
    const KIND: &str = "NodeTrace";
    let schema = schema(KIND);
    for case in cases(KIND).into_iter().filter(|case| case.refused.is_none()) {
        let resource = apply_defaults(&schema, &resource(KIND, &case.resource));
        let trace: NodeTrace =
            serde_json::from_value(resource).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let options = trace.spec.trace();
        let is_usable = !case.name.contains("that the operator will refuse");
        assert_eq!(options.validate().is_ok(), is_usable, "{}: {:?}", case.name, options.validate());
        match &*case.name {
            "Bitcoin Core with everything by default" => {
                assert_eq!(options, Trace::of(["net:*", "validation:block_connected"]));
            }
            "every limit" => {
                let limits = options.retention;
                assert_eq!((limits.rows, limits.age.map(|age| age.as_secs())), (Some(1_000_000), Some(7 * 86_400)));
                assert_eq!((options.max_text.as_u64(), options.max_payload.as_u64()), (4 << 10, 4 << 20));
            }
            "no limit at all" => {
                assert_eq!(options.retention, Retention { rows: None, bytes: None, age: None });
            }
            _ => {}
        }
    }
}

/// Defaulting by the API server does not change the meaning of a resource.
#[test]
fn defaults_of_the_schema_are_those_of_the_types() {
    let spec = json!({ "spec": {
        "podSelector": { "matchLabels": { "app": "bitcoin" } }, "container": "node", "process": "bitcoind",
        "tracepoints": [{ "patterns": ["net:*"] }],
    } });
    let stored = apply_defaults(&schema("NodeTrace"), &resource("NodeTrace", &spec));
    let stored: NodeTrace = serde_json::from_value(stored).unwrap();
    let read: NodeTrace = serde_json::from_value(resource("NodeTrace", &spec)).unwrap();
    assert_eq!(stored.spec, read.spec);

    let stored = apply_defaults(&schema("TezosNode"), &resource("TezosNode", &json!({ "spec": {} })));
    let stored: TezosNode = serde_json::from_value(stored).unwrap();
    let read: TezosNode = serde_json::from_value(resource("TezosNode", &json!({ "spec": {} }))).unwrap();
    assert_eq!(stored.spec, read.spec);
    assert_eq!(stored.spec.identity_path(), "/var/tezos/node/data/identity.json");
}

/// Resources with the place where they are shown: files, blocks of the guide, of which some have a `spec` of a TezosNode only, and
/// those that Artifact Hub shows.
fn examples() -> Vec<(String, Value)> {
    let mut examples = Vec::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crd/examples")).unwrap() {
        let path = entry.unwrap().path();
        let example = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        examples.push((path.display().to_string(), example));
    }
    for block in include_str!("../../../docs/kubernetes.md").split("```yaml\n").skip(1) {
        let (text, _) = block.split_once("```").unwrap();
        let example: Value = serde_saphyr::from_str(text).unwrap();
        let example = if example["kind"].is_null() { resource("TezosNode", &example) } else { example };
        examples.push((format!("docs/kubernetes.md:\n{text}"), example));
    }
    let chart: Value = serde_saphyr::from_str(include_str!("../../../charts/chainscope/Chart.yaml")).unwrap();
    let shown = chart["annotations"]["artifacthub.io/crdsExamples"].as_str().unwrap();
    let shown: Vec<Value> = serde_saphyr::from_str(shown).unwrap();
    examples.extend(shown.into_iter().map(|example| ("Chart.yaml".to_owned(), example)));
    examples
}

#[test]
fn examples_are_valid() {
    let mut kinds = BTreeSet::new();
    for (place, resource) in examples() {
        let kind = resource["kind"].as_str().unwrap().to_owned();
        let schema = schema(&kind);
        let resource = apply_defaults(&schema, &resource);
        let violations = Schema::new(&schema).check(&resource);
        assert!(violations.is_empty(), "{place}: {violations:?}");
        Validator::new().validate(&schema, &resource, None).unwrap_or_else(|errors| panic!("{place}: {errors}"));
        if kind == "NodeTrace" {
            serde_json::from_value::<NodeTrace>(resource).unwrap().spec.trace().validate().unwrap();
        } else {
            serde_json::from_value::<TezosNode>(resource).unwrap();
        }
        kinds.insert(kind);
    }
    assert!(KINDS.iter().all(|(kind, _)| kinds.contains(*kind)), "{kinds:?}");
}

/// The API server drops empty fields, which Argo CD and others then report as a permanent difference.
#[test]
fn the_definitions_have_no_empty_fields() {
    fn find_empty(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::Null => found.push(path.to_owned()),
            Value::String(text) if text.is_empty() => found.push(path.to_owned()),
            Value::Array(items) if items.is_empty() => found.push(path.to_owned()),
            Value::Array(items) => items.iter().for_each(|item| find_empty(item, &format!("{path}[]"), found)),
            Value::Object(fields) => fields.iter().for_each(|(key, item)| {
                // `subresources.status` is an empty object by definition, and defaults may be one.
                if key != "default" && path != ".spec.versions[].subresources" {
                    find_empty(item, &format!("{path}.{key}"), found);
                }
            }),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for definition in definitions() {
        find_empty(&serde_json::to_value(definition).unwrap(), "", &mut found);
    }
    assert!(found.is_empty(), "{found:?}");
}
