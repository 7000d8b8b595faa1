//! The OpenAPI documents. They are generated from the handlers, committed under `openapi/`, and served from there: a test
//! fails when they are stale.
//!
//! The whole API is described in OpenAPI 3.1. The two documents that TezEdge Explorer shows are translated to 3.0.3, as its
//! Swagger UI renders no later version.

use serde_json::{Map, Value, json};
use utoipa::{OpenApi, openapi};

use super::{logs, memory, network, node_rpc, nodes, operations, problem::Problem};

/// The whole API, as it is committed and served.
pub(crate) const FULL: &str = include_str!("../../openapi/chainscope.json");
/// The part that the original's network recorder had, as it is committed and served.
pub(crate) const NETWORK_RECORDER: &str = include_str!("../../openapi/network-recorder.json");
/// The part that the original's memory profiler had, as it is committed and served.
pub(crate) const MEMORY_PROFILER: &str = include_str!("../../openapi/memory-profiler.json");

/// The whole API: the paths of each pillar are added to these.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Chainscope",
        description = "What a blockchain node exchanges with its peers, what it logs, and which of its code holds its memory. \
            Every path but /nodes, /metrics and health also exists below /nodes/{name}/ and /nodes/{namespace}/{name}/, and \
            is then about that node.",
        license(name = "Apache-2.0 OR MIT")
    ),
    paths(
        nodes::nodes,
        node_rpc::head_header,
        operations::version,
        operations::metrics,
        operations::healthz,
        operations::readyz
    ),
    components(schemas(Problem))
)]
struct Full;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Network recorder",
        description = "Peer-to-peer messages and log messages of Tezos nodes.",
        license(name = "Apache-2.0 OR MIT")
    ),
    paths(operations::version)
)]
struct NetworkRecorder;

#[derive(OpenApi)]
#[openapi(info(
    title = "Memory profiler",
    description = "Which code holds the memory of a node.",
    license(name = "Apache-2.0 OR MIT")
))]
struct MemoryProfiler;

/// The documents, generated: the whole API, and the two that the original had.
pub(crate) fn generate() -> [String; 3] {
    let mut full = Full::openapi();
    full.merge(network::Api::openapi());
    full.merge(memory::Api::openapi());
    full.merge(logs::Api::openapi());
    let mut recorder = NetworkRecorder::openapi();
    recorder.merge(network::RecorderApi::openapi());
    recorder.merge(logs::RecorderApi::openapi());
    let mut profiler = MemoryProfiler::openapi();
    profiler.merge(memory::Api::openapi());
    // A document of strings and maps always serialises.
    [full.to_pretty_json().unwrap_or_default(), translated(&recorder), translated(&profiler)].map(|text| text + "\n")
}

/// A document in version 3.0.3.
fn translated(document: &openapi::OpenApi) -> String {
    let mut document = serde_json::to_value(document).unwrap_or_default();
    if let Some(paths) = document.get_mut("paths") {
        translate(paths);
    }
    if let Some(components) = document.get_mut("components") {
        translate(components);
    }
    document["openapi"] = json!("3.0.3");
    format!("{document:#}")
}

/// Translates the schemas in a value: `null` is no type in 3.0, and `$ref` has no siblings.
fn translate(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(translate),
        Value::Object(object) => {
            object.values_mut().for_each(translate);
            translate_schema(object);
        }
        _ => {}
    }
}

fn translate_schema(schema: &mut Map<String, Value>) {
    schema.remove("propertyNames");
    if let Some(Value::Array(types)) = schema.get("type")
        && let [kind, null] = types.as_slice()
        && null == "null"
    {
        let kind = kind.clone();
        schema.insert("type".to_owned(), kind);
        schema.insert("nullable".to_owned(), true.into());
    }
    if let Some(Value::Array(choices)) = schema.get_mut("oneOf") {
        let null = json!({"type": "object", "nullable": true, "enum": [null]});
        choices.iter_mut().filter(|choice| choice["type"] == "null").for_each(|choice| *choice = null.clone());
    }
    if schema.len() > 1
        && let Some(reference) = schema.remove("$ref")
    {
        schema.insert("allOf".to_owned(), json!([{"$ref": reference}]));
    }
}
