//! Verification of https servers.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context as _, ensure};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};

/// TLS that verifies servers with the CA certificates of the system.
pub(super) fn system() -> TlsConfig {
    config(RootCerts::PlatformVerifier)
}

/// TLS that verifies servers with the CA bundle in a file.
pub(super) fn file(path: &Path) -> anyhow::Result<TlsConfig> {
    let name = path.display().to_string();
    bundle(&fs::read(path).with_context(|| name.clone())?, &name)
}

/// TLS that verifies servers with a CA bundle; `name` is its source for errors.
pub(super) fn bundle(pem: &[u8], name: &str) -> anyhow::Result<TlsConfig> {
    let mut roots: Vec<Certificate<'static>> = Vec::new();
    for item in ureq::tls::parse_pem(pem) {
        if let PemItem::Certificate(certificate) = item.with_context(|| name.to_owned())? {
            roots.push(certificate);
        }
    }
    ensure!(!roots.is_empty(), "{name} contains no certificate");
    Ok(config(RootCerts::Specific(Arc::new(roots))))
}

fn config(roots: RootCerts) -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(roots)
        .build()
}
