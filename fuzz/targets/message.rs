//! Decoding of messages between peers: every tag, whole and truncated.
#![no_main]
use chainscope_tezos::{
    Category, decode,
    message::{PEER_KINDS, preview, preview_of_prefix},
    seal::frame,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, body)) = data.split_first() else { return };
    let tag = match PEER_KINDS.get(usize::from(*choice) % (PEER_KINDS.len() + 1)) {
        Some((tag, _)) => *tag,
        None => 0x99,
    };
    let plain = frame(tag, body);
    match decode(Category::P2p, false, &plain) {
        Ok(decoded) => {
            let text = serde_json::to_string(&decoded).expect("JSON");
            let preview = preview(&decoded).expect("preview");
            assert!(text.starts_with(&preview) && preview.len() <= 100);
            assert_eq!(preview_of_prefix(Category::P2p, false, &plain).as_deref(), Some(&preview[..]));
        }
        Err(error) => {
            assert_eq!(error.tag, Some(tag));
            assert!(error.offset <= plain.len());
        }
    }
    let _ = preview_of_prefix(Category::P2p, false, &plain[..plain.len() / 2]);
    let _ = decode(Category::P2p, false, body);
});
