//! How the programs talk to each other: TLS whose files may change under way, and bearer tokens.
//!
//! A server proves itself by a certificate ([`Folder`], [`Acceptor`], [`incoming`]), a client by a token of its service
//! account ([`Token`]). Nothing needs a restart when it is replaced: a server looks at its files at each handshake, a
//! client at each connection ([`Remote`]) and each call. Without the files the programs speak plain text, for one machine
//! and for tests.
//!
//! The cryptography is ring's, named at each use, whatever provider else is in the program.

#![forbid(unsafe_code)]

mod client;
mod error;
mod files;
mod server;
mod token;

use std::sync::Arc;

pub use client::Remote;
pub use error::Error;
pub use files::{Folder, certified_key};
use rustls::crypto::CryptoProvider;
pub use server::{Acceptor, Connection, Protocol, incoming};
pub use token::{Token, bearer};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
