//! Clients that request the largest responses and do not read them.

use std::{
    io::Write as _,
    net::TcpStream,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chainscope_aggregator::{Config, NodeConfig};
use chainscope_testing::usage;
use chainscope_testing::wait::until_true;

use crate::common::{Server, message, with_chunks};

/// At least, and at most.
const READERS: (usize, usize) = (24, 60);
/// Chunks of 32 KiB: each response is 26 MB of JSON.
const CHUNKS: usize = 200;
const CHUNK_BYTES: usize = 32 << 10;
/// More than the limit of responses in memory, the buffers of connections and what other tests of this program take.
const MAX_GROWTH: u64 = 256 << 20;

/// Held by each test of this module: one measures the memory of the process, of which another takes hundreds of megabytes.
static RUNNING: Mutex<()> = Mutex::new(());

/// Waits for the other tests of this module; a failed test does not poison it.
fn exclusive() -> MutexGuard<'static, ()> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(change: impl FnOnce(&mut Config)) -> Server {
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig::new("9732"));
        config.limits.max_response_bytes = 16 << 20;
        change(config);
    });
    let plain = vec![0x5a; CHUNKS * CHUNK_BYTES];
    let mut agent = server.agent(&["9732"]);
    let records = with_chunks(message("operation"), &plain, 3, CHUNK_BYTES);
    let mut next = 0;
    for records in records.chunks(20) {
        agent.batch("9732", next, records.to_vec());
        next += records.len() as u64;
    }
    agent.wait_for("9732", next);
    server
}

/// Requests all chunks, and never reads.
fn slow_reader(server: &Server) -> TcpStream {
    slow_reader_of(server, &format!("/v3/chunks?limit={CHUNKS}"))
}

fn slow_reader_of(server: &Server, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.http()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    stream
}

/// Value of a metric; 0 if there is none.
fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.get("/metrics").body;
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or(0)
}

/// Responses to slow readers that have begun, with one of two statuses.
fn responses(server: &Server) -> [u64; 2] {
    ["200", "503"]
        .map(|code| metric(server, &format!("chainscope_http_requests_total{{route=\"/v3/chunks\",code=\"{code}\"}}")))
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    usage::memory(std::process::id(), "VmRSS")
}

#[test]
fn memory_is_bounded_and_others_are_served() {
    let _running = exclusive();
    let server = serve(|_| {});
    let before = resident();
    let mut readers = Vec::new();
    while readers.len() < READERS.0 || responses(&server)[1] == 0 {
        assert!(readers.len() < READERS.1, "none is refused");
        readers.push(slow_reader(&server));
        until_true("it is answered", || responses(&server).iter().sum::<u64>() == readers.len() as u64);
        let grown = resident().saturating_sub(before);
        assert!(grown < MAX_GROWTH, "{grown} bytes more for {} readers", readers.len());
    }
    assert!(metric(&server, "chainscope_http_in_flight_bytes") <= 16 << 20);
    for path in ["/v2/p2p?limit=1000", "/v3/chunks?limit=1", "/v2/stats", "/nodes"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    drop(readers);
    until_true("permits are free again", || server.get(&format!("/v3/chunks?limit={CHUNKS}")).status == 200);
}

#[test]
fn a_slow_reader_is_disconnected() {
    let _running = exclusive();
    // Long enough for all of them to be waiting at the same time on a busy machine.
    let server = serve(|config| config.limits.client_timeout = Duration::from_secs(5));
    let readers: Vec<TcpStream> = (0..3).map(|_| slow_reader(&server)).collect();
    until_true("they wait", || responses(&server) == [3, 0] && metric(&server, "chainscope_http_in_flight_bytes") > 0);
    until_true("they are given up", || metric(&server, "chainscope_http_in_flight_bytes") == 0);
    drop(readers);
}

/// A message that is larger than a response in memory holds a thread for such messages while it is sent.
#[test]
fn slow_readers_of_large_messages_are_given_up_and_another_gets_one_whole() {
    let _running = exclusive();
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig::new("9732"));
        // Long enough for the reader below on a busy machine.
        config.limits.client_timeout = Duration::from_secs(5);
    });
    let plain = vec![0x5a; 4 << 20];
    server.feed("9732", with_chunks(message("operation"), &plain, 3, 65_519));
    let started = || metric(&server, "chainscope_http_requests_total{route=\"/v2/p2p/{id}\",code=\"200\"}");
    // More than there are threads.
    let readers: Vec<TcpStream> = (0..3).map(|_| slow_reader_of(&server, "/v2/p2p/0")).collect();
    until_true("they hold all threads", || started() >= 2);
    // Waits for one of the threads, which are free once their clients are given up.
    let answer = server.get("/v2/p2p/0");
    assert_eq!(answer.status, 200);
    let detail: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(detail["decrypted_bytes"].as_array().unwrap().len(), plain.len());
    drop(readers);
}
