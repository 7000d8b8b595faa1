//! Parsing of `identity.json` from arbitrary bytes: an accepted identity is consistent, an error does not quote the
//! input.
#![no_main]
use chainscope_tezos::{Identity, peer_id};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match Identity::from_json(data) {
        Ok(identity) => assert_eq!(peer_id(identity.public_key()), identity.peer_id()),
        Err(error) => assert!(error.to_string().len() < 200),
    }
});
