//! The test vectors: paths, and the output of the independent decoder.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The path of a file or directory of the Tezos vectors.
///
/// # Panics
/// If it does not exist.
#[must_use]
pub fn tezos(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/tezos").join(path);
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// A JSON file of the vectors.
///
/// # Panics
/// If it does not exist, or is not JSON.
#[must_use]
pub fn json(path: &str) -> Value {
    let text = std::fs::read(tezos(path)).expect("readable");
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A file of JSON lines.
///
/// # Panics
/// If it does not exist, or is not JSON lines.
#[must_use]
pub fn json_lines(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(tezos(path)).expect("readable");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{path}: {e}"))).collect()
}
