//! Certificates for servers.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// Writes a CA bundle `ca.crt`, and `tls.crt` and `tls.key` of a server called `localhost`.
pub(crate) fn write_certificates(folder: &Path) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &ca).expect("a certificate");
    for (name, text) in [("ca.crt", ca.pem()), ("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem())] {
        fs::write(folder.join(name), text).expect("written");
    }
}
