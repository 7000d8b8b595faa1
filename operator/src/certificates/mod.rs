//! Certificates of the operator and the aggregator, created and rotated at run time.
//!
//! | object | content |
//! | --- | --- |
//! | Secret `<release>-ca` | the CA certificate with its key, during a rotation also the next or the previous one |
//! | ConfigMap `<release>-ca`, `ca.crt` | CA bundle for clients |
//! | Secrets `<release>-operator-tls`, `<release>-aggregator-tls` | server certificates and keys |
//!
//! A CA certificate is valid for 10 years and is rotated one year before its expiry; a server certificate is valid for 90
//! days and is renewed after 60. `decision` computes the next step, `manager` writes it. The leader writes; every replica
//! loads its serving certificate from the Secret ([`ServingCertificate`]).
//!
//! The objects are owned by the operator's Deployment, so that they are garbage-collected when it is uninstalled. They are
//! watched: a deleted one is written again within seconds, the CA as it was, so that clients keep trusting it. A CA that is
//! no longer wanted is replaced by emptying its Secret.
//!
//! RBAC, in the own namespace: `get`, `list`, `watch`, `create` and `patch` on these Secrets and this ConfigMap, `get` on
//! the Deployment.

pub(crate) mod ca;
mod decision;
mod manager;
mod serving;

pub use manager::{CertificateError, CertificateManager, ExpiryGauges};
pub use serving::ServingCertificate;

#[cfg(test)]
mod manager_tests;
#[cfg(test)]
mod tests;
