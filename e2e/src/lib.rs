//! End-to-end: the demo node, and the harness that runs scenarios with the real programs on real sockets.
//!
//! - [`node`]: what `chainscope-demo-node` is made of;
//! - [`harness`]: starts and stops programs, waits for conditions, asks the HTTP API, makes network namespaces;
//! - [`cluster`]: a Kubernetes cluster from plain programs, with [`image`]s of ours;
//! - `tests/`: the scenarios. They need root and the programs of `make build`, and say so where these are missing.

pub mod cluster;
pub mod harness;
pub mod image;
pub mod node;
