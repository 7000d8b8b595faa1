//! A message that is evicted while it is sent.

use std::io::Read as _;

use chainscope_proto::v1::record::Kind;
use chainscope_store::Retention;

use crate::common::{Server, TIME, message, record, with_chunks};

/// Bytes in a field of a message: `"00","01",…`.
fn bytes_in(body: &str, field: &str) -> usize {
    let (_, rest) = body.split_once(&format!("\"{field}\":[")).unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    (list.len() + 1) / 5
}

#[test]
fn a_message_that_is_evicted_while_it_is_sent_comes_whole() {
    let server = Server::start();
    // Each list of its bytes is larger than what sockets and queues between here and there hold.
    let plain = vec![0; 4_000_000];
    let mut records = with_chunks(message("operation"), &plain, 0, 65_519);
    let end = records.len() as u64;
    server.feed("9732", records.clone());
    let response = ureq::get(format!("http://{}/v2/p2p/0", server.http())).call().unwrap();
    let mut body = response.into_body().into_reader();
    let mut begin = [0; 100];
    body.read_exact(&mut begin).unwrap();

    server.store.set_retention("9732", Retention { rows: Some(1), ..Retention::default() }).unwrap();
    records = vec![record(TIME, Kind::Message(message("advertise")))];
    let mut agent = server.agent(&["9732"]);
    agent.batch("9732", end, records);
    agent.wait_for("9732", end + 1);
    server.store.evict(TIME).unwrap();
    assert_eq!(server.store.visible("9732").0, 1, "it is evicted");
    assert_eq!(server.get("/v2/p2p/0").body, "null");

    let mut text = String::from_utf8(begin.to_vec()).unwrap();
    body.read_to_string(&mut text).unwrap();
    let chunks = plain.len().div_ceil(65_519);
    assert_eq!(bytes_in(&text, "original_bytes"), plain.len() + 18 * chunks);
    assert_eq!(bytes_in(&text, "decrypted_bytes"), plain.len());
}
