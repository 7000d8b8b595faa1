//! Tests over TCP connections, with generated certificates.

use std::{
    convert::Infallible,
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
};
use tonic::{body::Body, codegen::Service, metadata::MetadataMap, server::NamedService, transport::Server};

use crate::{Acceptor, CertificateDir, Error, Protocol, Remote, Token, bearer, incoming};

/// A CA.
struct CertificateAuthority(CertifiedIssuer<'static, KeyPair>);

impl CertificateAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// A directory as the kubelet mounts a Secret: `tls.crt -> ..data/tls.crt`, `..data -> version`.
struct MountedSecret {
    dir: TempDir,
    versions: u32,
}

impl MountedSecret {
    fn new((chain, key): (String, String)) -> Self {
        let dir = TempDir::new().unwrap();
        symlink("..data/tls.crt", dir.path().join("tls.crt")).unwrap();
        symlink("..data/tls.key", dir.path().join("tls.key")).unwrap();
        let mut mounted = Self { dir, versions: 0 };
        mounted.replace((chain, key));
        mounted
    }

    fn replace(&mut self, (chain, key): (String, String)) {
        self.versions += 1;
        let version = format!("..{}", self.versions);
        let folder = self.dir.path().join(&version);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("tls.crt"), chain).unwrap();
        fs::write(folder.join("tls.key"), key).unwrap();
        let next = self.dir.path().join("..next");
        symlink(&version, &next).unwrap();
        fs::rename(next, self.dir.path().join("..data")).unwrap();
    }
}

/// A service without methods, for tests of the connection alone.
#[derive(Clone)]
struct Nothing;

impl NamedService for Nothing {
    const NAME: &'static str = "nothing";
}

impl Service<http::Request<Body>> for Nothing {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        std::future::ready(Ok(http::Response::new(Body::empty())))
    }
}

async fn serve(acceptor: Acceptor) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = incoming(listener, acceptor);
    tokio::spawn(Server::builder().add_service(Nothing).serve_with_incoming(incoming));
    address
}

/// Calls a method that does not exist: the error response proves that the connection uses HTTP/2.
async fn call(remote: &Remote) -> Result<(), Error> {
    let channel = remote.connect().await?;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("a channel");
    let codec = tonic_nothing::Nothing;
    let path = http::uri::PathAndQuery::from_static("/nothing/There");
    let answer = grpc.unary(tonic::Request::new(()), path, codec).await;
    assert!(answer.is_err(), "the service has no methods");
    Ok(())
}

/// A codec of empty messages.
mod tonic_nothing {
    use tonic::{
        Status,
        codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    };

    #[derive(Default)]
    pub(super) struct Nothing;

    impl Codec for Nothing {
        type Encode = ();
        type Decode = ();
        type Encoder = Self;
        type Decoder = Self;

        fn encoder(&mut self) -> Self {
            Self
        }

        fn decoder(&mut self) -> Self {
            Self
        }
    }

    impl Encoder for Nothing {
        type Item = ();
        type Error = Status;

        fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
            Ok(())
        }
    }

    impl Decoder for Nothing {
        type Item = ();
        type Error = Status;

        fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
            Ok(Some(()))
        }
    }
}

fn ca_file(dir: &Path, pem: &str) -> PathBuf {
    let path = dir.join("ca.crt");
    fs::write(&path, pem).unwrap();
    path
}

#[tokio::test]
async fn a_replaced_certificate_is_in_use_with_the_next_connection() {
    let (old, new) = (CertificateAuthority::new(), CertificateAuthority::new());
    let mut mounted = MountedSecret::new(old.issue());
    let certificates = CertificateDir::open(mounted.dir.path()).unwrap();
    let address = serve(Acceptor::tls(certificates, Protocol::Grpc).unwrap()).await;
    let trust = TempDir::new().unwrap();
    let file = ca_file(trust.path(), &old.pem());
    let remote = Remote::new(&format!("https://localhost:{}", address.port()), Some(file.clone())).unwrap();
    call(&remote).await.unwrap();

    mounted.replace(new.issue());
    let error = remote.connect().await.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");

    // The client reads its CA bundle again; during a rotation it contains both CAs.
    fs::write(&file, format!("{}{}", old.pem(), new.pem())).unwrap();
    call(&remote).await.unwrap();
    mounted.replace(old.issue());
    call(&remote).await.unwrap();
}

#[tokio::test]
async fn damaged_files_leave_the_last_valid_pair_in_use() {
    let ca = CertificateAuthority::new();
    let good = ca.issue();
    let mut mounted = MountedSecret::new(good.clone());
    let certificates = CertificateDir::open(mounted.dir.path()).unwrap();
    let first = certificates.key();
    let other = ca.issue();
    for (chain, key) in [
        (good.0.clone(), other.1.clone()),
        (String::new(), good.1.clone()),
        (good.0.clone(), "no key".to_owned()),
        ("x".repeat(2 << 20), good.1),
    ] {
        mounted.replace((chain, key));
        assert!(Arc::ptr_eq(&first, &certificates.key()));
        let error = CertificateDir::open(mounted.dir.path()).unwrap_err().to_string();
        assert!(!error.contains("PRIVATE") && error.len() < 500, "{error}");
    }
    fs::remove_file(mounted.dir.path().join("..data")).unwrap();
    assert!(Arc::ptr_eq(&first, &certificates.key()));
    mounted.replace(other);
    assert!(!Arc::ptr_eq(&first, &certificates.key()));
    assert!(Arc::ptr_eq(&certificates.key(), &certificates.key()), "unchanged files are not loaded again");
}

#[tokio::test]
async fn a_server_certificate_of_another_name_or_ca_is_not_trusted() {
    let ca = CertificateAuthority::new();
    let mounted = MountedSecret::new(ca.issue());
    let certificates = CertificateDir::open(mounted.dir.path()).unwrap();
    let address = serve(Acceptor::tls(certificates, Protocol::Grpc).unwrap()).await;
    let trust = TempDir::new().unwrap();
    let file = ca_file(trust.path(), &ca.pem());

    let by_address = Remote::new(&format!("https://127.0.0.1:{}", address.port()), Some(file.clone())).unwrap();
    let error = by_address.connect().await.unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "{error}");

    fs::write(&file, CertificateAuthority::new().pem()).unwrap();
    let uri = format!("https://localhost:{}", address.port());
    let by_name = Remote::new(&uri, Some(file.clone())).unwrap();
    let error = by_name.connect().await.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");

    fs::remove_file(&file).unwrap();
    let error = by_name.connect().await.unwrap_err().to_string();
    assert!(error.contains("cannot read"), "{error}");
}

#[tokio::test]
async fn a_client_without_a_handshake_does_not_delay_others() {
    let ca = CertificateAuthority::new();
    let mounted = MountedSecret::new(ca.issue());
    let certificates = CertificateDir::open(mounted.dir.path()).unwrap();
    let address = serve(Acceptor::tls(certificates, Protocol::Grpc).unwrap()).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let trust = TempDir::new().unwrap();
    let file = ca_file(trust.path(), &ca.pem());
    let remote = Remote::new(&format!("https://localhost:{}", address.port()), Some(file)).unwrap();
    call(&remote).await.unwrap();

    // A client with another protocol is disconnected.
    let mut wrong = silent.remove(0);
    tokio::io::AsyncWriteExt::write_all(&mut wrong, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = wrong.read_to_end(&mut rest).await;
    call(&remote).await.unwrap();
}

#[tokio::test]
async fn connections_without_tls() {
    let address = serve(Acceptor::plain()).await;
    call(&Remote::new(&format!("http://{address}"), None).unwrap()).await.unwrap();
    let v6 = Remote::new("http://[::1]:1", None).unwrap();
    let error = v6.connect().await.unwrap_err().to_string();
    assert!(error.starts_with("cannot connect to http://[::1]:1: "), "{error}");
}

#[test]
fn addresses_that_do_not_match_the_ca_bundle_are_rejected() {
    let file = || Some(PathBuf::from("/ca.crt"));
    for (uri, file, reason) in [
        ("https://operator:17734", None, "needs the file"),
        ("http://operator:17734", file(), "not https"),
        ("operator:17734", None, "neither"),
        ("ftp://operator", file(), "neither"),
        ("/path", None, "no host"),
        ("", None, "empty"),
        ("https://-bad-.-:1", file(), "dns name"),
    ] {
        let error = Remote::new(uri, file).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(uri), "{uri}: {error}");
    }
    Remote::new("https://chainscope-operator.chainscope.svc:17734", file()).unwrap();
    Remote::new("https://[::1]:17734", file()).unwrap();
}

#[test]
fn a_token_is_sent_to_the_server_and_never_printed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "abc.def-_1\n").unwrap();
    let token = Token::read(&path).unwrap();
    assert!(!format!("{token:?}").contains("abc"));
    let mut metadata = MetadataMap::new();
    token.authorize(&mut metadata);
    assert!(!format!("{metadata:?}").contains("abc"));
    assert_eq!(bearer(&metadata).unwrap(), "abc.def-_1");

    for text in ["", "\n", "two words", "ta\u{0}b", &"x".repeat(20 << 10)] {
        fs::write(&path, text).unwrap();
        assert!(matches!(Token::read(&path), Err(Error::Token { .. })), "{text:?}");
    }
}

#[test]
fn calls_without_a_valid_token_are_rejected_with_a_reason() {
    let rejection = |value: Option<&str>| {
        let mut metadata = MetadataMap::new();
        if let Some(value) = value {
            metadata.insert("authorization", value.parse().unwrap());
        }
        bearer(&metadata).map(str::to_owned).map_err(|status| status.message().to_owned())
    };
    assert_eq!(rejection(Some("bearer x")).unwrap(), "x");
    assert!(rejection(None).unwrap_err().contains("no bearer token"));
    assert!(rejection(Some("Basic eA==")).unwrap_err().contains("not a bearer token"));
    assert!(rejection(Some("Bearer ")).unwrap_err().contains("empty"));
    assert!(rejection(Some("Bearer a b")).unwrap_err().contains("characters"));
    let mut twice = MetadataMap::new();
    twice.append("authorization", "Bearer a".parse().unwrap());
    twice.append("authorization", "Bearer b".parse().unwrap());
    assert!(bearer(&twice).is_err());
}
