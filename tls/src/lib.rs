//! TLS with certificates that may be renewed at run time, and bearer tokens, for the connections between the programs.
//!
//! A server authenticates by a certificate ([`CertificateDir`], [`Acceptor`], [`incoming`]), a client by a service
//! account token ([`Token`]). Renewal needs no restart: a server checks its files in each handshake, a client reads its
//! files for each connection ([`Remote`]) and each call. Without the files the programs use plain text, for a single
//! machine and for tests.
//!
//! The crypto provider is ring, set explicitly at each use, independent of the process-wide default.

#![forbid(unsafe_code)]

mod client;
mod error;
mod files;
pub mod reviews;
mod server;
mod token;

use std::sync::Arc;

pub use client::Remote;
pub use error::Error;
pub use files::{CertificateDir, certified_key};
use rustls::crypto::CryptoProvider;
pub use server::{Acceptor, Connection, Protocol, incoming};
pub use token::{Token, bearer};

/// The crypto provider of all connections.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
