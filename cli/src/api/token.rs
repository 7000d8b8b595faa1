//! Where bearer tokens come from.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, ensure};

use crate::kube::ClusterToken;

/// The source of the bearer token of requests.
pub(crate) enum Token {
    /// Requests have none.
    None,
    Fixed(String),
    /// Read again for each request: it may be a mounted token, which is replaced before it expires.
    File(PathBuf),
    Cluster(ClusterToken),
}

impl Token {
    /// The current token.
    pub(super) fn get(&self) -> anyhow::Result<Option<String>> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(token) => Ok(Some(token.trim().to_owned())),
            Self::File(path) => {
                let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                let token = text.trim();
                ensure!(!token.is_empty(), "{} is empty; it should contain a bearer token", path.display());
                Ok(Some(token.to_owned()))
            }
            Self::Cluster(token) => token.get().map(Some),
        }
    }

    /// Makes the next call of [`Token::get`] request a new one; returns whether there may be one.
    pub(super) fn expire(&self) -> bool {
        match self {
            Self::Cluster(token) => token.expire(),
            Self::None | Self::Fixed(_) | Self::File(_) => false,
        }
    }

    /// Makes the next call of [`Token::get`] return a token newer than the one that has expired; returns whether there may be
    /// one.
    pub(super) fn renew(&self) -> bool {
        // Its file is read again in any case.
        matches!(self, Self::File(_)) || self.expire()
    }
}
