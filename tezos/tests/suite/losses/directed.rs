//! Losses at chosen positions.
use std::collections::HashSet;

use chainscope_tezos::{
    Conversation, Direction, Limits, MemoryBudget, Output, Piece, Role,
    generate::Generator,
    seal::{MAX_PLAIN_BYTES, frame},
};
use sha2::{Digest, Sha256};

use super::{CONNECTION_CHUNK_BYTES, Placed, check, fresh, placed, record, record_session, record_streams, traffic};
use crate::{
    common::{Recorder, calls, carthagenet, identity},
    sessions::{Pair, pair},
};

#[test]
fn any_one_record_may_be_lost() {
    let calls = calls("outgoing-all-messages");
    let whole = record(&calls);
    let placed = placed(&whole);
    // The first four are the connection messages.
    for dropped in 4..calls.len() {
        for (role, as_jump) in [(Some(Role::Initiator), true), (Some(Role::Initiator), false), (None, true)] {
            let mut recorder = Recorder::new(role, Limits::default(), identity("synthetic-two-way/identity.json"));
            let mut hole = (Direction::Sent, 0, 0);
            for (at, (direction, bytes)) in calls.iter().enumerate() {
                if at != dropped {
                    recorder.next(*direction, bytes);
                    continue;
                }
                let start = recorder.offsets[*direction as usize];
                hole = (*direction, start, start + bytes.len() as u64);
                if as_jump {
                    recorder.jump(*direction, bytes.len());
                } else {
                    recorder.lose(*direction, bytes.len());
                }
            }
            recorder.finish();
            check(&recorder, &placed, &[hole], &format!("record {dropped}, {role:?}, {as_jump}"));
            let gaps = recorder.gaps();
            assert_eq!(gaps.len(), 1);
            // After the last record there is no chunk to find.
            let last = calls.iter().rposition(|call| call.0 == calls[dropped].0).unwrap();
            assert_eq!(gaps[0].recovered, dropped < last, "{dropped} {gaps:?}");
        }
    }
}

/// A lost record that no offset reveals.
#[test]
fn any_one_record_may_be_lost_silently() {
    let calls = calls("outgoing-all-messages");
    let whole = record(&calls);
    let all: HashSet<_> = placed(&whole).iter().flatten().map(|message| message.sha256).collect();
    for dropped in (4..calls.len()).step_by(5) {
        let kept: Vec<_> =
            calls.iter().enumerate().filter(|(at, _)| *at != dropped).map(|(_, call)| call.clone()).collect();
        let recorder = record(&kept);
        let messages: Vec<_> =
            [Direction::Sent, Direction::Received].iter().flat_map(|d| recorder.messages(*d)).collect();
        assert!(messages.iter().all(|message| all.contains(&message.sha256)), "{dropped}");
        // Lost are at most the messages in the record, and those in a false chunk that the next record begins.
        assert!(messages.len() + 6 >= all.len(), "{dropped}: {} of {}", messages.len(), all.len());
        assert_eq!(recorder.conversation.stats().pending, 0);
    }
}

/// Bytes are missing without a jump in the offsets, so often that the search falls behind until the connection ends.
#[test]
fn a_damaged_capture_is_searched_to_its_end() {
    let session = carthagenet();
    let whole = record_session(&session);
    let [placed, _] = placed(&whole);
    let stream: Vec<u8> = whole.chunks(Direction::Sent).iter().flat_map(|chunk| chunk.wire.to_vec()).collect();
    let mut generator = Generator::new(4);
    let handshake = placed[2].end as usize;
    let mut kept: Vec<_> = std::iter::once(0..handshake).collect();
    let mut at = handshake;
    while at < stream.len() {
        let start = (at + 1 + generator.below(700)).min(stream.len());
        at = (start + generator.below(900)).min(stream.len());
        kept.push(start..at);
    }
    let whole_in = |message: &&Placed| {
        kept.iter().any(|kept| kept.start as u64 <= message.start && message.end <= kept.end as u64)
    };
    let expected: Vec<_> = placed.iter().filter(whole_in).map(|message| message.sha256).collect();
    assert!(expected.len() > 1_500, "{}", expected.len());

    // Played at full speed: no time goes by in which the budget is refilled.
    let limits = Limits { resync_budget: 600_000, resync_budget_per_byte: 0, ..Limits::default() };
    let mut recorder = Recorder::new(Some(Role::Initiator), limits, session.identity.clone());
    for (direction, bytes) in session.payloads.iter().take(4).filter(|payload| payload.0 == Direction::Received) {
        recorder.next(*direction, bytes);
    }
    let damaged: Vec<u8> = kept.into_iter().flat_map(|kept| stream[kept].to_vec()).collect();
    let mut offset = 0;
    for bytes in damaged.chunks(2_000) {
        let piece = Piece { call_start: false, ..Piece::whole(Direction::Sent, offset, bytes, 1) };
        recorder.push(piece);
        offset += bytes.len() as u64;
    }
    let before = recorder.messages(Direction::Sent).len();
    recorder.offsets[0] = offset;
    assert!(before < expected.len() && recorder.conversation.stats().pending > 0, "the search does not fall behind");
    recorder.finish();
    let got: Vec<_> = recorder.messages(Direction::Sent).iter().map(|message| message.sha256).collect();
    assert_eq!(got.len(), expected.len(), "{before} before the end");
    assert!(got == expected);
    assert_eq!(recorder.conversation.stats().pending, 0);
}

/// A connection that ends within a chunk, and within a message.
#[test]
fn nothing_is_pending_of_a_connection_that_ended() {
    let long = Generator::new(3).operation(100_000);
    for cut in [1, 2, 1_000, 65_535, 65_536, 90_000] {
        let Pair { mut recorder, mut ours, .. } = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
        let wire = ours.message(&long).concat();
        recorder.next(Direction::Sent, &wire[..cut]);
        let pending = recorder.conversation.stats().pending;
        assert_eq!(pending, if cut < 65_535 { cut } else { cut - 65_535 } as u64);
        recorder.finish();
        let stats = recorder.conversation.stats();
        assert_eq!((stats.pending, stats.skipped), (0, pending));
        let skipped: Vec<_> = recorder.gaps().iter().map(|gap| (gap.skipped_bytes, gap.recovered)).collect();
        assert_eq!(skipped, if pending > 0 { vec![(pending, false)] } else { vec![] });
    }
}

#[test]
fn random_holes_in_the_real_session() {
    let session = carthagenet();
    let whole = record_session(&session);
    let placed = placed(&whole);
    let stream: Vec<u8> =
        session.payloads.iter().filter(|payload| payload.0 == Direction::Sent).flat_map(|p| p.1.clone()).collect();
    let mut generator = Generator::new(11);
    let mut recorder = Recorder::new(Some(Role::Initiator), Limits::default(), session.identity.clone());
    for (direction, bytes) in session.payloads.iter().take(4) {
        if *direction == Direction::Received {
            recorder.next(*direction, bytes);
        }
    }
    recorder.next(Direction::Sent, &stream[..175]);
    let mut at = 175;
    let mut holes = Vec::new();
    while at < stream.len() {
        let bytes = generator.below(3_000).min(stream.len() - at);
        // Without call boundaries.
        let offset = recorder.offsets[0];
        let time_ns = recorder.time_ns;
        let piece =
            Piece { call_start: false, ..Piece::whole(Direction::Sent, offset, &stream[at..at + bytes], time_ns) };
        recorder.push(piece);
        recorder.offsets[0] += bytes as u64;
        at += bytes;
        let hole = generator.below(2_000).min(stream.len() - at);
        if hole > 0 {
            holes.push((Direction::Sent, at as u64, (at + hole) as u64));
        }
        recorder.jump(Direction::Sent, hole);
        at += hole;
    }
    recorder.finish();
    assert!(holes.len() > 200);
    // The single message of the responder is not included.
    let placed = [placed.into_iter().next().unwrap(), Vec::new()];
    let untouched =
        placed[0].iter().filter(|m| !holes.iter().any(|(_, start, end)| *start < m.end && m.start < *end)).count();
    let sent: Vec<_> = recorder.messages(Direction::Sent).iter().map(|m| m.sha256).collect();
    assert_eq!(sent.len(), untouched);
    let stats = recorder.conversation.direction_stats(Direction::Sent);
    assert_eq!(stats.lost, holes.iter().map(|(_, start, end)| end - start).sum::<u64>());
    assert!(!recorder.comments().iter().any(|comment| comment.contains("budget")), "{:?}", recorder.comments());
}

/// A loss of thousands of small chunks of unknown length.
#[test]
fn a_long_silent_loss_is_found_in_a_growing_window() {
    for lost in [10_u16, 1_000, 20_000] {
        let Pair { mut recorder, mut ours, .. } = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
        for number in 0..lost + 3_000 {
            let wire = ours.chunk(&frame(0x10, &[[0, 0], number.to_be_bytes()].concat()));
            if number >= lost {
                recorder.next(Direction::Sent, &wire);
            }
        }
        recorder.finish();
        let messages = recorder.messages(Direction::Sent).len() - 3;
        assert!(messages > 1_000, "{lost}: {messages}");
        let gap = recorder.gaps()[0];
        assert!(gap.recovered && gap.first_chunk == 3 && gap.missed_chunks >= u64::from(lost), "{gap:?}");
        assert_eq!(gap.missed_chunks, u64::from(lost) + 3_000 - messages as u64);
        assert_eq!(recorder.comments().last(), Some(&"outgoing chunk cannot decrypt, position: 3"));
    }
}

#[test]
fn a_hole_over_many_chunks_with_long_messages_around() {
    let Pair { mut recorder, mut ours, .. } = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
    let mut generator = Generator::new(5);
    let long = generator.operation(3 * MAX_PLAIN_BYTES + 17);
    let short = generator.message(0x20);
    let wires: Vec<u8> = [&long, &short, &long, &long, &short].iter().flat_map(|m| ours.message(m).concat()).collect();
    // From the middle of the first to the middle of the third.
    let (from, to) = (100_000, 300_000);
    for (range, captured) in [(0..from, true), (from..to, false), (to..wires.len(), true)] {
        for piece in wires[range].chunks(16_384) {
            if captured {
                let offset = recorder.offsets[0];
                recorder.push(Piece { call_start: false, ..Piece::whole(Direction::Sent, offset, piece, 5) });
                recorder.offsets[0] += piece.len() as u64;
            } else {
                recorder.jump(Direction::Sent, piece.len());
            }
        }
    }
    recorder.finish();
    let got: Vec<_> = recorder.messages(Direction::Sent)[3..].iter().map(|m| m.sha256).collect();
    let hash = |message: &[u8]| <[u8; 32]>::from(Sha256::digest(message));
    assert_eq!(got, [hash(&long), hash(&short)]);
    assert!(recorder.gaps()[0].recovered);
}

#[test]
fn an_exhausted_budget_slows_the_search_and_is_reported_once() {
    let limits = Limits {
        resync_budget: 10_000,
        resync_budget_per_byte: 0,
        resync_budget_per_second: 1_000,
        ..Limits::default()
    };
    let Pair { mut recorder, mut ours, .. } = pair(Some(Role::Initiator), limits, "TEZOS");
    for _ in 0..500 {
        ours.chunk(&frame(0x02, b""));
    }
    // Random bytes without a chunk.
    for _ in 0..1_000 {
        recorder.next(Direction::Sent, &[0, 40, 1, 2, 3, 4, 5, 6, 7, 8].repeat(100));
        assert!(recorder.conversation.stats().pending <= limits.resync_window_bytes as u64);
    }
    let slowed = "outgoing search for the next chunk is slowed down: its processing budget is spent";
    assert_eq!(recorder.comments().iter().filter(|comment| **comment == slowed).count(), 1);
    // The budget is refilled with time.
    for _ in 0..200 {
        recorder.time_ns += 10_000_000_000;
        let wire = ours.chunk(&frame(0x10, &[1; 4]));
        recorder.next(Direction::Sent, &wire);
    }
    recorder.finish();
    assert!(recorder.gaps()[0].recovered, "{:?}", recorder.gaps());
    assert!(recorder.messages(Direction::Sent).len() > 10);
}

/// A conversation of the same session as `pair`, with a shared budget, after the connection messages.
fn sharing(pair: &Pair, role: Option<Role>, budget: &MemoryBudget) -> Recorder {
    let conversation = Conversation::new(role, Limits::default()).with_start(0, 0).with_memory(budget);
    let mut recorder = Recorder::with(conversation, pair.recorder.identity.clone());
    for direction in [Direction::Sent, Direction::Received] {
        recorder.next(direction, &pair.handshake[direction as usize][..CONNECTION_CHUNK_BYTES]);
    }
    recorder
}

#[test]
fn searches_of_many_sessions_stay_within_the_budget_of_their_target_and_leave_other_targets_theirs() {
    const TARGET_UNITS: u64 = 10_000_000;
    let all = MemoryBudget::new(256 << 20);
    let [hostile, other] = [(); 2].map(|()| all.part(64 << 20));
    let mut pair = pair(None, Limits::default(), "TEZOS");
    let mut generator = Generator::new(9);
    let garbage: Vec<u8> = (0..64 << 10).map(|_| generator.below(256) as u8).collect();
    let (mut captured, mut slowed) = (0, 0);
    for _ in 0..200 {
        let mut recorder = sharing(&pair, None, &hostile);
        for direction in [Direction::Sent, Direction::Received] {
            for piece in garbage.chunks(16 << 10) {
                recorder.next(direction, piece);
            }
        }
        recorder.finish();
        let stats = recorder.conversation.stats();
        assert_eq!((stats.pending, stats.skipped), (0, 2 * garbage.len() as u64));
        captured += stats.captured;
        slowed +=
            usize::from(recorder.comments().iter().any(|comment| comment.ends_with("its processing budget is spent")));
        let spent = hostile.search_units();
        assert!(spent <= TARGET_UNITS + captured / 16 + 2_000, "{spent}");
    }
    assert!(hostile.search_units() > TARGET_UNITS - 100_000, "the attack does not use the budget up");
    // Ten of them use up what the target may spend at once.
    assert!(slowed > 150, "{slowed} sessions");
    assert_eq!((other.search_units(), all.search_units()), (0, 0));

    // A gap of another target's session, and of the same target's after some seconds.
    let messages: Vec<Vec<u8>> = (0..20).map(|_| generator.message(0x20)).collect();
    let wires: Vec<Vec<u8>> = messages.iter().flat_map(|message| pair.ours.message(message)).collect();
    for (budget, seconds) in [(&other, 0), (&hostile, 10)] {
        let mut recorder = sharing(&pair, Some(Role::Initiator), budget);
        recorder.next(Direction::Sent, &pair.handshake[0][CONNECTION_CHUNK_BYTES..]);
        recorder.time_ns += seconds * 1_000_000_000;
        recorder.jump(Direction::Sent, wires[0].len());
        for wire in &wires[1..] {
            recorder.next(Direction::Sent, wire);
        }
        assert_eq!(recorder.messages(Direction::Sent).len(), 3 + messages.len() - 1);
        assert_eq!(recorder.gaps()[0].missed_chunks, 1);
    }
}

#[test]
fn repeated_bytes_are_skipped() {
    let calls = calls("outgoing-all-messages");
    let whole = record(&calls);
    let mut recorder =
        Recorder::new(Some(Role::Initiator), Limits::default(), identity("synthetic-two-way/identity.json"));
    for (direction, bytes) in &calls {
        recorder.next(*direction, bytes);
        recorder.offsets[*direction as usize] -= bytes.len().min(3) as u64;
        let last = &bytes[bytes.len() - bytes.len().min(3)..];
        recorder.next(*direction, last);
    }
    recorder.finish();
    assert_eq!(recorder.messages(Direction::Received), retimed(&whole, &recorder));
    assert!(recorder.conversation.stats().skipped > 0);
    assert_eq!(recorder.gaps(), []);
}

/// The messages of one recording with the times of another.
fn retimed(of: &Recorder, times: &Recorder) -> Vec<chainscope_tezos::Message> {
    let times = times.messages(Direction::Received);
    of.messages(Direction::Received)
        .into_iter()
        .zip(times)
        .map(|(message, other)| chainscope_tezos::Message { time_ns: other.time_ns, ..message })
        .collect()
}

/// An acknowledgement is shorter than what a message is recognised by.
#[test]
fn an_acknowledgement_between_two_holes_is_found() {
    let (_, streams) = traffic(1, 30);
    let whole = record_streams(&streams);
    let placed = placed(&whole);
    let (metadata, acknowledgement) = (&placed[1][1], &placed[1][2]);
    // Bytes of the chunks around it that are captured, too.
    for (before, after) in [(0, 0), (0, 1), (7, 1), (7, 4), (10, 10)] {
        let holes = [
            (Direction::Received, metadata.start, metadata.end - before),
            (Direction::Received, acknowledgement.end + after, acknowledgement.end + after + 20),
        ];
        let mut recorder = fresh();
        recorder.next(Direction::Sent, &streams[0]);
        let mut at = 0;
        for (_, start, end) in holes {
            recorder.next(Direction::Received, &streams[1][at..start as usize]);
            recorder.jump(Direction::Received, (end - start) as usize);
            at = end as usize;
        }
        recorder.next(Direction::Received, &streams[1][at..]);
        recorder.finish();
        check(&recorder, &placed, &holes, &format!("{before} bytes before it, {after} after it"));
    }
}

/// Bytes with the length of an acknowledgement are authenticated once, not until the budget of the search is spent.
#[test]
fn what_only_has_the_length_of_an_acknowledgement_costs_little() {
    let (pair, streams) = traffic(1, 30);
    let mut recorder = fresh();
    recorder.next(Direction::Sent, &streams[0]);
    recorder.next(Direction::Received, &pair.handshake[Direction::Received as usize][..97]);
    recorder.jump(Direction::Received, 60);
    recorder.next(Direction::Received, &[&[0xff; 4][..], &[0, 17], &[0; 17]].concat());
    let comments = recorder.outputs.iter().filter(|output| matches!(output, Output::Comment(_)));
    assert_eq!(comments.collect::<Vec<_>>(), Vec::<&Output>::new());
}
