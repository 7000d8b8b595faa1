//! Watches `TezosNode` resources and tells agents and the aggregator what to do.
//!
//! ```text
//! API server ── watches ──▶ driver ── Engine (pure) ──▶ Desired ──▶ config stream ──▶ agents, aggregator
//!     ▲                        │  ▲                                      │
//!     └── status, Events ──────┘  └───────────── Reports ◀───────────────┘
//! ```
//!
//! [`reconcile`] decides without I/O, [`driver`] feeds it, [`cluster`] talks to the API server. Of several replicas one
//! leads, by a Lease; the others keep up to date and refuse agents with `UNAVAILABLE`. The Service has all replicas
//! behind it: whoever is refused tries again and finds the leader after a try or two.
//!
//! # Rights
//!
//! | resource | verbs | where | why |
//! | --- | --- | --- | --- |
//! | `chainscope.dev` `tezosnodes` | list, watch | cluster | what to observe |
//! | `chainscope.dev` `tezosnodes/status` | patch | cluster | the status, by server-side apply |
//! | `pods` | list, watch | cluster | where it runs |
//! | `events.k8s.io` `events` | create | cluster | Events; they are never changed |
//! | `authentication.k8s.io` `tokenreviews` | create | cluster | who agents and aggregator are |
//! | `coordination.k8s.io` `leases` | create | own namespace | who leads; create cannot be limited to a name |
//! | `coordination.k8s.io` `leases` `<release>-operator` | get, update | own namespace | who leads |
//! | `secrets` | list, watch | each of `--secret-namespaces` | identities, each by its name (a field selector) |
#![forbid(unsafe_code)]

pub mod certificates;
pub mod cluster;
pub mod crd;
pub mod desired;
pub mod driver;
pub mod health;
pub mod metrics;
pub mod reconcile;
pub mod run;
pub mod stream;
