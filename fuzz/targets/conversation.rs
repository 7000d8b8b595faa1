//! A session with splits, damage, holes and repetitions as the input specifies: no message is emitted that was not
//! sent.
#![no_main]
use std::{collections::HashSet, sync::LazyLock};

use chainscope_fuzz::{Keys, SESSION, script};
use chainscope_tezos::{Conversation, Output, Role};
use libfuzzer_sys::fuzz_target;

static SENT: LazyLock<HashSet<[u8; 32]>> = LazyLock::new(|| SESSION.messages.iter().copied().collect());

fuzz_target!(|data: &[u8]| {
    let limits = chainscope_fuzz::low_budget();
    let mut conversation = Conversation::new(Some(Role::Initiator), limits).with_start(0, 0);
    let mut keys = Keys::default();
    let mut out = |output: Output| {
        if let Output::Message(message) = output {
            assert!(SENT.contains(&message.sha256) && message.error.is_empty(), "{message:?}");
        }
    };
    for piece in SESSION.handshake() {
        conversation.push(piece, &mut keys, &mut out);
    }
    let ends = script(data, |piece| {
        conversation.push(piece, &mut keys, &mut out);
        let stats = conversation.stats();
        assert!(stats.is_balanced() && stats.pending <= 2 * limits.resync_window_bytes as u64 + 131_074);
    });
    conversation.finish(Some(ends[0]), Some(ends[1]), &mut out);
    assert!(conversation.stats().is_balanced() && conversation.stats().pending == 0);
});
