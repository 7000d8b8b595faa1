//! The OpenAPI documents. They are generated from the handlers, committed under `openapi/`, and served from there: a test
//! fails when they are stale.
//!
//! The whole API is described in OpenAPI 3.1. The two documents that TezEdge Explorer shows are translated to 3.0.3, as its
//! Swagger UI renders no later version.

use serde_json::{Map, Value, json};
use utoipa::{
    OpenApi,
    openapi::{
        self, Content, Ref, RefOr, ResponseBuilder,
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

use super::{latency, logs, memory, network, node_rpc, nodes, operations, problem::Problem, stats, trace};

/// Name of the security scheme.
const SCHEME: &str = "bearer";

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
        description = "What a blockchain node exchanges with its peers, what it logs, which of its code holds its memory, what its tracepoints say, and how long its functions take. \
            Every path but /nodes, /metrics and health also exists below /nodes/{name}/ and /nodes/{namespace}/{name}/, and \
            is then about that node. Every response has the id of its request in the header `x-request-id`.",
        license(name = "Apache-2.0 OR MIT")
    ),
    paths(nodes::nodes, node_rpc::head_header, operations::version, stats::stats),
    components(schemas(Problem))
)]
struct Full;

/// What is served without a token.
#[derive(OpenApi)]
#[openapi(paths(operations::metrics, operations::healthz, operations::readyz), components(schemas(Problem)))]
struct Operations;

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
    full.merge(trace::Api::openapi());
    full.merge(latency::Api::openapi());
    require_token(&mut full);
    full.merge(Operations::openapi());
    let mut recorder = NetworkRecorder::openapi();
    recorder.merge(network::RecorderApi::openapi());
    recorder.merge(logs::RecorderApi::openapi());
    require_token(&mut recorder);
    let mut profiler = MemoryProfiler::openapi();
    profiler.merge(memory::Api::openapi());
    require_token(&mut profiler);
    // A document of strings and maps always serialises.
    [full.to_pretty_json().unwrap_or_default(), translated(&recorder), translated(&profiler)].map(|text| text + "\n")
}

/// Declares that every operation of a document needs a token, and what is answered to one that is not accepted.
fn require_token(document: &mut openapi::OpenApi) {
    let description = "A token of the token file, or of a service account of the cluster. Not needed where the aggregator runs \
        without authentication.";
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(description)).build();
    document.components.get_or_insert_default().add_security_scheme(SCHEME, SecurityScheme::Http(scheme));
    let refusals = [
        ("401", "There is no token, or it is not accepted."),
        ("403", "The caller lacks the permission for the node."),
        ("503", "Overloaded, or the permission cannot be checked now."),
    ]
    .map(|(status, description)| {
        let content = Content::new(Some(Ref::from_schema_name("Problem")));
        (status, ResponseBuilder::new().description(description).content(Problem::MEDIA_TYPE, content).build())
    });
    for operation in document.paths.paths.values_mut().filter_map(|item| item.get.as_mut()) {
        operation.security = Some(vec![SecurityRequirement::new(SCHEME, [""; 0])]);
        for (status, response) in &refusals {
            let responses = &mut operation.responses.responses;
            responses.entry((*status).to_owned()).or_insert_with(|| RefOr::T(response.clone()));
        }
    }
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
