//! A conversation of arbitrary bytes from the beginning: pieces with offset jumps and holes in both directions.
#![no_main]
use chainscope_fuzz::{Keys, pieces};
use chainscope_tezos::{Conversation, Limits, Role};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let role = [None, Some(Role::Initiator), Some(Role::Responder)][usize::from(choice % 3)];
    let mut conversation = Conversation::new(role, Limits::default());
    if choice & 0x80 != 0 {
        conversation = conversation.with_start(0, 0);
    }
    let mut keys = Keys::default();
    let mut offsets = [0; 2];
    pieces(rest, &mut offsets, |piece| {
        conversation.push(piece, &mut keys, &mut |_| ());
        assert!(conversation.stats().is_balanced());
    });
    conversation.finish(Some(offsets[0]), Some(offsets[1]), &mut |_| ());
    assert!(conversation.stats().is_balanced() && conversation.stats().pending == 0);
});
