use super::*;

fn data_record(length: u32, bytes: &[u8]) -> Vec<u8> {
    let mut record = vec![1, 1, CALL_START | SOCKET_CALL, 0];
    record.extend(length.to_ne_bytes());
    for field in [7_u64, 1000, u64::from(length), 42] {
        record.extend(field.to_ne_bytes());
    }
    record.extend(bytes);
    record
}

#[test]
fn data_with_slack_behind_it() {
    let record = data_record(3, b"abcdef");
    let Some(Event::Data(data)) = parse(&record) else { panic!("not data") };
    assert_eq!(data.bytes, b"abc");
    assert_eq!(
        (data.header.socket, data.header.direction, data.header.offset),
        (SocketId(7), Direction::Received, 1000)
    );
    assert!(data.header.call_start && data.header.socket_call && data.header.missing.is_none());
    assert_eq!(data.header.time_ns, 42);
}

#[test]
fn a_length_beyond_the_record_is_refused() {
    assert_eq!(parse(&data_record(7, b"abcdef")), None);
    assert_eq!(parse(&data_record(u32::MAX, b"abcdef")), None);
}

#[test]
fn every_cut_is_refused_or_shorter() {
    let record = data_record(6, b"abcdef");
    for end in 0..record.len() {
        assert_eq!(parse(&record[..end]), None, "cut at {end}");
    }
    let mut notice = vec![0_u8; NOTICE];
    notice[0] = 4;
    notice[56] = 2;
    assert!(parse(&notice).is_some());
    for end in 0..NOTICE {
        assert_eq!(parse(&notice[..end]), None, "cut at {end}");
    }
}

#[test]
fn unknown_kinds_directions_and_reasons_are_refused() {
    let mut record = data_record(0, b"");
    record[0] = 99;
    assert_eq!(parse(&record), None);
    let mut record = data_record(0, b"");
    record[1] = 2;
    assert_eq!(parse(&record), None);
    let mut record = data_record(0, b"");
    record[3] = 200;
    assert_eq!(parse(&record), None);
}

#[test]
fn addresses_keep_the_family_of_the_socket() {
    let mut mapped = [0_u8; 16];
    mapped[10..12].fill(0xff);
    mapped[12..].copy_from_slice(&[127, 0, 0, 1]);
    assert_eq!(address(AF_INET6, &mapped, 9732), "[::ffff:127.0.0.1]:9732".parse().ok());
    let mut v4 = [0_u8; 16];
    v4[..4].copy_from_slice(&[127, 0, 0, 1]);
    assert_eq!(address(2, &v4, 9732), "127.0.0.1:9732".parse().ok());
}
