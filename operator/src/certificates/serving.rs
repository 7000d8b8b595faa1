//! The operator's serving certificate, in memory.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::ca::CertificateAndKey;

/// The certificate of the config stream. TLS handshakes fail until one is loaded.
#[derive(Debug, Default)]
pub struct ServingCertificate {
    key: ArcSwapOption<CertifiedKey>,
    /// PEM of the certificate, to detect changes.
    certificate: parking_lot::Mutex<String>,
}

impl ServingCertificate {
    /// Whether a certificate is loaded.
    pub fn is_loaded(&self) -> bool {
        self.key.load().is_some()
    }

    /// Uses the certificate from the next handshake on. An invalid certificate is not loaded.
    pub(crate) fn load(&self, pair: &CertificateAndKey) -> Result<(), chainscope_tls::Error> {
        let mut certificate = self.certificate.lock();
        if *certificate != pair.certificate {
            let key = chainscope_tls::certified_key(
                "the operator's certificate",
                pair.certificate.as_bytes(),
                pair.key.as_bytes(),
            )?;
            self.key.store(Some(Arc::new(key)));
            certificate.clone_from(&pair.certificate);
            tracing::info!("serving certificate loaded");
        }
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.key.load_full()
    }
}
