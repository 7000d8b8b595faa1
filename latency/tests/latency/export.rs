//! Exported histograms, decoded as their specifications say and by nothing of the crate, compared with the blocks.

use std::collections::BTreeMap;

use chainscope_latency::{Histogram, Run, export};
use serde_json::Value;

use crate::runs::run;

/// Relative error that docs/latency.md states.
const ERROR: f64 = 0.038;

/// A decoded exponential histogram: bounds in seconds, and counts.
#[derive(Debug, Default)]
struct Decoded {
    count: u64,
    sum: f64,
    buckets: Vec<(f64, f64, u64)>,
}

impl Decoded {
    /// The bucket that holds a quantile.
    fn quantile(&self, quantile: f64) -> (f64, f64) {
        let rank = (quantile * self.count as f64).ceil() as u64;
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, _, count)| {
            seen += count;
            seen >= rank
        });
        let (low, high, _) = found.unwrap();
        (*low, *high)
    }

    fn assert_is(&self, histogram: &Histogram) {
        assert_eq!((self.count, self.buckets.iter().map(|(_, _, count)| count).sum()), (histogram.count(), self.count));
        let sum = histogram.sum() as f64 / 1e9;
        assert!((self.sum - sum).abs() < 1e-9 * sum, "{} {sum}", self.sum);
        for quantile in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let exact = histogram.quantile(quantile).unwrap() as f64 / 1e9;
            let (low, high) = self.quantile(quantile);
            assert!(
                low >= exact * (1.0 - ERROR) && high <= exact * (1.0 + ERROR),
                "{quantile}: {exact} in {low}..{high}"
            );
        }
    }
}

fn whole(run: &Run, function: usize) -> Histogram {
    let mut whole = Histogram::default();
    run.blocks_of(function).for_each(|block| whole.merge(&block.histogram));
    whole
}

/// The strings of 64-bit integers of OTLP/JSON.
fn integer(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

fn attributes(value: &Value) -> BTreeMap<String, Value> {
    let pairs = value.as_array().unwrap().iter();
    pairs.map(|pair| (pair["key"].as_str().unwrap().to_owned(), pair["value"].clone())).collect()
}

#[test]
fn otlp_has_every_block() {
    let runs = [run(1, 1.0), run(2, 1.1)];
    let request: Value = serde_json::from_str(&export::otlp(&runs)).unwrap();
    let resources = request["resourceMetrics"].as_array().unwrap();
    assert_eq!(resources.len(), 2);
    for (resource, run) in resources.iter().zip(&runs) {
        let named = attributes(&resource["resource"]["attributes"]);
        assert_eq!(named["service.name"]["stringValue"], "main");
        assert_eq!(named["process.pid"]["intValue"], "4242");
        assert_eq!(named["chainscope.run"]["stringValue"], run.info.id.to_string());
        let metric = &resource["scopeMetrics"][0]["metrics"][0];
        assert_eq!(
            (&metric["unit"], &metric["exponentialHistogram"]["aggregationTemporality"]),
            (&"s".into(), &1.into())
        );
        let points = metric["exponentialHistogram"]["dataPoints"].as_array().unwrap();
        assert_eq!(points.len(), run.blocks.len());
        for (point, block) in points.iter().zip(&run.blocks) {
            let function = &attributes(&point["attributes"])["code.function.name"]["stringValue"];
            assert_eq!(function, run.functions[block.function].name.as_str());
            let (start, end) = (integer(&point["startTimeUnixNano"]), integer(&point["timeUnixNano"]));
            assert_eq!((start as i64, end - start), (block.start.0, 30_000_000_000));
            let base = 2_f64.powf(2_f64.powi(-i32::try_from(point["scale"].as_i64().unwrap()).unwrap()));
            let offset = point["positive"]["offset"].as_i64().unwrap();
            let counts = point["positive"]["bucketCounts"].as_array().unwrap().iter().map(integer);
            let buckets = (offset..)
                .zip(counts)
                .map(|(index, count)| (base.powi(index as i32), base.powi(index as i32 + 1), count));
            assert_eq!(integer(&point["zeroCount"]), 0);
            let decoded = Decoded {
                count: integer(&point["count"]),
                sum: point["sum"].as_f64().unwrap(),
                buckets: buckets.collect(),
            };
            decoded.assert_is(&block.histogram);
            assert_eq!(point["max"].as_f64(), block.histogram.max().map(|max| max as f64 / 1e9));
        }
    }
}

/// A field of a protobuf message.
#[derive(Debug, Clone, PartialEq)]
enum Field<'a> {
    Varint(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

impl Field<'_> {
    fn zigzag(&self) -> i64 {
        let Field::Varint(value) = self else { panic!("{self:?}") };
        (value >> 1) as i64 ^ -((value & 1) as i64)
    }

    fn text(&self) -> String {
        let Field::Bytes(bytes) = self else { panic!("{self:?}") };
        String::from_utf8(bytes.to_vec()).unwrap()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// The fields of a message by their numbers, in order.
fn fields<'a>(of: &Field<'a>) -> Vec<(u64, Field<'a>)> {
    let &Field::Bytes(mut bytes) = of else { panic!("{of:?}") };
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Varint(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_first_chunk().unwrap();
                bytes = rest;
                Field::Fixed(u64::from_le_bytes(*value))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(value)
            }
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, field));
    }
    found
}

fn all<'a>(fields: &[(u64, Field<'a>)], number: u64) -> Vec<Field<'a>> {
    fields.iter().filter(|(found, _)| *found == number).map(|(_, field)| field.clone()).collect()
}

/// Numbers of fields are those of `io/prometheus/client/metrics.proto`.
#[test]
fn prometheus_has_every_function_of_every_run() {
    let mut runs = [run(1, 1.0), run(2, 1.1)];
    // Nothing was recorded of the third function of the second run.
    runs[1].blocks.retain(|block| block.function != 2);
    let bytes = export::prometheus(&runs);
    let mut rest = bytes.as_slice();
    let length = varint(&mut rest) as usize;
    assert_eq!(length, rest.len(), "one family with its length before it");
    let family = fields(&Field::Bytes(rest));
    assert_eq!(all(&family, 1)[0].text(), "chainscope_function_duration_seconds");
    assert_eq!(all(&family, 3), [Field::Varint(4)], "a histogram");
    let metrics = all(&family, 4);
    let expected: Vec<(&Run, usize)> =
        runs.iter().flat_map(|run| (0..3).map(move |function| (run, function))).collect();
    assert_eq!(metrics.len(), expected.len());
    for (metric, (run, function)) in metrics.iter().zip(expected) {
        let metric = fields(metric);
        let label = |field: &Field<'_>| {
            let pair = fields(field);
            (all(&pair, 1)[0].text(), all(&pair, 2)[0].text())
        };
        let labels: Vec<(String, String)> = all(&metric, 1).iter().map(label).collect();
        assert!(labels.is_sorted(), "{labels:?}");
        let labels: BTreeMap<_, _> = labels.into_iter().collect();
        assert_eq!((&labels["function"], &labels["run"]), (&run.functions[function].name, &run.info.id.to_string()));
        assert_eq!(all(&metric, 6), [Field::Varint(run.info.end.unwrap().0 as u64 / 1_000_000)]);
        let histogram = fields(&all(&metric, 7)[0]);
        let number = |number: u64| match all(&histogram, number)[0] {
            Field::Varint(value) | Field::Fixed(value) => value,
            Field::Bytes(_) => panic!("{number}"),
        };
        let schema = all(&histogram, 5)[0].zigzag();
        let base = 2_f64.powf(2_f64.powi(-(schema as i32)));
        let (mut index, mut count, mut buckets) = (0_i64, 0_i64, Vec::new());
        let mut deltas = all(&histogram, 13).into_iter();
        for span in all(&histogram, 12) {
            let span = fields(&span);
            index += all(&span, 1)[0].zigzag();
            let Field::Varint(length) = all(&span, 2)[0] else { panic!("{span:?}") };
            for _ in 0..length {
                count += deltas.next().unwrap().zigzag();
                buckets.push((base.powi(index as i32 - 1), base.powi(index as i32), count as u64));
                index += 1;
            }
        }
        assert!(deltas.next().is_none() && !all(&histogram, 12).is_empty());
        let whole = whole(run, function);
        let decoded = Decoded { count: number(1), sum: f64::from_bits(number(2)), buckets };
        if whole.is_empty() {
            assert_eq!((decoded.count, decoded.buckets.len()), (0, 0));
        } else {
            decoded.assert_is(&whole);
        }
    }
}
