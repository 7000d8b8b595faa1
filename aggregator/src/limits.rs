//! Limits of the aggregator's resources.

use std::time::Duration;

/// Limits of the aggregator. Beyond them requests are refused with 503, and agents wait.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Threads that read the store for requests.
    pub query_threads: usize,
    /// Requests that may wait for such a thread.
    pub query_queue: usize,
    /// Maximum duration of a read of the store, and of its wait for a thread.
    pub query_timeout: Duration,
    /// Maximum number of open HTTP connections of a listener.
    pub max_connections: usize,
    /// Maximum number of open live streams.
    pub max_streams: usize,
    /// Maximum time that a client takes to send the head of a request, and until which it has to take a response at
    /// [`Limits::least_rate`].
    pub client_timeout: Duration,
    /// Least bytes a second that a client takes of a response while there are any.
    pub least_rate: usize,
    /// Maximum bytes of responses that wait for their clients, all together.
    pub max_response_bytes: usize,
    /// Time between keep-alive comments of a live stream without events.
    pub heartbeat_interval: Duration,
    /// Maximum bytes of batches that wait for the writer, all agents together.
    pub max_ingest_bytes: usize,
    /// Maximum number of nodes; batches of further ones are refused.
    pub max_nodes: usize,
    /// Time between two evictions by retention.
    pub eviction_interval: Duration,
    /// How long an answer of a Kubernetes review is cached.
    pub review_ttl: Duration,
    /// Time between two checks of the permission of a live stream.
    pub reauthorize_interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            query_threads: 4,
            query_queue: 128,
            query_timeout: Duration::from_secs(10),
            max_connections: 1024,
            max_streams: 256,
            client_timeout: Duration::from_secs(30),
            least_rate: 16 << 10,
            max_response_bytes: 128 << 20,
            heartbeat_interval: Duration::from_secs(15),
            max_ingest_bytes: 32 << 20,
            max_nodes: 10_000,
            eviction_interval: Duration::from_secs(10),
            review_ttl: Duration::from_secs(60),
            reauthorize_interval: Duration::from_secs(60),
        }
    }
}
