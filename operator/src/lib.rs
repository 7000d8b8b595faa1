//! Operator for `TezosNode` and `NodeTrace` resources: configures the agents and the aggregator, and writes the status.
//!
//! ```text
//! API server ── watches ──▶ Controller ── Reconciler (pure) ──▶ Desired ──▶ config stream ──▶ agents, aggregator
//!     ▲                        │  ▲                                      │
//!     └── status, Events ──────┘  └───────────── Reports ◀───────────────┘
//! ```
//!
//! [`reconcile`] decides without I/O, [`controller`] is its I/O shell, [`cluster`] accesses the API server. With several
//! replicas a Lease elects the leader; the other replicas keep their state up to date and refuse config streams with
//! `UNAVAILABLE`. The Service selects all replicas: a refused client reconnects until it reaches the leader.
//!
//! # RBAC
//!
//! | resource | verbs | scope | purpose |
//! | --- | --- | --- | --- |
//! | `chainscope.dev` `tezosnodes`, `nodetraces` | list, watch | cluster | specifications |
//! | `chainscope.dev` `tezosnodes/status`, `nodetraces/status` | patch | cluster | status, by server-side apply |
//! | `pods` | list, watch | cluster | pods of the nodes |
//! | `events.k8s.io` `events` | create | cluster | Events; they are not updated |
//! | `authentication.k8s.io` `tokenreviews` | create | cluster | authentication of agents and aggregator |
//! | `coordination.k8s.io` `leases` | create | own namespace | leader election; `create` cannot be limited to a name |
//! | `coordination.k8s.io` `leases` `<release>-operator` | get, update | own namespace | leader election |
//! | `apps` `deployments` `<release>-operator` | get | own namespace | owner of the certificates |
//! | `secrets` `<release>-ca`, `…-tls`, `configmaps` `<release>-ca` | get, list, watch, create, patch | own namespace | certificates |
//! | `secrets` | list, watch | each of `--secret-namespaces` | identities, each by its name (a field selector) |
#![forbid(unsafe_code)]

pub mod certificates;
pub mod clock;
pub mod cluster;
pub mod controller;
pub mod crd;
pub mod desired;
pub mod health;
pub mod metrics;
pub mod reconcile;
pub mod run;
pub mod stream;
