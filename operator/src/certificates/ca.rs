//! Creation and parsing of certificates. Times are seconds since the Unix epoch.

use std::{collections::BTreeSet, fmt};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use time::OffsetDateTime;
use x509_parser::{
    certificate::X509Certificate,
    extensions::GeneralName,
    prelude::{FromDer as _, ParsedExtension},
};
use zeroize::Zeroizing;

pub(crate) const HOUR: i64 = 3600;
pub(crate) const DAY: i64 = 24 * HOUR;
/// Lifetime of a CA certificate.
pub(crate) const CA_LIFETIME: i64 = 3650 * DAY;
/// Lifetime of a server certificate.
pub(crate) const SERVER_LIFETIME: i64 = 90 * DAY;
/// Time between `notBefore` and the creation of a certificate, for hosts whose clocks are behind.
pub(crate) const NOT_BEFORE_OFFSET: i64 = HOUR;

/// Errors of certificate creation and parsing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot create a certificate: {0}")]
    Create(#[from] rcgen::Error),
    #[error("timestamp {0} is out of the range of a certificate")]
    Time(i64),
    #[error("not a PEM-encoded certificate")]
    Parse,
    #[error("the key does not match the certificate")]
    Mismatch,
}

/// A certificate and its private key, both PEM-encoded.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CertificateAndKey {
    pub(crate) certificate: String,
    pub(crate) key: Zeroizing<String>,
}

impl fmt::Debug for CertificateAndKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAndKey").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Creates a self-signed CA certificate.
pub(crate) fn new_ca(name: &str, now: i64) -> Result<CertificateAndKey, Error> {
    let mut params = CertificateParams::default();
    // The creation time makes the subjects of a release's CAs distinct.
    params.distinguished_name.push(DnType::CommonName, format!("{name} CA {now}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = (time(now - NOT_BEFORE_OFFSET)?, time(now + CA_LIFETIME)?);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Ok(CertificateAndKey { certificate, key: secret(key) })
}

/// Creates a server certificate for the given DNS names.
pub(crate) fn new_server_certificate(
    ca: &CertificateAndKey,
    names: &BTreeSet<String>,
    now: i64,
) -> Result<CertificateAndKey, Error> {
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, KeyPair::from_pem(&ca.key)?)?;
    let mut params = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>())?;
    if let Some(name) = names.first() {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name.clone());
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = (time(now - NOT_BEFORE_OFFSET)?, time(now + SERVER_LIFETIME)?);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok(CertificateAndKey { certificate, key: secret(key) })
}

fn time(seconds: i64) -> Result<OffsetDateTime, Error> {
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| Error::Time(seconds))
}

fn secret(mut key: KeyPair) -> Zeroizing<String> {
    let pem = Zeroizing::new(key.serialize_pem());
    zeroize::Zeroize::zeroize(&mut key);
    pem
}

/// Fields of a parsed certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateInfo {
    der: CertificateDer<'static>,
    /// Creation time: `notBefore` without the offset.
    pub(crate) created: i64,
    pub(crate) not_after: i64,
    /// DNS names in the subject alternative names.
    pub(crate) names: BTreeSet<String>,
    pub(crate) is_ca: bool,
    public_key: Vec<u8>,
}

impl CertificateInfo {
    /// Parses the first certificate of a PEM text.
    pub(crate) fn parse(pem: &str) -> Result<Self, Error> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| Error::Parse)?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_| Error::Parse)?;
        let mut names = BTreeSet::new();
        for extension in parsed.extensions() {
            if let ParsedExtension::SubjectAlternativeName(alternatives) = extension.parsed_extension() {
                names.extend(alternatives.general_names.iter().filter_map(|name| match name {
                    GeneralName::DNSName(name) => Some((*name).to_owned()),
                    _ => None,
                }));
            }
        }
        let info = Self {
            created: parsed.validity().not_before.timestamp().saturating_add(NOT_BEFORE_OFFSET),
            not_after: parsed.validity().not_after.timestamp(),
            names,
            is_ca: parsed.is_ca(),
            public_key: parsed.public_key().subject_public_key.data.to_vec(),
            der: der.clone(),
        };
        Ok(info)
    }

    /// Whether the given CA signed this certificate.
    pub(crate) fn signed_by(&self, ca: &Self) -> bool {
        let (Ok((_, own)), Ok((_, other))) = (X509Certificate::from_der(&self.der), X509Certificate::from_der(&ca.der))
        else {
            return false;
        };
        own.issuer() == other.subject() && own.verify_signature(Some(other.public_key())).is_ok()
    }

    /// Checks that the private key matches this certificate.
    pub(crate) fn has_key(&self, key: &str) -> Result<(), Error> {
        let key = KeyPair::from_pem(key).map_err(|_| Error::Mismatch)?;
        if key.public_key_raw() == self.public_key { Ok(()) } else { Err(Error::Mismatch) }
    }
}
