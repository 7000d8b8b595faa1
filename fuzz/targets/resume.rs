//! A session that is saved at an arbitrary position and resumed at another.
#![no_main]
use chainscope_fuzz::{Keys, SESSION, script};
use chainscope_tezos::{Conversation, Offsets, Output, Role};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let limits = chainscope_fuzz::low_budget();
    let mut keys = Keys::default();
    let mut first = Conversation::new(Some(Role::Initiator), limits);
    for piece in SESSION.handshake() {
        first.push(piece, &mut keys, &mut |_| ());
    }
    let (before, after) = rest.split_at(rest.len() / 2);
    script(before, |piece| first.push(piece, &mut keys, &mut |_| ()));
    let saved = first.saved().expect("a chunk was decrypted");
    let offsets = if choice & 1 == 0 { Offsets::Continued } else { Offsets::Unknown };
    let mut second = Conversation::resume(&saved, offsets, limits).expect("a saved session is valid");
    let ends = script(after, |piece| {
        second.push(piece, &mut keys, &mut |output| {
            if let Output::Message(message) = output {
                assert!(SESSION.messages.contains(&message.sha256), "{message:?}");
            }
        });
        assert!(second.stats().is_balanced());
    });
    second.finish(Some(ends[0]), Some(ends[1]), &mut |_| ());
    assert!(second.stats().is_balanced() && second.stats().pending == 0);
});
