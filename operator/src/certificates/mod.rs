//! The certificates of the operator and the aggregator, made and renewed at run time.
//!
//! | object | what is in it |
//! | --- | --- |
//! | Secret `<release>-ca` | the authority with its key, during a rotation also the next or the previous one |
//! | ConfigMap `<release>-ca`, `ca.crt` | every authority that clients should trust now |
//! | Secrets `<release>-operator-tls`, `<release>-aggregator-tls` | the servers' certificates and keys |
//!
//! An authority lives 10 years and is followed by the next one year before its end; a server's certificate lives 90 days
//! and is renewed after 60. `decision` says what to do, `keeper` does it. The leader writes; every replica takes its own
//! certificate from the Secret ([`Served`]).
//!
//! The objects belong to the Lease of the release: when it is uninstalled, they go with it.
//!
//! Rights, all in the own namespace: `get`, `create` and `patch` on these Secrets and this ConfigMap, `get` on the Lease.

pub(crate) mod authority;
mod decision;
mod keeper;
mod served;

pub use keeper::{Ends, Keeper, KeeperError};
pub use served::Served;

#[cfg(test)]
mod keeper_tests;
#[cfg(test)]
mod tests;
