//! End-to-end tests: the harness that runs scenarios with the real programs on real sockets.
//!
//! - [`harness`]: starts and stops programs, waits for conditions, queries the HTTP API, creates network namespaces;
//! - [`cluster`]: a Kubernetes cluster from binaries, and [`image`]: the images for it;
//! - `tests/`: the scenarios. They need root and the programs of `make build`, and fail with that message without them.

pub mod cluster;
pub mod harness;
pub mod image;
