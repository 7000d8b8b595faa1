//! The operator's own certificate, in memory.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::authority::Pair;

/// The certificate that the operator serves at the moment. Until there is one, handshakes fail.
#[derive(Debug, Default)]
pub struct Served {
    key: ArcSwapOption<CertifiedKey>,
    /// The certificate's PEM, to see whether another one came.
    certificate: parking_lot::Mutex<String>,
}

impl Served {
    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.key.load().is_some()
    }

    /// Serves this pair from the next handshake on. A pair that is no good changes nothing.
    pub(crate) fn take(&self, pair: &Pair) -> Result<(), chainscope_tls::Error> {
        let mut certificate = self.certificate.lock();
        if *certificate != pair.certificate {
            let key = chainscope_tls::certified_key(
                "the operator's certificate",
                pair.certificate.as_bytes(),
                pair.key.as_bytes(),
            )?;
            self.key.store(Some(Arc::new(key)));
            certificate.clone_from(&pair.certificate);
            tracing::info!("a new certificate is in use");
        }
        Ok(())
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.key.load_full()
    }
}
