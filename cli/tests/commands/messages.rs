//! `chainscope messages` against an aggregator with TLS and tokens.

use std::fs;

use chainscope_aggregator::access::AccessConfig;

use crate::{
    chainscope, refusal, refusal_with,
    server::{Server, metadata},
    stdout,
    tls::write_certificates,
};

#[test]
fn a_token_and_a_ca_bundle_reach_a_server_of_a_cluster() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str| folder.path().join(name).display().to_string();
    write_certificates(folder.path());
    for (name, text) in
        [("tokens", "5ecret alice *\n".to_owned()), ("token", "5ecret\n".to_owned()), ("none.crt", String::new())]
    {
        fs::write(file(name), text).expect("written");
    }
    let mut server = Server::with(|config| {
        config.tls = Some(folder.path().to_owned());
        config.api_tls = true;
        config.access = AccessConfig::TokenFile(file("tokens").into());
    });
    server.feed([metadata(20_001, true, 0), metadata(20_002, false, 0)].concat());
    let url = server.url().replace("http://127.0.0.1", "https://localhost");

    let messages = ["messages", "--api", &url, "--ca-file", &file("ca.crt")];
    let shown = chainscope(&messages).env("CHAINSCOPE_TOKEN", "5ecret\n").output().expect("it starts");
    let lines = String::from_utf8(shown.stdout).expect("UTF-8");
    assert_eq!(lines.lines().count(), 2, "{lines}{}", String::from_utf8_lossy(&shown.stderr));
    assert!(lines.starts_with("2021-07-14T12:02:03.456Z   0 ← 127.0.0.1:20001"), "{lines}");
    let with_file = stdout(&[&messages[..], &["--token-file", &file("token")]].concat());
    assert_eq!(with_file, lines);
    let system = ["messages", "--api", &url, "--token", "5ecret"];
    let trusted = chainscope(&system).env("SSL_CERT_FILE", file("ca.crt")).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&trusted.stdout), lines, "{}", String::from_utf8_lossy(&trusted.stderr));

    let unauthorized = refusal_with(2, &messages);
    assert!(unauthorized.contains("401") && unauthorized.contains("\nhint: --token-file"), "{unauthorized}");
    let untrusted = refusal(&system);
    assert!(untrusted.contains("UnknownIssuer") && untrusted.contains("\nhint: --ca-file"), "{untrusted}");
    let unknown = refusal(&["messages", "--api", &url, "--ca-file", &file("none.crt")]);
    assert!(unknown.contains("contains no certificate"), "{unknown}");
    let other = refusal(&["messages", "--url", &url.replace("localhost", "127.0.0.1"), "--ca-file", &file("ca.crt")]);
    assert!(other.contains("\nhint: the certificate must be valid"), "a certificate of another name: {other}");
    fs::write(file("token"), "revoked\n").expect("written");
    let revoked = refusal_with(2, &[&messages[..], &["--token-file", &file("token")]].concat());
    assert!(revoked.contains("401"), "the file is read again: {revoked}");
}
