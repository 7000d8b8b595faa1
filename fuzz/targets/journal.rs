//! The session journal from arbitrary bytes: what was read is written again the same, and each session can be resumed.
#![no_main]
use chainscope_agent::fuzzing::read_journal;
use chainscope_fuzz::{Keys, SESSION};
use chainscope_tezos::{Direction, Piece};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (written, conversations) = read_journal(data);
    let (again, resumed) = read_journal(&written);
    assert!(again == written && resumed.len() == conversations.len());
    let mut keys = Keys::default();
    for mut conversation in conversations.into_iter().take(4) {
        for direction in [Direction::Sent, Direction::Received] {
            let stream = &SESSION.streams[direction as usize];
            let from = SESSION.handshake[direction as usize];
            let bytes = &stream[from..stream.len().min(from + 2_000)];
            let piece = Piece { call_start: true, ..Piece::whole(direction, from as u64, bytes, 1) };
            conversation.push(piece, &mut keys, &mut |_| ());
        }
        conversation.finish(None, None, &mut |_| ());
        let stats = conversation.stats();
        assert!(stats.is_balanced() && stats.pending == 0);
    }
});
