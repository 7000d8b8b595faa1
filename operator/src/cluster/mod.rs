//! Access to the API server: watches, status writes, Events and leader election.

pub mod client;
pub mod events;
pub mod lease;
mod pod;
pub mod status;
pub mod watch;

/// Field manager of the status, and reporting controller of the Events.
pub const MANAGER: &str = "chainscope-operator";

/// Whether the API server answered with the HTTP status `code`.
fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
