//! OTLP in JSON (`ExportMetricsServiceRequest`): a delta exponential histogram for each block of each function.

use serde_json::{Value, json};

use crate::model::{Block, Run};

/// Name of the metric.
const METRIC: &str = "chainscope.function.duration";

/// `AGGREGATION_TEMPORALITY_DELTA`.
const DELTA: i32 = 1;

/// The runs as one document, a resource for each of them.
///
/// 64-bit integers are strings, as OTLP/JSON has them.
#[must_use]
pub fn otlp(runs: &[Run]) -> String {
    json!({ "resourceMetrics": runs.iter().map(resource).collect::<Vec<_>>() }).to_string()
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn resource(run: &Run) -> Value {
    let info = &run.info;
    // The semantic conventions have names for most.
    let name = |label: &str| match label {
        "host" => "host.name".to_owned(),
        "kernel" => "os.version".to_owned(),
        "executable" => "process.executable.path".to_owned(),
        "build_id" => "process.executable.build_id.gnu".to_owned(),
        "version" => "service.version".to_owned(),
        "commit" => "vcs.ref.head.revision".to_owned(),
        other => format!("chainscope.{other}"),
    };
    let program = info.executable.rsplit('/').next().unwrap_or_default();
    let mut attributes = vec![
        attribute("service.name", info.node.as_deref().unwrap_or(program)),
        json!({ "key": "process.pid", "value": { "intValue": info.pid.to_string() } }),
    ];
    attributes.extend(super::labels(run).iter().map(|(label, value)| attribute(&name(label), value)));
    json!({
        "resource": { "attributes": attributes },
        "scopeMetrics": [{
            "scope": { "name": "chainscope" },
            "metrics": [{
                "name": METRIC,
                "description": "Durations of spans of functions",
                "unit": "s",
                "exponentialHistogram": {
                    "aggregationTemporality": DELTA,
                    "dataPoints": run.blocks.iter().map(|block| point(run, block)).collect::<Vec<_>>(),
                },
            }],
        }],
    })
}

fn point(run: &Run, block: &Block) -> Value {
    let function = run.functions.get(block.function).map(|function| function.name.as_str()).unwrap_or_default();
    let histogram = block.histogram.to_otlp();
    let end = block.start.0.saturating_add(i64::try_from(block.length.as_nanos()).unwrap_or(i64::MAX));
    json!({
        "attributes": [attribute("code.function.name", function)],
        "startTimeUnixNano": block.start.0.to_string(),
        "timeUnixNano": end.to_string(),
        "count": histogram.count.to_string(),
        "sum": histogram.sum,
        "min": histogram.min,
        "max": histogram.max,
        "scale": histogram.scale,
        "zeroCount": histogram.zero_count.to_string(),
        "zeroThreshold": 0.0,
        "positive": {
            "offset": histogram.positive_offset,
            "bucketCounts": histogram.positive_counts.iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
    })
}
