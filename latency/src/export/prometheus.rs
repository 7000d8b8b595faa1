//! The exposition format of Prometheus as protobuf (`io.prometheus.client.MetricFamily`, each with its length before it): a native
//! histogram for each function of each run. Its text formats have no native histograms.

use prost::Message;

use crate::{
    Histogram,
    model::{Run, Time},
};

/// `HISTOGRAM` of `MetricType`.
const HISTOGRAM: i32 = 4;

// `metrics.proto` of prometheus/client_model, as far as it is written here.

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metrics: Vec<Metric>,
    #[prost(string, optional, tag = "5")]
    unit: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(int64, optional, tag = "6")]
    timestamp_ms: Option<i64>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<NativeHistogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct NativeHistogram {
    #[prost(uint64, optional, tag = "1")]
    count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sum: Option<f64>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_spans: Vec<BucketSpan>,
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    positive_deltas: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

/// The runs as one metric family. The time of a histogram is the end of its run, or of its last block.
#[must_use]
pub fn prometheus(runs: &[Run]) -> Vec<u8> {
    let family = MetricFamily {
        name: Some("chainscope_function_duration_seconds".to_owned()),
        help: Some("Durations of spans of functions".to_owned()),
        kind: Some(HISTOGRAM),
        metrics: runs.iter().flat_map(metrics).collect(),
        unit: Some("seconds".to_owned()),
    };
    family.encode_length_delimited_to_vec()
}

fn metrics(run: &Run) -> impl Iterator<Item = Metric> {
    let end = |start: Time, nanoseconds: u128| start.0.saturating_add(i64::try_from(nanoseconds).unwrap_or(i64::MAX));
    let last = run.blocks.iter().map(|block| end(block.start, block.length.as_nanos())).max();
    let end = run.info.end.map(|end| end.0).or(last).unwrap_or(run.info.start.0);
    run.functions.iter().enumerate().map(move |(index, function)| {
        let mut whole = Histogram::default();
        run.blocks_of(index).for_each(|block| whole.merge(&block.histogram));
        let mut labels = vec![("function", function.name.clone())];
        labels.extend(super::labels(run));
        // Sorted, as clients write them.
        labels.sort_unstable();
        let label = |(name, value): (&str, String)| Label { name: Some(name.to_owned()), value: Some(value) };
        Metric {
            labels: labels.into_iter().map(label).collect(),
            timestamp_ms: Some(end.div_euclid(1_000_000)),
            histogram: Some(native(&whole)),
        }
    })
}

fn native(histogram: &Histogram) -> NativeHistogram {
    let of = histogram.to_prometheus();
    let span = |offset, length| BucketSpan { offset: Some(offset), length: Some(length) };
    let mut positive_spans: Vec<BucketSpan> =
        of.positive_spans.iter().map(|held| span(held.offset, held.length)).collect();
    if positive_spans.is_empty() {
        // What tells an empty native histogram from one of fixed bounds.
        positive_spans.push(span(0, 0));
    }
    NativeHistogram {
        count: Some(of.count),
        sum: Some(of.sum),
        schema: Some(of.schema.into()),
        zero_threshold: Some(of.zero_threshold),
        zero_count: Some(of.zero_count),
        positive_spans,
        positive_deltas: of.positive_deltas,
    }
}
