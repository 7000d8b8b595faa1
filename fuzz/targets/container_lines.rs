//! Arbitrary lines as a container runtime's log: parts are joined within their stream, and no text is lost.
#![no_main]
use chainscope_logs::container::{PartJoiner, Stream, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut joiners = [PartJoiner::default(), PartJoiner::default()];
    let (mut texts, mut joined) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for line in data.split(|byte| *byte == b'\n').filter_map(parse) {
        let of = usize::from(line.stream == Stream::Stderr);
        texts[of].extend_from_slice(&line.text);
        joined[of].extend(joiners[of].push(line).map(|(_, text)| text));
    }
    for (of, joiner) in joiners.iter_mut().enumerate() {
        joined[of].extend(joiner.flush().map(|(_, text)| text));
        assert_eq!(joined[of].concat(), texts[of]);
    }
});
