//! The proxy for TezEdge Explorer, in front of an encrypted API that requires a token.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
};

use axum::{Router, extract::Request};
use chainscope_aggregator::{
    NodeConfig,
    access::AccessConfig,
    explorer_proxy::{Config, Proxy},
};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_testing::wait::until_true;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::common::{LIMIT, Server, TIME, fake::Reviews, get, message, record};

struct Setup {
    server: Server,
    proxy: SocketAddr,
    files: TempDir,
    reviews: Arc<Reviews>,
    stop: CancellationToken,
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Creates a CA in `ca.crt`, and a certificate of it in the directory `tls`.
fn certify(dir: &Path) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    fs::create_dir_all(dir.join("tls")).unwrap();
    fs::write(dir.join("ca.crt"), ca.pem()).unwrap();
    fs::write(dir.join("tls/tls.crt"), certificate.pem()).unwrap();
    fs::write(dir.join("tls/tls.key"), key.serialize_pem()).unwrap();
}

fn setup() -> Setup {
    let files = tempfile::tempdir().unwrap();
    certify(files.path());
    fs::write(files.path().join("token"), "explorer-token\n").unwrap();
    let reviews = Arc::new(Reviews::default());
    reviews.user("explorer-token", "explorer");
    for name in ["x", "y"] {
        reviews.allow("explorer", "messages", "a", name);
    }
    let access = AccessConfig::Kubernetes(Arc::clone(&reviews) as _);
    let server = Server::with(|config| {
        for (name, alias) in [("a/x", "9732"), ("a/y", "9733"), ("a/z", "9734")] {
            config.nodes.push(NodeConfig { aliases: vec![alias.into()], ..NodeConfig::new(name) });
        }
        config.access = access;
        config.tls = Some(files.path().join("tls"));
        config.api_tls = true;
    });
    let stop = CancellationToken::new();
    let proxy = server.runtime.block_on(async {
        let page = Router::new().fallback(async |request: Request| {
            let authorization = request.headers().get("authorization").is_some();
            format!("page {} {authorization}", request.uri())
        });
        let pages = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let explorer = format!("http://{}", pages.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(pages, page).await.unwrap() });
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            api: format!("https://localhost:{}", server.http().port()),
            explorer,
            token_file: Some(files.path().join("token")),
            ca_file: Some(files.path().join("ca.crt")),
            nodes: vec!["a/x".into()],
            hosts: vec!["explorer.example".into()],
        };
        let proxy = Proxy::bind(config).await.unwrap();
        let address = proxy.address().unwrap();
        tokio::spawn(proxy.serve(stop.clone()));
        address
    });
    Setup { server, proxy, files, reviews, stop }
}

fn messages(count: usize) -> Vec<Record> {
    (0..count).map(|_| record(TIME, Kind::Message(message("advertise")))).collect()
}

#[test]
fn pages_come_from_the_explorer_and_data_of_the_listed_node_from_the_api() {
    let setup = setup();
    setup.server.feed("a/x", messages(3));
    setup.server.feed("a/y", messages(1));
    let ask = |path: &str| get(setup.proxy, "GET", path, &[("authorization", "Bearer mine"), ("cookie", "c=1")]);
    assert_eq!(ask("/").body, "page / false");
    assert_eq!(ask("/assets/env.js?x=1").body, "page /assets/env.js?x=1 false");
    assert_eq!(ask("/metrics").body, "page /metrics false", "the API's own is not behind it");
    for path in
        ["/v2/p2p", "/v2/p2p?node_name=9732", "/v2/p2p?node_name=a/x&limit=3", "/nodes/a/x/v2/p2p", "/nodes/x/v2/p2p"]
    {
        let answer = ask(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let rows: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 3, "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), None, "pages of other origins may not read it");
    }
    // a/y could be read by the token, but is not listed here.
    for path in
        ["/v2/p2p?node_name=9733", "/nodes/a/y/v2/p2p", "/v2/p2p?node_name=a/z", "/nodes/a/x", "/nodes/a/x/v9/z"]
    {
        assert_eq!(ask(path).status, 404, "{path}");
    }
    for path in ["/chains/main/blocks/head/header", "/nodes/a/x/chains/main/blocks/head/header"] {
        assert_eq!(ask(path).body, "{}", "{path}");
    }
    let nodes: serde_json::Value = serde_json::from_str(&ask("/nodes").body).unwrap();
    assert_eq!((nodes.as_array().unwrap().len(), &nodes[0]["name"]), (1, &"a/x".into()));
    assert_eq!(ask("/v3/chunks").status, 403, "the token's rights hold");
    for path in ["/", "/v2/p2p", "/nodes"] {
        let rebound = get(setup.proxy, "GET", path, &[("host", "evil.example")]);
        assert_eq!(rebound.status, 421, "{path}: {}", rebound.body);
    }
    for method in ["POST", "OPTIONS", "DELETE"] {
        assert_eq!(get(setup.proxy, method, "/v2/p2p", &[]).status, 405, "{method}");
    }
}

#[test]
fn request_ids_entity_tags_and_compressed_responses_pass() {
    let setup = setup();
    setup.server.feed("a/x", messages(50));
    let ask = |path: &str, headers: &[(&str, &str)]| get(setup.proxy, "GET", path, headers);
    let whole = ask("/v2/p2p/0", &[("x-request-id", "browser-1")]);
    assert_eq!((whole.status, whole.header("x-request-id")), (200, Some("browser-1")));
    let known = ask("/v2/p2p/0", &[("if-none-match", whole.header("etag").unwrap())]);
    assert_eq!((known.status, known.body.as_str(), known.header("etag")), (304, "", whole.header("etag")));
    let zipped = ask("/v2/p2p", &[("accept-encoding", "gzip")]);
    assert_eq!((zipped.status, zipped.header("content-encoding")), (200, Some("gzip")));
    assert!(zipped.all("vary").contains(&"accept-encoding"), "{:?}", zipped.headers);
    // Of the API, and of the proxy itself.
    for path in ["/v2/p2p?limit=x", "/v2/p2p?node_name=none"] {
        let refused = ask(path, &[("x-request-id", "browser-2")]);
        let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
        assert_eq!((&problem["request_id"], refused.header("x-request-id")), (&"browser-2".into(), Some("browser-2")));
    }
}

#[test]
fn live_streams_pass_and_new_certificates_and_tokens_are_loaded() {
    let setup = setup();
    let mut stream = TcpStream::connect(setup.proxy).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET /v2/p2p/stream HTTP/1.1\r\nhost: explorer.example\r\naccept: text/event-stream\r\n\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut wait_for = |text: &str| while !lines.next().expect("the stream goes on").unwrap().contains(text) {};
    wait_for(": open");
    setup.server.feed("a/x", messages(1));
    wait_for("id: 0");

    certify(setup.files.path());
    fs::write(setup.files.path().join("token"), "next-token").unwrap();
    let answer = get(setup.proxy, "GET", "/v2/p2p", &[]);
    assert_eq!(answer.status, 502, "{}", answer.body);
    assert!(answer.body.contains("401") && !answer.body.contains("next-token"), "{}", answer.body);
    setup.reviews.user("next-token", "explorer");
    fs::write(setup.files.path().join("ca.crt"), "none").unwrap();
    assert_eq!(get(setup.proxy, "GET", "/v2/p2p", &[]).status, 502);
    certify(setup.files.path());
    // A refusal is cached for some seconds.
    until_true("the new token is good", || get(setup.proxy, "GET", "/v2/p2p", &[]).status == 200);
}
