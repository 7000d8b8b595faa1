//! Histograms of runs in the formats of other programs: OTLP, and the exposition format of Prometheus. Return codes, unended spans and
//! losses are not in there.

mod otlp;
mod prometheus;

pub use self::{otlp::otlp, prometheus::prometheus};

/// What labels a run: pairs of a name and a value, without those that are not known.
fn labels(run: &crate::Run) -> Vec<(&'static str, String)> {
    let info = &run.info;
    let pairs = [
        ("run", Some(info.id.to_string())),
        ("node", info.node.clone()),
        ("host", Some(info.host.clone())),
        ("kernel", Some(info.kernel.clone())),
        ("executable", Some(info.executable.clone())),
        ("build_id", info.build_id.clone()),
        ("version", info.version.clone()),
        ("commit", info.commit.clone()),
        ("tags", Some(info.tags.iter().cloned().collect::<Vec<_>>().join(","))),
    ];
    pairs.into_iter().filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?))).collect()
}
