//! Arbitrary bytes as a log message and as lines that are joined: no text is lost, and a redaction leaves no match.
#![no_main]
use chainscope_logs::{Encoding, MAX_MESSAGE_BYTES, Message, MessageJoiner, pieces};
use chainscope_spec::Redaction;
use libfuzzer_sys::fuzz_target;

/// 2026-01-01T00:00:00Z.
const RECEIVED: i64 = 1_767_225_600_000_000_000;

fuzz_target!(|data: &[u8]| {
    for encoding in [Encoding::Plain, Encoding::Syslog] {
        let message = Message::parse(encoding, data, RECEIVED);
        let replaced = String::from_utf8_lossy(data);
        assert!(message.text.len() <= 6 * replaced.len() + 64, "{message:?}");
    }
    let mut joiner = MessageJoiner::default();
    let mut messages: Vec<Vec<u8>> = data.split(|byte| *byte == b'\n').filter_map(|line| joiner.push(line)).collect();
    messages.extend(joiner.flush());
    assert_eq!(messages.join(&b'\n'), data);
    for message in &messages {
        let pieces: Vec<&[u8]> = pieces(message).collect();
        assert!(pieces.iter().all(|piece| piece.len() <= MAX_MESSAGE_BYTES));
        assert_eq!(&pieces.concat(), message);
    }
    let redaction = Redaction::new(&["edsk[0-9a-zA-Z]+".to_owned()]).expect("a pattern");
    let redacted = redaction.apply(data.to_vec());
    assert_eq!(redaction.apply(redacted.clone()), redacted);
});
