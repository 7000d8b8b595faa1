//! The CA of a cluster and the certificates of its components.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A CA whose files are in one directory.
pub struct CertificateAuthority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// Certificate and key in files.
#[derive(Debug, Clone)]
pub struct Pair {
    /// PEM.
    pub certificate: PathBuf,
    /// PEM, PKCS #8.
    pub key: PathBuf,
}

impl CertificateAuthority {
    /// Creates a CA that writes its own and all issued certificates to that directory.
    ///
    /// # Panics
    /// If a file cannot be written.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        std::fs::create_dir_all(folder).expect("directory of certificates");
        let mut params = named("cluster", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a key");
        let pem = key.serialize_pem();
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let ca = Self { folder: folder.to_owned(), issuer };
        write(&ca.pair("ca"), &ca.issuer.pem(), &pem);
        ca
    }

    /// The CA's own certificate and key.
    #[must_use]
    pub fn own(&self) -> Pair {
        self.pair("ca")
    }

    /// Issues a client certificate for that user in that group.
    ///
    /// # Panics
    /// If a file cannot be written.
    #[must_use]
    pub fn client(&self, file: &str, user: &str, group: Option<&str>) -> Pair {
        let mut params = named(user, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params)
    }

    /// Issues a server certificate for these names and addresses.
    ///
    /// # Panics
    /// If a file cannot be written.
    #[must_use]
    pub fn server(&self, file: &str, names: &[&str]) -> Pair {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("DNS names");
        params.distinguished_name.push(DnType::CommonName, file);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(file, params)
    }

    /// Creates a key pair that signs service-account tokens; the file of the certificate holds the public key.
    ///
    /// # Panics
    /// If a file cannot be written.
    #[must_use]
    pub fn signing_key(&self, file: &str) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let pair = self.pair(file);
        write(&pair, &key.public_key_pem(), &key.serialize_pem());
        pair
    }

    fn sign(&self, file: &str, mut params: CertificateParams) -> Pair {
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let pair = self.pair(file);
        write(&pair, &certificate.pem(), &key.serialize_pem());
        pair
    }

    fn pair(&self, file: &str) -> Pair {
        Pair { certificate: self.folder.join(format!("{file}.crt")), key: self.folder.join(format!("{file}.key")) }
    }
}

fn named(name: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn write(pair: &Pair, certificate: &str, key: &str) {
    for (path, text) in [(&pair.certificate, certificate), (&pair.key, key)] {
        std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}
