//! Limits of the aggregator's resources.

use std::time::Duration;

/// What the aggregator takes on at most. Beyond it requests are refused with 503, and agents wait.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Threads that read the store for requests.
    pub query_threads: usize,
    /// Requests that wait for such a thread.
    pub query_queue: usize,
    /// How long one read of the store may take, its wait included.
    pub query_time: Duration,
    /// HTTP connections open at a time, a listener.
    pub connections: usize,
    /// Live streams open at a time.
    pub streams: usize,
    /// How long a client may take for its request's head, and how long it may leave an answer unread.
    pub patience: Duration,
    /// Time between the signs of life on a quiet stream.
    pub heartbeat: Duration,
    /// Bytes of batches that wait for the writer, all agents together.
    pub ingest_bytes: usize,
    /// Nodes there may be; a batch for one more is refused.
    pub nodes: usize,
    /// Time between two looks for what retention lets go.
    pub eviction: Duration,
    /// How long an answer of Kubernetes is good.
    pub remember: Duration,
    /// Time between two questions whether the caller of a live stream still may.
    pub recheck: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            query_threads: 4,
            query_queue: 128,
            query_time: Duration::from_secs(10),
            connections: 1024,
            streams: 256,
            patience: Duration::from_secs(30),
            heartbeat: Duration::from_secs(15),
            ingest_bytes: 32 << 20,
            nodes: 10_000,
            eviction: Duration::from_secs(10),
            remember: Duration::from_secs(60),
            recheck: Duration::from_secs(60),
        }
    }
}
