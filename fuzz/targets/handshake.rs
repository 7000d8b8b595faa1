//! Decoding of the handshake's messages from arbitrary bytes.
#![no_main]
use chainscope_tezos::{Category, decode, preview};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, plain)) = data.split_first() else { return };
    let category = [Category::Connection, Category::Meta, Category::Ack][usize::from(choice % 3)];
    match decode(category, false, plain) {
        Ok(decoded) => {
            let text = serde_json::to_string(&decoded).expect("JSON");
            let preview = preview(&decoded).expect("preview");
            assert!(text.starts_with(&preview) && preview.len() <= 100);
        }
        Err(error) => assert!(error.offset <= plain.len()),
    }
});
