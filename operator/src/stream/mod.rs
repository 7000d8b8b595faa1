//! The config stream: configures the agents and the aggregator, and receives the agents' reports.
//!
//! ```text
//!  Desired (watch) ──▶ subscription ──▶ delta: state of the client → desired state ──▶ HostUpdate, CatalogUpdate
//!                        ▲  │
//!           auth: token ─┘  └──▶ validate: pods of the host only ──▶ reports ──▶ Reports (watch)
//! ```
//!
//! A host's stream is computed from `Desired::hosts[host]`, and `host` is taken from the reviewed token: no message lets
//! an agent request the configuration of another host.

mod auth;
mod claims;
mod clients;
mod delta;
mod metrics;
mod reports;
mod review;
mod service;
mod subscription;
mod tokens;
mod validate;

pub use auth::ServiceAccounts;
pub use metrics::Metrics;
pub use review::{AUDIENCE, Review, ReviewError, ReviewToken, TokenReviewer};
pub use service::{Config, Service, VERSIONS};

#[cfg(test)]
mod tests;
