//! Bearer tokens of service accounts, from the client's file to the server's hands.

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

/// Bytes of a token at most; a service account's has about 1 KiB.
const MAX_BYTES: usize = 16 << 10;

/// A token, wiped from memory after use and never printed.
#[derive(Clone)]
pub struct Token(Zeroizing<String>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads the token that is in a file now: the kubelet replaces it long before it expires.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Token`] if what is there cannot be a token.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = files::read(path)?;
        let wrong = |cause| Error::Token { path: PathBuf::from(path), cause };
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong("not text"))?.trim();
        match checked(text) {
            Ok(()) => Ok(Self(Zeroizing::new(text.to_owned()))),
            Err(cause) => Err(wrong(cause)),
        }
    }

    /// Adds the token to a call.
    pub fn authorize(&self, metadata: &mut MetadataMap) {
        let value = Zeroizing::new(format!("Bearer {}", self.0.as_str()));
        // Characters were checked when it was read.
        if let Ok(mut value) = AsciiMetadataValue::try_from(value.as_str()) {
            value.set_sensitive(true);
            metadata.insert("authorization", value);
        }
    }
}

/// The token that a call came with.
///
/// # Errors
/// `UNAUTHENTICATED` with a reason for people.
pub fn bearer(metadata: &MetadataMap) -> Result<&str, Status> {
    let mut values = metadata.get_all("authorization").iter();
    let refused = |reason: &str| Status::unauthenticated(reason);
    let value = values.next().ok_or_else(|| refused("the call has no bearer token"))?;
    if values.next().is_some() {
        return Err(refused("the call has more than one authorization"));
    }
    let value = value.to_str().map_err(|_| refused("the authorization is not text"))?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(refused("the authorization is not a bearer token"));
    }
    let token = token.trim();
    checked(token).map_err(refused)?;
    Ok(token)
}

fn checked(token: &str) -> Result<(), &'static str> {
    if token.is_empty() {
        Err("the token is empty")
    } else if token.len() > MAX_BYTES {
        Err("the token is longer than 16 KiB")
    } else if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        Err("the token has characters that no token has")
    } else {
        Ok(())
    }
}
