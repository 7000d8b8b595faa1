//! `/v2/p2p` and `/v2/p2p/{id}` over real sockets on a real database.

use chainscope_proto::v1::{Initiator, Message, record::Kind};
use serde_json::json;

use crate::common::{CONNECTION, Server, TIME, address, get, message, record, with_chunks};

#[test]
fn rows_are_byte_for_byte_those_of_the_contract() {
    let server = Server::start();
    assert_eq!(server.get("/v2/p2p").body, "[]");
    let ack = Message { incoming: true, preview: Some("\"Ack\"".into()), ..message("ack_message") };
    let preview = "{\"Operation\":{\"operation\":{\"branch\":[118,99,6,27";
    let operation = Message { preview: Some(preview.into()), ..message("operation") };
    let unknown = Message {
        remote: Some(address("[::ffff:18.185.162.144]:9732")),
        initiator: Initiator::Remote.into(),
        ..message("unknown")
    };
    let records = [(1_626_264_123_400_000_000, ack), (TIME, operation), (TIME + 1_000_000, unknown)];
    server.feed("9732", records.into_iter().map(|(time, message)| record(time, Kind::Message(message))).collect());
    let answer = server.get("/v2/p2p");
    assert_eq!(
        answer.body,
        concat!(
            r#"[{"id":2,"timestamp":1626264123457000000,"remote_addr":"[::ffff:18.185.162.144]:9732","source_type":"remote","#,
            r#""incoming":false,"category":"p2p","kind":"unknown","message_preview":null},"#,
            r#"{"id":1,"timestamp":1626264123456000000,"remote_addr":"127.0.0.1:29733","source_type":"local","#,
            r#""incoming":false,"category":"p2p","kind":"operation","#,
            r#""message_preview":"{\"Operation\":{\"operation\":{\"branch\":[118,99,6,27"},"#,
            r#"{"id":0,"timestamp":1626264123400000000,"remote_addr":"127.0.0.1:29733","source_type":"local","#,
            r#""incoming":true,"category":"ack","kind":null,"message_preview":"\"Ack\""}]"#,
        )
    );
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(server.get("/v3/messages").body, answer.body);
}

#[test]
fn a_message_is_decoded_late_and_its_bytes_are_hex_a_byte() {
    let server = Server::start();
    let records = with_chunks(message("metadata"), &[0, 0], 1, 100);
    server.feed("9732", records);
    let answer = server.get("/v2/p2p/0");
    let mac = vec!["\"aa\""; 16].join(",");
    assert_eq!(
        answer.body,
        format!(
            "{{\"id\":0,\"message\":{{\"disable_mempool\":false,\"private_node\":false}},\
             \"original_bytes\":[\"00\",\"12\",{mac},\"55\",\"55\"],\"decrypted_bytes\":[\"00\",\"00\"],\"error\":null}}"
        )
    );
    assert_eq!(server.get("/v3/message/0").body, answer.body);
    assert_eq!(server.get("/v2/p2p/1").body, "null");
    assert_eq!(server.get("/v2/p2p/18446744073709551615").body, "null");
}

#[test]
fn an_undecodable_message_keeps_its_bytes_and_has_an_error() {
    let server = Server::start();
    let mut records = with_chunks(message("unknown"), &[0, 0, 0, 3, 0x77, 0x77, 1], 3, 100);
    let missing = Message { first_chunk: 9, last_chunk: 12, length: 7, ..message("operation") };
    records.push(record(TIME, Kind::Message(missing)));
    records.push(record(TIME, Kind::Message(Message { protocol: "other".into(), ..message("unknown") })));
    server.feed("9732", records);
    let unknown = server.json("/v2/p2p/0");
    assert_eq!(unknown["message"], json!(null));
    assert_eq!(unknown["decrypted_bytes"], json!(["00", "00", "00", "03", "77", "77", "01"]));
    assert!(unknown["error"].as_str().unwrap().contains("0x7777"), "{unknown}");
    let missing = server.json("/v2/p2p/1");
    assert_eq!((&missing["original_bytes"], &missing["message"]), (&json!([]), &json!(null)));
    assert!(missing["error"].as_str().unwrap().starts_with("0 of its 4 chunks are stored: "), "{missing}");
    let other = server.json("/v2/p2p/2");
    assert_eq!(other["error"], "0 of its 1 chunks are stored: no decoder for protocol \"other\"");
}

#[test]
fn a_large_message_is_sent_in_blocks_and_whole() {
    let server = Server::start();
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    // An operation: branch of 32 bytes, then data.
    let mut plain = u32::try_from(body.len() + 2).unwrap().to_be_bytes().to_vec();
    plain.extend_from_slice(&[0, 0x31]);
    plain.extend_from_slice(&body);
    server.feed("9732", with_chunks(message("operation"), &plain, 3, 65_519));
    let answer = server.get("/v2/p2p/0");
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    let detail: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    let bytes = |field: &str| -> Vec<u8> {
        let hex = detail[field].as_array().unwrap().iter().map(|byte| byte.as_str().unwrap());
        hex.map(|hex| u8::from_str_radix(hex, 16).unwrap()).collect()
    };
    assert!(bytes("decrypted_bytes") == plain);
    assert_eq!(bytes("original_bytes").len(), plain.len() + 46 * 18);
    assert!(detail["message"].is_object(), "{}", detail["error"]);
    assert_eq!(detail["error"], serde_json::Value::Null);
    let key = server.json("/v3/chunks?limit=1")[0][0].clone();
    assert_eq!(key, format!("1617005682.953928051-local-{}", 3));
    assert_eq!(CONNECTION, 1_617_005_682_953_928_051);
}

#[test]
fn a_list_longer_than_a_page_is_complete_and_in_order() {
    let server = Server::start();
    let records = (0..2_500).map(|n| record(TIME + n, Kind::Message(message("advertise")))).collect();
    server.feed("9732", records);
    let newest_first: Vec<u64> = (0..2_500).rev().collect();
    assert_eq!(server.ids("/v2/p2p?limit=18446744073709551615"), newest_first);
    assert_eq!(server.ids("/v2/p2p?limit=2200&direction=forward"), (0..2_200).collect::<Vec<_>>());
    assert_eq!(server.ids("/v2/p2p?limit=1000"), newest_first[..1000]);
    assert_eq!(server.ids("/v2/p2p?limit=2000&cursor=1999"), (0..2_000).rev().collect::<Vec<_>>());
    assert_eq!(server.ids("/v2/p2p").len(), 100);
    assert_eq!(server.ids("/v2/p2p?limit=0"), [0_u64; 0]);
    assert_eq!(server.ids("/v2/p2p?cursor=998&limit=1000"), (0..999).rev().collect::<Vec<_>>());
    let head = get(server.http(), "HEAD", "/v2/p2p?limit=1000", &[]);
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}
