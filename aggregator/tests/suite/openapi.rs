//! The OpenAPI documents: the committed ones are up to date (`UPDATE_GOLDEN=1` regenerates them), they are valid, and responses
//! are as they describe them.

use std::{env, fs, path::Path, sync::Arc};

use chainscope_aggregator::{Config, NodeConfig, access::AccessConfig};
use chainscope_proto::v1::{
    ConnectionClosed, Initiator, Loss, NetworkAccount, ReasonCount, TargetEvent, connection_event::Event, record::Kind,
};
use serde_json::Value;

use crate::{
    common::{
        CONNECTION, Server, TIME, event,
        fake::Reviews,
        identified,
        latency::{applied, records as latency_records, run, transaction_records},
        logs::lines,
        message, opened, record,
        trace::{added, message as trace_message},
        with_chunks,
    },
    memory::example,
};

#[test]
fn the_committed_documents_are_fresh() {
    let files = ["chainscope.json", "network-recorder.json", "memory-profiler.json"];
    for (file, fresh) in files.into_iter().zip(chainscope_aggregator::openapi()) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi").join(file);
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &fresh).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap();
        assert!(committed == fresh, "{} is stale: make openapi", path.display());
    }
}

fn documents() -> [Value; 3] {
    chainscope_aggregator::openapi().map(|text| serde_json::from_str(&text).unwrap())
}

#[test]
fn every_path_is_described_once() {
    let [full, recorder, profiler] =
        documents().map(|document| document["paths"].as_object().unwrap().keys().cloned().collect::<Vec<_>>());
    assert_eq!(full.len(), 32);
    assert!(recorder.iter().chain(&profiler).all(|path| full.contains(path)));
}

/// Calls `each` with every object in a value.
fn each_object(value: &Value, each: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            each(object);
            object.values().for_each(|value| each_object(value, each));
        }
        Value::Array(list) => list.iter().for_each(|value| each_object(value, each)),
        _ => {}
    }
}

#[test]
fn references_resolve_and_the_documents_that_the_explorer_shows_are_of_version_3_0() {
    for (document, version) in documents().into_iter().zip(["3.1.0", "3.0.3", "3.0.3"]) {
        assert_eq!(document["openapi"], version);
        each_object(&document, &mut |object| {
            if let Some(Value::String(reference)) = object.get("$ref") {
                let target = reference.strip_prefix('#').and_then(|pointer| document.pointer(pointer));
                assert!(target.is_some(), "{reference} is not there");
            }
            if version == "3.0.3" {
                let is_type = |kind: &Value| kind.is_string() && kind != "null" || kind.is_object();
                assert!(object.get("type").is_none_or(is_type), "{object:?}");
                assert!(!object.contains_key("$ref") || object.len() == 1, "{object:?}");
                let newer =
                    ["prefixItems", "propertyNames", "const", "examples", "contentEncoding", "contentMediaType"];
                assert!(!newer.iter().any(|name| object.contains_key(*name)), "{object:?}");
            }
            if let Some(items) = object.get("items") {
                assert!(items.is_object() || items.is_boolean(), "{items}");
            }
        });
        let operations = document["paths"].as_object().unwrap().values().map(|item| &item["get"]["operationId"]);
        let mut ids: Vec<_> = operations.map(|id| id.as_str().unwrap()).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] != two[1]), "{ids:?}");
        for (path, item) in document["paths"].as_object().unwrap() {
            for (status, response) in item["get"]["responses"].as_object().unwrap() {
                if status == "304" {
                    assert!(response["content"].is_null(), "{path}");
                    continue;
                }
                let types: Vec<_> = response["content"].as_object().unwrap().keys().collect();
                let is_problem = types == ["application/problem+json"];
                assert_eq!(is_problem, status.as_str() >= "400", "{path} {status}: {types:?}");
            }
        }
    }
}

#[test]
fn an_operation_is_declared_to_need_a_token_exactly_if_it_does() {
    let server = guarded();
    for document in documents() {
        let scheme = &document["components"]["securitySchemes"]["bearer"];
        assert_eq!((&scheme["type"], &scheme["scheme"]), (&"http".into(), &"bearer".into()));
        assert!(document["security"].is_null());
        for (path, item) in document["paths"].as_object().unwrap() {
            let (operation, refused) = (&item["get"], server.get(&path.replace("{id}", "0")).status == 401);
            let needs_token = operation["security"] == serde_json::json!([{"bearer": []}]);
            assert_eq!(needs_token, refused, "{path}");
            assert!(needs_token || operation["security"].is_null(), "{path}");
            for status in ["401", "403", "503"] {
                assert!(!refused || operation["responses"][status].is_object(), "{path} {status}");
            }
        }
    }
}

/// Validates a value against a schema of the document, as far as the documents use JSON Schema. Members that are not described
/// are errors.
fn validate(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return validate(document, document.pointer(&reference[1..]).unwrap(), value);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let results: Vec<_> = choices.iter().map(|choice| validate(document, choice, value)).collect();
        return match results.iter().filter(|result| result.is_ok()).count() {
            1 => Ok(()),
            count => Err(format!("{count} of {choices:?} match {value}: {results:?}")),
        };
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => return Ok(()),
    };
    let fits = types.iter().any(|kind| match *kind {
        "null" => value.is_null(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is no type"),
    });
    if !fits {
        return Err(format!("{value} is none of {types:?}"));
    }
    if schema["minimum"].as_i64().zip(value.as_i64()).is_some_and(|(least, value)| value < least) {
        return Err(format!("{value} is below the minimum"));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        return Err(format!("{value} is none of {}", schema["enum"]));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        let schema = schema["prefixItems"].get(index).unwrap_or(&schema["items"]);
        match schema {
            Value::Bool(false) => return Err(format!("item {index} is not described")),
            schema => validate(document, schema, item).map_err(|error| format!("{index}: {error}"))?,
        }
    }
    let Some(members) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !members.contains_key(name) {
            return Err(format!("{name} is missing"));
        }
    }
    for (name, member) in members {
        let described = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
        if described.is_null() && (schema.get("properties").is_some() || schema.get("additionalProperties").is_some()) {
            return Err(format!("{name} is not described"));
        }
        validate(document, described, member).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// A node with a record of every kind, and its memory.
fn server() -> Server {
    with_records(|_| {})
}

/// The same, for callers with the token `secret`.
pub(crate) fn guarded() -> Server {
    let reviews = Reviews::default();
    reviews.user("secret", "tester");
    reviews.allow_all("tester");
    let access = AccessConfig::Kubernetes(Arc::new(reviews));
    with_records(|config| config.access = access)
}

fn with_records(change: impl FnOnce(&mut Config)) -> Server {
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig { aliases: vec!["main".into()], ..NodeConfig::new("9732") });
        change(config);
    });
    let count = |reason: &str| vec![ReasonCount { reason: reason.into(), count: 3 }];
    let account = NetworkAccount { bytes_seen: 9, bytes_dropped: count("ring full"), ..NetworkAccount::default() };
    let loss = Loss { stage: "kernel".into(), reason: "ring full".into(), records: 1, ..Loss::default() };
    let mut records = with_chunks(message("metadata"), &[0, 0], 1, 100);
    records.extend([
        opened(CONNECTION, Initiator::Local, "51.15.220.7:9732"),
        identified(CONNECTION, "idssJHDL1z8fkryZaYVF9fQRMktoWg"),
        event(CONNECTION, Event::Closed(ConnectionClosed { by: "remote".into(), sent_bytes: 5, received_bytes: 6 })),
        record(TIME, Kind::NetworkAccount(account)),
        record(TIME, Kind::Loss(loss)),
        record(TIME, Kind::TargetEvent(TargetEvent { event: "identity error".into(), pid: 7, detail: String::new() })),
        record(TIME, Kind::Message(message("unknown"))),
    ]);
    records.extend(lines(&[
        "Nov 24 13:56:37.285 NOTICE │ read identity file",
        "<005> 2025-10-10T12:33:27.197-00:00 [p2p] peer",
    ]));
    records.extend([added(0, 7, 250), trace_message(1, 7, "inbound", 3, "inv", vec![0])]);
    for (id, tag) in [(1, "v1"), (2, "v2")] {
        let mut run = run(id, tag, 0, 12, 1_000_000 * u64::from(id));
        run.transactions = applied(&run);
        records.extend(latency_records(&run).into_iter().chain(transaction_records(&run)));
    }
    server.feed("9732", records);
    let mut agent = server.agent(&[]);
    agent.memory([example().keyframe()]);
    server
}

#[test]
fn responses_are_as_described() {
    let server = server();
    let [document, ..] = documents();
    let key = server.json("/v3/chunks")[0][0].as_str().unwrap().to_owned();
    let more = [
        "/v2/p2p/1",
        "/v2/p2p/9",
        "/v3/chunk/1.1-local-0",
        "/v1/tree?threshold=0",
        "/v1/tree?kind=all&reverse=true",
        "/v2/latency/report?run=v1",
        "/v2/latency/compare?a=v1&b=v2",
        "/v2/latency/compare/report?a=v1&b=v2",
        "/v2/latency/transactions?slowest=true&limit=3",
    ];
    let wrong = [
        "/v2/p2p?limit=x",
        "/v2/p2p?node_name=none",
        "/v1/tree?at=1",
        "/v3/chunks?cn=x",
        "/v1/flamegraph?at=1",
        "/v2/log?query=(",
        "/v2/trace?filter=x",
        "/v2/latency/report?run=none",
        "/v2/latency/compare?a=v1&b=v1",
        "/v2/latency/compare/report?a=v1&b=v1",
        "/v2/latency/transactions?id=x",
    ];
    let described = document["paths"].as_object().unwrap().keys().filter(|path| !path.ends_with("/stream"));
    let described = described.map(|path| path.replace("{id}", "0").replace("{key}", &key));
    for path in described.chain(more.into_iter().chain(wrong).map(str::to_owned)) {
        let answer = server.get(&path);
        let route = path.split('?').next().unwrap();
        let is_route = |template: &&String| {
            let parts = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
            let (template, route) = (parts(template), parts(route));
            let fits = |(part, given): (&String, &String)| part.starts_with('{') || part == given;
            template.len() == route.len() && template.iter().zip(&route).all(fits)
        };
        // A template without a parameter is the more exact one.
        let templates = document["paths"].as_object().unwrap().keys();
        let template = templates.filter(is_route).min_by_key(|template| template.contains('{')).unwrap();
        let response = &document["paths"][template]["get"]["responses"][answer.status.to_string()];
        let media = answer.header("content-type").unwrap().split(';').next().unwrap();
        let content = &response["content"][media];
        assert!(content.is_object(), "{path}: {} with {media} is not described", answer.status);
        if media.ends_with("json") {
            let value: Value = serde_json::from_str(&answer.body).unwrap();
            validate(&document, &content["schema"], &value)
                .unwrap_or_else(|error| panic!("{path}: {error}\n{value:#}"));
        }
    }
}
