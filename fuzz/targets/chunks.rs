//! Framing of arbitrary bytes: any split gives the same chunks, and no byte is lost.
#![no_main]
use chainscope_tezos::framer::{Framer, MAX_CHUNK_BYTES};
use libfuzzer_sys::fuzz_target;

fn cut<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut framer = Framer::default();
    let mut chunks = Vec::new();
    for mut piece in pieces {
        while let Some(chunk) = framer.next(&mut piece) {
            chunks.push(chunk.into_owned());
        }
        assert!(piece.is_empty() && framer.pending().len() < MAX_CHUNK_BYTES);
    }
    (chunks, framer.take())
}

fuzz_target!(|data: &[u8]| {
    let Some((size, stream)) = data.split_first() else { return };
    let whole = cut(std::iter::once(stream));
    assert_eq!(cut(stream.chunks(usize::from(*size) + 1)), whole);
    assert_eq!([whole.0.concat(), whole.1].concat(), stream);
});
