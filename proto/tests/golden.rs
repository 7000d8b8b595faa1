//! The wire is additive only: every field that ever was is still there, with its number and type.
//!
//! `golden.txt` lists them. A new field is a new line: run with `UPDATE_GOLDEN=1` to add it. A line that would have to
//! be changed or taken away is a mistake, and stays one with the variable set.

use std::{collections::BTreeSet, env, fs};

use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt");

#[test]
fn no_field_was_changed_or_removed() {
    let now: BTreeSet<String> = lines();
    assert!(now.len() > 100, "the descriptor is nearly empty: {now:?}");
    let text = fs::read_to_string(PATH).unwrap_or_default();
    let golden: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let gone: Vec<_> = golden.difference(&now).collect();
    assert!(gone.is_empty(), "these lines of the wire are gone or changed: {gone:#?}");
    let new: Vec<_> = now.difference(&golden).collect();
    if env::var_os("UPDATE_GOLDEN").is_some() {
        let all: Vec<&str> = now.iter().map(String::as_str).collect();
        fs::write(PATH, all.join("\n") + "\n").unwrap();
    } else {
        assert!(new.is_empty(), "golden.txt is stale, UPDATE_GOLDEN=1 adds: {new:#?}");
    }
}

fn lines() -> BTreeSet<String> {
    let files = FileDescriptorSet::decode(chainscope_proto::DESCRIPTOR).expect("the descriptor");
    let mut lines = BTreeSet::new();
    for file in &files.file {
        for message in &file.message_type {
            add_message(file.package(), message, &mut lines);
        }
        for kind in &file.enum_type {
            add_enum(file.package(), kind, &mut lines);
        }
        for service in &file.service {
            for method in &service.method {
                let (input, output) = (method.input_type(), method.output_type());
                lines.insert(format!("rpc {}/{} {input} -> {output}", service.name(), method.name()));
            }
        }
    }
    lines
}

fn add_message(scope: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{scope}.{}", message.name());
    for field in &message.field {
        let type_name = field.type_name.as_deref().unwrap_or_default();
        let kind = field.r#type().as_str_name();
        let label = field.label().as_str_name();
        lines.insert(
            format!("{name} {} {} {label} {kind} {type_name}", field.number(), field.name()).trim_end().to_owned(),
        );
    }
    for nested in &message.nested_type {
        add_message(&name, nested, lines);
    }
}

fn add_enum(scope: &str, kind: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &kind.value {
        lines.insert(format!("{scope}.{} = {} {}", kind.name(), value.number(), value.name()));
    }
}
