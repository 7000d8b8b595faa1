//! Holes, random losses and damage: every message that a hole does not touch is emitted, and no wrong one.
mod directed;
mod random;

use chainscope_tezos::{Direction, Limits, Role, generate::Generator};

use crate::{
    common::{Recorder, Session, identity},
    sessions::{Pair, pair},
};

/// Length of a connection message of the network `TEZOS`, in a chunk.
pub(crate) const CONNECTION_CHUNK_BYTES: usize = 97;

/// Position of a message in its stream.
struct Placed {
    sha256: [u8; 32],
    start: u64,
    end: u64,
}

/// Positions of all messages of a recording without losses, by direction.
fn placed(recorder: &Recorder) -> [Vec<Placed>; 2] {
    [Direction::Sent, Direction::Received].map(|direction| {
        let mut ends = vec![0];
        for chunk in recorder.chunks(direction) {
            ends.push(ends.last().unwrap() + chunk.wire.len() as u64);
        }
        recorder
            .messages(direction)
            .iter()
            .map(|message| Placed {
                sha256: message.sha256,
                start: ends[message.first_chunk as usize],
                end: ends[message.last_chunk as usize + 1],
            })
            .collect()
    })
}

/// Checks that exactly the messages outside the holes were emitted, in order.
fn check(recorder: &Recorder, placed: &[Vec<Placed>; 2], holes: &[(Direction, u64, u64)], case: &str) {
    for direction in [Direction::Sent, Direction::Received] {
        let untouched: Vec<_> = placed[direction as usize]
            .iter()
            .filter(|message| {
                !holes.iter().any(|(of, start, end)| *of == direction && *start < message.end && message.start < *end)
            })
            .map(|message| message.sha256)
            .collect();
        let got: Vec<_> = recorder.messages(direction).iter().map(|message| message.sha256).collect();
        assert_eq!(got.len(), untouched.len(), "{case}: {direction:?} {:?}", recorder.gaps());
        assert_eq!(got, untouched, "{case}: {direction:?}");
    }
    let lost: u64 = holes.iter().map(|(_, start, end)| end - start).sum();
    let stats = recorder.conversation.stats();
    assert!(stats.is_balanced());
    assert_eq!(stats.lost, lost, "{case}");
    let reported: u64 = recorder.gaps().iter().map(|gap| gap.lost_bytes).sum();
    assert_eq!(reported, lost, "{case}: {:?}", recorder.gaps());
    let skipped: u64 = recorder.gaps().iter().map(|gap| gap.skipped_bytes).sum();
    assert_eq!(stats.skipped, skipped, "{case}");
    assert_eq!(stats.gaps, recorder.gaps().len() as u64);
}

fn record(calls: &[(Direction, Vec<u8>)]) -> Recorder {
    let mut recorder =
        Recorder::new(Some(Role::Initiator), Limits::default(), identity("synthetic-two-way/identity.json"));
    for (direction, bytes) in calls {
        recorder.next(*direction, bytes);
    }
    recorder.finish();
    recorder
}

/// A session with random messages, and the streams of both directions.
fn traffic(seed: u64, messages: usize) -> (Pair, [Vec<u8>; 2]) {
    let mut pair = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
    let mut generator = Generator::new(seed);
    let mut streams = pair.handshake.clone();
    for _ in 0..messages {
        let tag = generator.tag();
        let message = if generator.below(16) == 0 {
            let length = generator.below(150_000);
            generator.operation(length)
        } else {
            generator.message(tag)
        };
        let (stream, sealer) = if generator.below(2) == 0 {
            (&mut streams[0], &mut pair.ours)
        } else {
            (&mut streams[1], &mut pair.theirs)
        };
        stream.extend(sealer.message(&message).concat());
    }
    (pair, streams)
}

/// A recorder that buffers any number of bytes until the other direction's connection message arrives.
fn fresh() -> Recorder {
    let limits = Limits { max_buffered_bytes: 100 << 20, ..Limits::default() };
    Recorder::new(Some(Role::Initiator), limits, identity("synthetic-two-way/identity.json"))
}

/// The streams of [`traffic`] without losses.
fn record_streams(streams: &[Vec<u8>; 2]) -> Recorder {
    let mut recorder = fresh();
    recorder.next(Direction::Sent, &streams[0]);
    recorder.next(Direction::Received, &streams[1]);
    recorder
}

/// A captured session without losses.
fn record_session(session: &Session) -> Recorder {
    let mut recorder = Recorder::new(Some(Role::Initiator), Limits::default(), session.identity.clone());
    for (direction, bytes) in &session.payloads {
        recorder.next(*direction, bytes);
    }
    recorder
}
