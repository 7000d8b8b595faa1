//! The threads of a running aggregator.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use chainscope_store::{Store, StoreOptions};
use chainscope_testing::wait::until_true;
use crossbeam_channel::bounded;

use super::*;
use crate::NodeConfig;

/// The response to a request.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = request(address, path);
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn request(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    stream
}

#[test]
fn messages_metrics_and_readiness_are_served_while_all_threads_of_summaries_are_busy() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("db"), StoreOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut config = Config::new(store, "127.0.0.1:0".parse().unwrap());
    config.nodes.push(NodeConfig::new("9732"));
    let running = runtime.block_on(Aggregator::start(config)).unwrap();
    let [_, summaries, _, _] = &running.threads.pools;
    let (release, released) = bounded::<()>(0);
    for _ in 0..SUMMARY_THREADS {
        let released = released.clone();
        // Until the sender is dropped.
        summaries.submit(Box::new(move || assert!(released.recv().is_err()))).unwrap();
    }
    until_true("the jobs run", || summaries.waiting() == 0);
    let waiting: Vec<TcpStream> = ["/nodes", "/v2/stats"].map(|path| request(running.http_addr(), path)).into();
    until_true("summaries wait", || summaries.waiting() > 0);
    let messages = ["/v2/p2p?node_name=9732", "/v3/messages?node_name=9732", "/v3/connections?node_name=9732"];
    for path in messages.into_iter().chain(["/metrics", "/readyz"]) {
        let response = get(running.http_addr(), path);
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
    }
    drop(release);
    for mut stream in waiting {
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }
    runtime.block_on(running.shutdown());
}
