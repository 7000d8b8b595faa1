//! Server certificates and keys: from PEM, and from a directory that is checked for changes in each handshake.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use chainscope_hygiene::warn_limited;
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use zeroize::Zeroizing;

use crate::{Error, provider};

/// Maximum size of a file of certificates or of a key, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file of bounded size into zeroizing memory.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Error> {
    let failed = |cause| Error::Read { path: path.to_owned(), cause };
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len().min(MAX_BYTES);
    // A single allocation, so that no copy is left behind by growing.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(length).unwrap_or(0) + 1));
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB")));
    }
    Ok(bytes)
}

/// The certificates of a PEM text, at least one. `what` names the source in errors.
pub(crate) fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let invalid = |cause| Error::Pem { what: what.to_owned(), cause };
    let chain = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|cause| invalid(format!("not PEM: {cause}")))?;
    if chain.is_empty() { Err(invalid("it contains no certificate".to_owned())) } else { Ok(chain) }
}

/// A server's certificate chain and its key, both in PEM. `what` names the source in errors.
///
/// # Errors
/// [`Error::Pem`] if one of them is invalid, or the key is not that of the certificate.
pub fn certified_key(what: &str, chain: &[u8], key: &[u8]) -> Result<CertifiedKey, Error> {
    let invalid = |cause| Error::Pem { what: what.to_owned(), cause };
    let chain = certificates(what, chain)?;
    // The parser's error is not included, because it may quote the key.
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|_| invalid("it contains no private key in PEM".to_owned()))?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|cause| invalid(cause.to_string()))
}

/// A directory with `tls.crt` and `tls.key`, as a Secret of type `kubernetes.io/tls` is mounted.
///
/// Each handshake checks the files for changes (two system calls), so that the next client gets a renewed certificate.
/// Incompletely replaced or damaged files are ignored: the last valid pair stays in use.
#[derive(Debug)]
pub struct CertificateDir {
    dir: PathBuf,
    loaded: ArcSwap<LoadedPair>,
}

/// The last valid pair of files.
#[derive(Debug)]
struct LoadedPair {
    versions: [FileVersion; 2],
    key: Arc<CertifiedKey>,
}

/// Version of a file: device, inode, size, modification time. A mounted Secret is replaced by another target of a
/// symbolic link, hence another inode.
type FileVersion = (u64, u64, u64, i64, i64);

impl CertificateDir {
    /// Loads the pair of files.
    ///
    /// # Errors
    /// If there is no valid pair.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Arc<Self>, Error> {
        let dir = dir.into();
        let versions = versions(&dir)?;
        let key = load(&dir)?;
        Ok(Arc::new(Self { dir, loaded: ArcSwap::from_pointee(LoadedPair { versions, key }) }))
    }

    /// The current pair, or the last valid one.
    pub fn key(&self) -> Arc<CertifiedKey> {
        let loaded = self.loaded.load();
        // The versions are read before the files: a change in between is detected by the next handshake.
        let newer = versions(&self.dir).and_then(|versions| {
            if versions == loaded.versions {
                Ok(None)
            } else {
                load(&self.dir).map(|key| Some(LoadedPair { versions, key }))
            }
        });
        match newer {
            Ok(None) => Arc::clone(&loaded.key),
            Ok(Some(newer)) => {
                tracing::info!(dir = %self.dir.display(), "certificate renewed");
                let key = Arc::clone(&newer.key);
                self.loaded.store(Arc::new(newer));
                key
            }
            Err(error) => {
                warn_limited!(%error, "invalid certificate files; the last valid pair stays in use");
                Arc::clone(&loaded.key)
            }
        }
    }
}

impl ResolvesServerCert for CertificateDir {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }
}

/// Paths of certificate chain and key.
fn paths(dir: &Path) -> [PathBuf; 2] {
    [dir.join("tls.crt"), dir.join("tls.key")]
}

fn versions(dir: &Path) -> Result<[FileVersion; 2], Error> {
    let [chain, key] = paths(dir);
    Ok([version(chain)?, version(key)?])
}

fn version(path: PathBuf) -> Result<FileVersion, Error> {
    let metadata = fs::metadata(&path).map_err(|cause| Error::Read { path, cause })?;
    Ok((metadata.dev(), metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

fn load(dir: &Path) -> Result<Arc<CertifiedKey>, Error> {
    let [chain, key] = paths(dir);
    Ok(Arc::new(certified_key(&dir.display().to_string(), &read(&chain)?, &read(&key)?)?))
}
