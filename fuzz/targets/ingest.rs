//! Sessions with an agent that says anything: what is acknowledged is stored, the database stays sound, and the next agent
//! is served.
#![no_main]
use std::collections::HashMap;

use chainscope_fuzz::server::{AGENT, Server, hello};
use chainscope_proto::v1::{Batch, Record, RecordRequest, record_reply::Reply, record_request::Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    Server::with(|server| {
        let epoch = server.new_epoch();
        let mut sent: HashMap<String, u64> = HashMap::new();
        let mut requests = vec![hello(&epoch)];
        for mut request in chainscope_fuzz::messages::<RecordRequest>(data) {
            // A batch that does not continue its stream ends the session: most do.
            if let Some(Request::Batch(batch)) = &mut request.request {
                let next = sent.entry(batch.node.clone()).or_default();
                if batch.first_sequence < 1 << 16 {
                    batch.first_sequence = *next;
                }
                *next += batch.records.len() as u64;
            }
            requests.push(request);
        }
        for reply in server.session(requests) {
            if let Some(Reply::Ack(ack)) = reply.reply {
                assert!(Some(&ack.next_sequence) <= sent.get(&ack.node), "{ack:?}");
                assert!(ack.next_sequence <= server.store.durable_high_water_mark(&ack.node, AGENT, &epoch));
            }
        }
        let epoch = server.new_epoch();
        let batch = Batch { node: "good".to_owned(), first_sequence: 0, records: vec![Record::default()] };
        let replies = server.session(vec![hello(&epoch), RecordRequest { request: Some(Request::Batch(batch)) }]);
        let is_acknowledged = |reply: &Option<Reply>| matches!(reply, Some(Reply::Ack(ack)) if ack.next_sequence == 1);
        assert!(replies.iter().any(|reply| is_acknowledged(&reply.reply)), "{replies:?}");
        let report = server.store.verify().expect("a readable database");
        assert!(report.is_sound(), "{:?}", report.problems);
    });
});
