//! The committed OpenAPI documents are up to date. `UPDATE_GOLDEN=1` regenerates them.

use std::{env, fs, path::Path};

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

#[test]
fn every_path_is_described_once() {
    let [full, recorder, profiler] = chainscope_aggregator::openapi();
    let paths = |text: &str| {
        let document: serde_json::Value = serde_json::from_str(text).unwrap();
        document["paths"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    let full = paths(&full);
    assert_eq!(full.len(), 20);
    assert!(paths(&recorder).iter().chain(&paths(&profiler)).all(|path| full.contains(path)));
}
