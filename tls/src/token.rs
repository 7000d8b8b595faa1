//! Bearer tokens of service accounts: read from a file by clients, extracted from calls by servers.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use tonic::{
    Status,
    metadata::{AsciiMetadataValue, MetadataMap},
};
use zeroize::Zeroizing;

use crate::{Error, files};

/// Maximum length of a token, in bytes; service account tokens have about 1 KiB.
const MAX_BYTES: usize = 16 << 10;

/// A token, in zeroizing memory and redacted in `Debug`.
#[derive(Clone)]
pub struct Token(Zeroizing<String>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads the token in a file. Call it for each request: the kubelet replaces the file before the token expires.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read, [`Error::Token`] if it contains no valid token.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = files::read(path)?;
        let invalid = |cause| Error::Token { path: PathBuf::from(path), cause };
        let text = std::str::from_utf8(&bytes).map_err(|_| invalid("not text"))?.trim();
        match validate(text) {
            Ok(()) => Ok(Self(Zeroizing::new(text.to_owned()))),
            Err(cause) => Err(invalid(cause)),
        }
    }

    /// Adds the token to the metadata of a call.
    pub fn authorize(&self, metadata: &mut MetadataMap) {
        let value = Zeroizing::new(format!("Bearer {}", self.0.as_str()));
        // The characters were validated by `read`.
        if let Ok(mut value) = AsciiMetadataValue::try_from(value.as_str()) {
            value.set_sensitive(true);
            metadata.insert("authorization", value);
        }
    }
}

/// The bearer token in the metadata of a call.
///
/// # Errors
/// `UNAUTHENTICATED` with a reason.
pub fn bearer(metadata: &MetadataMap) -> Result<&str, Status> {
    let mut values = metadata.get_all("authorization").iter();
    let unauthenticated = |reason: &str| Status::unauthenticated(reason);
    let value = values.next().ok_or_else(|| unauthenticated("the call has no bearer token"))?;
    if values.next().is_some() {
        return Err(unauthenticated("the call has more than one authorization header"));
    }
    let value = value.to_str().map_err(|_| unauthenticated("the authorization header is not text"))?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(unauthenticated("the authorization header is not a bearer token"));
    }
    let token = token.trim();
    validate(token).map_err(unauthenticated)?;
    Ok(token)
}

/// Checks the length and characters of a token.
fn validate(token: &str) -> Result<(), &'static str> {
    if token.is_empty() {
        Err("the token is empty")
    } else if token.len() > MAX_BYTES {
        Err("the token is longer than 16 KiB")
    } else if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        Err("the token has invalid characters")
    } else {
        Ok(())
    }
}
