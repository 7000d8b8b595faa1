//! Everything that talks to the API server: watches in, statuses and Events out, and the Lease that says who may.

pub mod events;
pub mod lease;
mod pod;
pub mod watch;
pub mod write;

/// Name under which this program owns fields of resources, and that Events are from.
pub const MANAGER: &str = "chainscope-operator";

/// Whether the API server answered with this HTTP status.
fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
