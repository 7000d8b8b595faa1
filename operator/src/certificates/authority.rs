//! Making certificates, and reading what is in them. Times are seconds since 1970.

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
/// Life of an authority.
pub(crate) const AUTHORITY_LIFE: i64 = 3650 * DAY;
/// Life of a server's certificate.
pub(crate) const SERVER_LIFE: i64 = 90 * DAY;
/// How far a certificate's begin lies before its making, for hosts whose clocks are behind.
pub(crate) const BACKDATED: i64 = HOUR;

/// Why a certificate could not be made or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("{0} is no time that a certificate can have")]
    Time(i64),
    #[error("not a certificate in PEM")]
    Read,
    #[error("the key is not the certificate's")]
    Mismatch,
}

/// A certificate and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: Zeroizing<String>,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Makes an authority of its own.
pub(crate) fn new_authority(name: &str, now: i64) -> Result<Pair, Error> {
    let mut params = CertificateParams::default();
    // Two authorities of one release differ in their names, too.
    params.distinguished_name.push(DnType::CommonName, format!("{name} authority {now}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = (time(now - BACKDATED)?, time(now + AUTHORITY_LIFE)?);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Ok(Pair { certificate, key: secret(key) })
}

/// Makes a server's certificate for these DNS names.
pub(crate) fn new_server(authority: &Pair, names: &BTreeSet<String>, now: i64) -> Result<Pair, Error> {
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)?;
    let mut params = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>())?;
    if let Some(name) = names.first() {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name.clone());
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = (time(now - BACKDATED)?, time(now + SERVER_LIFE)?);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok(Pair { certificate, key: secret(key) })
}

fn time(seconds: i64) -> Result<OffsetDateTime, Error> {
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| Error::Time(seconds))
}

fn secret(mut key: KeyPair) -> Zeroizing<String> {
    let pem = Zeroizing::new(key.serialize_pem());
    zeroize::Zeroize::zeroize(&mut key);
    pem
}

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct About {
    der: CertificateDer<'static>,
    /// When it was made, and when it ends.
    pub(crate) made: i64,
    pub(crate) ends: i64,
    /// The DNS names it is for.
    pub(crate) names: BTreeSet<String>,
    /// Whether it may sign others.
    pub(crate) authority: bool,
    public_key: Vec<u8>,
}

impl About {
    /// Reads the first certificate of a PEM text.
    pub(crate) fn read(pem: &str) -> Result<Self, Error> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| Error::Read)?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_| Error::Read)?;
        let mut names = BTreeSet::new();
        for extension in parsed.extensions() {
            if let ParsedExtension::SubjectAlternativeName(alternatives) = extension.parsed_extension() {
                names.extend(alternatives.general_names.iter().filter_map(|name| match name {
                    GeneralName::DNSName(name) => Some((*name).to_owned()),
                    _ => None,
                }));
            }
        }
        let about = Self {
            made: parsed.validity().not_before.timestamp().saturating_add(BACKDATED),
            ends: parsed.validity().not_after.timestamp(),
            names,
            authority: parsed.is_ca(),
            public_key: parsed.public_key().subject_public_key.data.to_vec(),
            der: der.clone(),
        };
        Ok(about)
    }

    /// Whether the authority of that certificate has signed this one.
    pub(crate) fn signed_by(&self, authority: &Self) -> bool {
        let (Ok((_, own)), Ok((_, other))) =
            (X509Certificate::from_der(&self.der), X509Certificate::from_der(&authority.der))
        else {
            return false;
        };
        own.issuer() == other.subject() && own.verify_signature(Some(other.public_key())).is_ok()
    }

    /// Checks that the key is this certificate's.
    pub(crate) fn has_key(&self, key: &str) -> Result<(), Error> {
        let key = KeyPair::from_pem(key).map_err(|_| Error::Mismatch)?;
        if key.public_key_raw() == self.public_key { Ok(()) } else { Err(Error::Mismatch) }
    }
}
