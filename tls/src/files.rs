//! A server's certificate and key: from PEM, and from a folder that is looked at whenever a client comes.

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

/// Bytes of a file of certificates or of a key at most.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file of bounded size; the bytes are wiped after use.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Error> {
    let failed = |cause| Error::Read { path: path.to_owned(), cause };
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len().min(MAX_BYTES);
    // One allocation, so that growing leaves no copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(length).unwrap_or(0) + 1));
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "longer than 1 MiB")));
    }
    Ok(bytes)
}

/// The certificates of a PEM text, in its order; at least one.
pub(crate) fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let wrong = |cause| Error::Pem { what: what.to_owned(), cause };
    let chain = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|cause| wrong(format!("not PEM: {cause}")))?;
    if chain.is_empty() { Err(wrong("no certificate in it".to_owned())) } else { Ok(chain) }
}

/// A server's certificate chain and its key, both PEM, checked to belong together. `what` names them in errors.
///
/// # Errors
/// [`Error::Pem`] if one of them is not what it should be, or the key is another certificate's.
pub fn certified_key(what: &str, chain: &[u8], key: &[u8]) -> Result<CertifiedKey, Error> {
    let wrong = |cause| Error::Pem { what: what.to_owned(), cause };
    let chain = certificates(what, chain)?;
    // The parser's own error may quote the text; a key is not quoted.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong("no private key in PEM".to_owned()))?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|cause| wrong(cause.to_string()))
}

/// A folder with `tls.crt` and `tls.key`, as a Secret of type `kubernetes.io/tls` is mounted.
///
/// The files are looked at in each handshake (two calls of the system), so that a renewed certificate is in use with the
/// next client. Files that are half replaced or damaged change nothing: the last good pair stays.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    held: ArcSwap<Held>,
}

#[derive(Debug)]
struct Held {
    marks: [Mark; 2],
    key: Arc<CertifiedKey>,
}

/// What tells a file from its successor: device, inode, size, modification time. A mounted Secret is replaced by
/// another target of a symbolic link, hence another inode.
type Mark = (u64, u64, u64, i64, i64);

impl Folder {
    /// Reads the pair of files.
    ///
    /// # Errors
    /// [`Error`] if there is no good pair now.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Arc<Self>, Error> {
        let dir = dir.into();
        let marks = marks(&dir)?;
        let key = load(&dir)?;
        Ok(Arc::new(Self { dir, held: ArcSwap::from_pointee(Held { marks, key }) }))
    }

    /// The pair of now; if there is no good one, the last.
    pub fn key(&self) -> Arc<CertifiedKey> {
        let held = self.held.load();
        // The marks are taken before the files are read: a change between the two is seen next time.
        let newer = marks(&self.dir).and_then(|marks| {
            if marks == held.marks { Ok(None) } else { load(&self.dir).map(|key| Some(Held { marks, key })) }
        });
        match newer {
            Ok(None) => Arc::clone(&held.key),
            Ok(Some(newer)) => {
                tracing::info!(dir = %self.dir.display(), "a new certificate is in use");
                let key = Arc::clone(&newer.key);
                self.held.store(Arc::new(newer));
                key
            }
            Err(error) => {
                warn_limited!(%error, "the certificate's files are unusable, the last good ones stay in use");
                Arc::clone(&held.key)
            }
        }
    }
}

impl ResolvesServerCert for Folder {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }
}

fn paths(dir: &Path) -> [PathBuf; 2] {
    [dir.join("tls.crt"), dir.join("tls.key")]
}

fn marks(dir: &Path) -> Result<[Mark; 2], Error> {
    let [chain, key] = paths(dir);
    Ok([mark(chain)?, mark(key)?])
}

fn mark(path: PathBuf) -> Result<Mark, Error> {
    let about = fs::metadata(&path).map_err(|cause| Error::Read { path, cause })?;
    Ok((about.dev(), about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
}

fn load(dir: &Path) -> Result<Arc<CertifiedKey>, Error> {
    let [chain, key] = paths(dir);
    Ok(Arc::new(certified_key(&dir.display().to_string(), &read(&chain)?, &read(&key)?)?))
}
