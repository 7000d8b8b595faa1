//! The CustomResourceDefinition of `TezosNode`: the committed file is current, and a table of valid and invalid resources.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod structural;

use std::{collections::BTreeSet, fs, path::Path};

use chainscope_operator::crd::{TezosNode, definition, yaml};
use chainscope_spec::{Logs, Retention};
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

fn cases() -> Vec<Case> {
    serde_saphyr::from_str(include_str!("tezosnodes.yaml")).unwrap()
}

fn resource(case: &Value) -> Value {
    let mut resource = case.clone();
    let fields = resource.as_object_mut().unwrap();
    fields.insert("apiVersion".to_owned(), json!("chainscope.dev/v1alpha1"));
    fields.insert("kind".to_owned(), json!("TezosNode"));
    fields.entry("metadata").or_insert_with(|| json!({ "name": "case" }));
    resource
}

fn schema() -> Value {
    let versions = definition().spec.versions;
    assert_eq!(versions.len(), 1);
    serde_json::to_value(versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap()).unwrap()
}

#[test]
fn the_committed_definition_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crd/tezosnodes.chainscope.dev.yaml");
    let made = yaml().unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap();
    assert!(committed == made, "run UPDATE_GOLDEN=1 cargo test -p chainscope-operator --test crd");
}

#[test]
fn the_table_is_large_and_names_are_unique() {
    let cases = cases();
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= 40);
    for stage in [Stage::Schema, Stage::Strict, Stage::Cel] {
        assert!(cases.iter().any(|case| case.refused.as_ref().is_some_and(|refused| refused.by == stage)));
    }
    assert!(cases.iter().filter(|case| case.refused.is_none()).count() >= 15);
}

/// Each case is validated by the stages of the API server, in their order, until one refuses it.
#[test]
fn the_table_is_valid() {
    let schema = schema();
    let structural = Schema::new(&schema);
    let mut wrong = Vec::new();
    for case in cases() {
        let resource = apply_defaults(&schema, &resource(&case.resource));
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
    let schema = schema();
    for case in cases().into_iter().filter(|case| case.refused.is_none()) {
        let resource = apply_defaults(&schema, &resource(&case.resource));
        let node: TezosNode = serde_json::from_value(resource).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let retention = node.spec.observe().retention;
        if case.name == "every limit" {
            assert_eq!(retention.rows, Some(1_000_000));
            assert_eq!(retention.bytes.map(|bytes| bytes.as_u64()), Some(20 << 30));
            assert_eq!(retention.age.map(|age| age.as_secs()), Some(14 * 86_400));
        }
        if case.name == "no limit at all" {
            assert_eq!((retention.rows, retention.bytes, retention.age), (None, None, None));
        }
        let logs = node.spec.observe().logs;
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

/// Defaulting by the API server does not change the meaning of a resource.
#[test]
fn defaults_of_the_schema_are_those_of_the_types() {
    let stored = apply_defaults(&schema(), &resource(&json!({ "spec": {} })));
    let stored: TezosNode = serde_json::from_value(stored).unwrap();
    let read: TezosNode = serde_json::from_value(resource(&json!({ "spec": {} }))).unwrap();
    assert_eq!(stored.spec, read.spec);
    assert_eq!(stored.spec.identity_path(), "/var/tezos/node/data/identity.json");
}

#[test]
fn examples_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crd/examples");
    let schema = schema();
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let resource: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let resource = apply_defaults(&schema, &resource);
        let violations = Schema::new(&schema).check(&resource);
        assert!(violations.is_empty(), "{}: {violations:?}", path.display());
        Validator::new().validate(&schema, &resource, None).unwrap();
        serde_json::from_value::<TezosNode>(resource).unwrap();
        count += 1;
    }
    assert!(count >= 3);
}

/// The API server drops empty fields, which Argo CD and others then report as a permanent difference.
#[test]
fn the_definition_has_no_empty_fields() {
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
    find_empty(&serde_json::to_value(definition()).unwrap(), "", &mut found);
    assert!(found.is_empty(), "{found:?}");
}
