//! Generated requests of every path get responses as the OpenAPI documents describe them.

use std::{path::Path, process::Command};

use crate::openapi::guarded;

#[test]
fn responses_to_generated_requests_are_as_described() {
    let server = guarded();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/check-api");
    let output = Command::new(script)
        .arg(format!("http://{}", server.http()))
        .env("CHAINSCOPE_TOKEN", "secret")
        .output()
        .unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}\n{errors}");
}
