//! The definition of `TezosNode`: it is committed as it is made, and takes and refuses what the table says.
#![allow(clippy::unwrap_used)] // a test shows the line at which it fails

mod structural;

use std::{collections::BTreeSet, fs, path::Path};

use chainscope_operator::crd::{TezosNode, definition, yaml};
use kube::core::cel::{Validator, apply_defaults};
use serde::Deserialize;
use serde_json::{Value, json};
use structural::{Mistake, Schema};

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
    by: Ring,
    says: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ring {
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
    for ring in [Ring::Schema, Ring::Strict, Ring::Cel] {
        assert!(cases.iter().any(|case| case.refused.as_ref().is_some_and(|refused| refused.by == ring)));
    }
    assert!(cases.iter().filter(|case| case.refused.is_none()).count() >= 15);
}

/// Every case goes through both rings, in the API server's order: who is refused by one does not reach the next.
#[test]
fn the_table_holds() {
    let schema = schema();
    let structural = Schema::new(&schema);
    let mut wrong = Vec::new();
    for case in cases() {
        let resource = apply_defaults(&schema, &resource(&case.resource));
        let mistakes = structural.check(&resource);
        let (ring, said) = if let Some(mistake) = mistakes.first() {
            let ring = if matches!(mistake, Mistake::Unknown(_)) { Ring::Strict } else { Ring::Schema };
            (Some(ring), mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        } else if let Err(errors) = Validator::new().validate(&schema, &resource, None) {
            (Some(Ring::Cel), errors.to_string())
        } else {
            (None, String::new())
        };
        let as_expected = match (&case.refused, ring) {
            (None, None) => true,
            (Some(expected), Some(ring)) => expected.by == ring && said.contains(&expected.says),
            _ => false,
        };
        if !as_expected {
            wrong.push(format!("{}: expected {:?}, was {ring:?} {said:?}", case.name, case.refused));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the API server takes the operator can read; else a resource would be stored that nobody can work with.
#[test]
fn what_is_taken_can_be_read() {
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
    }
}

/// The API server's defaults are those of the types: a resource means the same before and after it was stored.
#[test]
fn defaults_of_the_schema_are_those_of_the_types() {
    let stored = apply_defaults(&schema(), &resource(&json!({ "spec": {} })));
    let stored: TezosNode = serde_json::from_value(stored).unwrap();
    let read: TezosNode = serde_json::from_value(resource(&json!({ "spec": {} }))).unwrap();
    assert_eq!(stored.spec, read.spec);
    assert_eq!(stored.spec.identity_path(), "/var/tezos/node/data/identity.json");
}

#[test]
fn examples_are_taken() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crd/examples");
    let schema = schema();
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let resource: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let resource = apply_defaults(&schema, &resource);
        let mistakes = Schema::new(&schema).check(&resource);
        assert!(mistakes.is_empty(), "{}: {mistakes:?}", path.display());
        Validator::new().validate(&schema, &resource, None).unwrap();
        serde_json::from_value::<TezosNode>(resource).unwrap();
        count += 1;
    }
    assert!(count >= 3);
}

/// Argo CD and others take an empty field that the API server drops for a difference, for ever.
#[test]
fn nothing_in_the_definition_is_empty() {
    fn look(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::Null => found.push(path.to_owned()),
            Value::String(text) if text.is_empty() => found.push(path.to_owned()),
            Value::Array(items) if items.is_empty() => found.push(path.to_owned()),
            Value::Array(items) => items.iter().for_each(|item| look(item, &format!("{path}[]"), found)),
            Value::Object(fields) => fields.iter().for_each(|(key, item)| {
                // Subresources are an empty table by definition, and defaults may be one.
                if key != "default" && path != ".spec.versions[].subresources" {
                    look(item, &format!("{path}.{key}"), found);
                }
            }),
            _ => {}
        }
    }
    let mut found = Vec::new();
    look(&serde_json::to_value(definition()).unwrap(), "", &mut found);
    assert!(found.is_empty(), "{found:?}");
}
