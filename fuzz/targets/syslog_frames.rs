//! An arbitrary TCP stream as syslog frames: they do not depend on how the stream is divided, and the buffer is bounded.
#![no_main]
use chainscope_logs::{MAX_MESSAGE_BYTES, syslog::FrameDecoder};
use libfuzzer_sys::fuzz_target;

fn frames<'a>(parts: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut decoder = FrameDecoder::default();
    let mut frames = Vec::new();
    for part in parts {
        decoder.extend(part);
        while let Some(frame) = decoder.next_frame() {
            assert!(frame.len() <= MAX_MESSAGE_BYTES);
            frames.push(frame.to_vec());
        }
        assert!(decoder.remainder().len() < MAX_MESSAGE_BYTES + 16);
    }
    (frames, decoder.remainder().to_vec())
}

fuzz_target!(|data: &[u8]| {
    let Some((length, stream)) = data.split_first() else { return };
    let whole = frames(std::iter::once(stream));
    assert_eq!(frames(stream.chunks(usize::from(*length).max(1))), whole);
});
