//! Frames of syslog over TCP, lines of container runtimes, and bytes of any kind.

use chainscope_logs::container::{ContainerLine, PartJoiner, Stream, parse};
use chainscope_logs::syslog::{FrameDecoder, Header};
use chainscope_logs::{Encoding, MAX_MESSAGE_BYTES, Message, MessageJoiner, pieces};
use proptest::prelude::*;

fn frames(stream: &[u8], part: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut decoder = FrameDecoder::default();
    let mut frames = Vec::new();
    for bytes in stream.chunks(part) {
        decoder.extend(bytes);
        while let Some(frame) = decoder.next_frame() {
            frames.push(frame.to_vec());
        }
        assert!(decoder.remainder().len() < MAX_MESSAGE_BYTES + 16, "bounded");
    }
    (frames, decoder.remainder().to_vec())
}

#[test]
fn octet_counting_and_newlines_may_be_mixed() {
    let stream = b"9 <27>1 a\nb<27>one\r\n\n11 <27>1 two\n \n2026 was a good year\n<5>thr";
    for part in 1..stream.len() {
        let (frames, rest) = frames(stream, part);
        let expected: [&[u8]; 5] = [b"<27>1 a\nb", b"<27>one", b"<27>1 two\n ", b"2026 was a good year", b"<5>thr"];
        assert_eq!(frames, expected[..4], "in parts of {part}");
        assert_eq!(rest, expected[4]);
    }
}

#[test]
fn long_messages_come_in_pieces() {
    let long = [b"<27>".to_vec(), vec![b'x'; 2 * MAX_MESSAGE_BYTES]].concat();
    let line = [&long[..], b"\n<27>next\n"].concat();
    let counted = [format!("{} ", long.len()).as_bytes(), &long, b"9 <27>1 a\nb"].concat();
    for (stream, next) in [(line, &b"<27>next"[..]), (counted, b"<27>1 a\nb")] {
        let (frames, rest) = frames(&stream, 4096);
        assert_eq!(frames.len(), 4);
        assert_eq!(frames[..3].concat(), long);
        assert_eq!((frames[3].as_slice(), rest.as_slice()), (next, &b""[..]));
    }
    let endless = vec![b'1'; 3 * MAX_MESSAGE_BYTES + 5];
    let (frames, rest) = frames(&endless, 10_000);
    assert_eq!((frames.concat().len(), rest.len()), (3 * MAX_MESSAGE_BYTES, 5));
}

#[test]
fn container_lines() {
    let time = 1_475_713_029_669_794_202;
    let line = |is_partial, stream, text: &str| {
        Some(ContainerLine { time, stream, is_partial, text: text.as_bytes().to_vec() })
    };
    let cases: [(&str, Option<ContainerLine>); 9] = [
        ("2016-10-06T00:17:09.669794202Z stdout F log  line", line(false, Stream::Stdout, "log  line")),
        ("2016-10-06T00:17:09.669794202Z stderr P part", line(true, Stream::Stderr, "part")),
        ("2016-10-06T02:17:09.669794202+02:00 stdout F:tag ", line(false, Stream::Stdout, "")),
        ("2016-10-06T00:17:09.669794202Z stdout F", line(false, Stream::Stdout, "")),
        ("2016-10-06T00:17:09.669794202Z stdin F x", None),
        ("2016-10-06T00:17:09.669794202Z stdout X x", None),
        ("today stdout F x", None),
        (
            r#"{"log":"a \"b\"\r\n","stream":"stdout","time":"2016-10-06T00:17:09.669794202Z"}"#,
            line(false, Stream::Stdout, "a \"b\""),
        ),
        (
            r#"{"log":"part","stream":"stderr","attrs":{},"time":"2016-10-06T00:17:09.669794202Z"}"#,
            line(true, Stream::Stderr, "part"),
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn parts_are_joined() {
    let part =
        |time, is_partial, text: &str| ContainerLine { time, stream: Stream::Stdout, is_partial, text: text.into() };
    let mut joiner = PartJoiner::default();
    assert_eq!(joiner.push(part(1, true, "a")), None);
    assert_eq!(joiner.push(part(2, true, "b")), None);
    assert_eq!(joiner.push(part(3, false, "c")), Some((1, b"abc".to_vec())));
    assert_eq!(joiner.push(part(4, false, "")), Some((4, Vec::new())));
    assert_eq!(joiner.push(part(5, true, "left")), None);
    assert_eq!(joiner.flush(), Some((5, b"left".to_vec())));
    assert_eq!(joiner.flush(), None);
}

proptest! {
    #[test]
    fn frames_do_not_depend_on_the_parts(stream in prop::collection::vec(prop::sample::select(b"<1 \n\r0a9".to_vec()), 0..200), part in 1..200_usize) {
        prop_assert_eq!(frames(&stream, part), frames(&stream, 1));
    }

    #[test]
    fn pieces_are_the_message(text in "\\PC{0,4}", count in 0..200_000_usize) {
        let message = text.repeat(count).into_bytes();
        let pieces: Vec<&[u8]> = pieces(&message).collect();
        prop_assert!(!pieces.is_empty());
        prop_assert!(pieces.iter().all(|piece| piece.len() <= MAX_MESSAGE_BYTES && std::str::from_utf8(piece).is_ok()));
        prop_assert_eq!(pieces.concat(), message);
    }

    #[test]
    fn any_bytes_are_a_message(raw in prop::collection::vec(any::<u8>(), 0..300), received in any::<i64>()) {
        let _ = Message::parse(Encoding::Plain, &raw, received);
        let _ = Message::parse(Encoding::Syslog, &raw, received);
        let _ = parse(&raw);
    }

    #[test]
    fn any_text_is_a_message(text in "(<[0-9]{1,3}>)?(1 )?([A-Z][a-z]{2} [0-9]{1,2} [0-9:.]{5,12})?( - | │ |: |\u{1b}\\[)?\\PC{0,60}", received in any::<i64>()) {
        let _ = Message::parse(Encoding::Plain, text.as_bytes(), received);
        let _ = Message::parse(Encoding::Syslog, text.as_bytes(), received);
        let _ = Header::parse(&text, received);
    }

    #[test]
    fn joined_lines_are_the_lines(lines in prop::collection::vec("(Apr 27 08:29:09.000: | )?[a-z]{0,8}", 1..20)) {
        let mut joiner = MessageJoiner::default();
        let mut messages: Vec<Vec<u8>> = lines.iter().filter_map(|line| joiner.push(line.as_bytes())).collect();
        messages.extend(joiner.flush());
        prop_assert_eq!(messages.join(&b'\n'), lines.join("\n").into_bytes());
    }
}
