//! `chainscope messages` against an aggregator with TLS and tokens.

use std::fs;

use chainscope_aggregator::access::AccessConfig;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::{
    chainscope, refusal,
    server::{Server, metadata},
};

#[test]
fn a_token_and_a_ca_bundle_reach_a_server_of_a_cluster() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &ca).expect("a certificate");
    for (name, text) in [
        ("ca.crt", ca.pem()),
        ("tls.crt", certificate.pem()),
        ("tls.key", key.serialize_pem()),
        ("tokens", "5ecret alice *\n".to_owned()),
        ("none.crt", String::new()),
    ] {
        fs::write(file(name), text).expect("written");
    }
    let mut server = Server::with(|config| {
        config.tls = Some(folder.path().to_owned());
        config.api_tls = true;
        config.access = AccessConfig::TokenFile(file("tokens").into());
    });
    server.feed([metadata(20_001, true, 0), metadata(20_002, false, 0)].concat());
    let url = server.url().replace("http://127.0.0.1", "https://localhost");

    let messages = ["messages", "--no-follow", "--url", &url, "--ca-file", &file("ca.crt")];
    let shown = chainscope(&messages).env("CHAINSCOPE_TOKEN", "5ecret\n").output().expect("it starts");
    let lines = String::from_utf8(shown.stdout).expect("UTF-8");
    assert_eq!(lines.lines().count(), 2, "{lines}{}", String::from_utf8_lossy(&shown.stderr));
    assert!(lines.starts_with("12:02:03.456       0 ← 127.0.0.1:20001"), "{lines}");

    assert!(refusal(&messages).contains("401"), "without a token");
    assert!(refusal(&["messages", "--no-follow", "--url", &url]).contains("--ca-file is missing"));
    let unknown = refusal(&["messages", "--no-follow", "--url", &url, "--ca-file", &file("none.crt")]);
    assert!(unknown.contains("contains no certificate"), "{unknown}");
    let other = refusal(&[
        "messages",
        "--no-follow",
        "--url",
        &url.replace("localhost", "127.0.0.1"),
        "--ca-file",
        &file("ca.crt"),
    ]);
    assert!(other.contains("no response"), "a certificate of another name: {other}");
}
