use std::sync::Arc;

use chainscope_testing::memory::{FrameName, Recorder, in_parts};

use super::{MOST_TARGETS, Memory, Standing};

fn recorder(pid: u32, profile: u64, pages: u64) -> Recorder {
    let mut recorder = Recorder::new("9732", pid, profile);
    recorder.hold(&[FrameName::own("main", 1)], [pages, 0, 0]);
    recorder
}

#[test]
fn a_process_runs_while_its_agent_tells_of_it() {
    let memory = Arc::new(Memory::default());
    let agent: Arc<str> = "host-1".into();
    let standing = || memory.targets("9732").iter().map(|target| target.standing).collect::<Vec<_>>();
    let mut process = recorder(1, 10, 5);
    let round = memory.begin(&agent);
    assert_eq!(round.take(process.keyframe()).unwrap().sequence, 1);
    assert!(memory.is_told_of("9732"));
    assert_eq!(standing(), [Standing::Running]);
    drop(round);
    assert_eq!(standing(), [Standing::Silent]);
    assert!(!memory.is_told_of("9732"));

    // The agent comes back and has attached anew: the process is not there twice.
    let round = memory.begin(&agent);
    round.take(recorder(1, 20, 7).keyframe()).unwrap();
    assert_eq!(standing(), [Standing::Ended, Standing::Running]);

    // An older session that ends late changes nothing.
    let late = memory.begin(&agent);
    let newest = memory.begin(&agent);
    let mut ended = recorder(1, 20, 0);
    ended.keyframe();
    newest.take(ended.keyframe()).unwrap();
    drop(late);
    assert_eq!(standing(), [Standing::Ended, Standing::Running]);
    ended.process.ended_ns = 99;
    newest.take(ended.delta(2)).unwrap();
    assert_eq!(standing(), [Standing::Ended, Standing::Ended]);
    memory.forget("9732");
    assert!(memory.targets("9732").is_empty() && memory.nodes().is_empty());
}

#[test]
fn a_gap_asks_for_a_keyframe_and_what_is_there_stays() {
    let memory = Arc::new(Memory::default());
    let round = memory.begin(&"host-1".into());
    let mut process = recorder(1, 10, 5);
    let first = process.keyframe();
    process.hold(&[FrameName::own("main", 1)], [9, 0, 0]);
    let second = process.delta(1);
    let ack = round.take(second.clone()).unwrap();
    assert!(ack.keyframe_wanted && ack.sequence == 0 && ack.refused.contains("state 1"), "{ack:?}");
    assert!(memory.targets("9732").is_empty(), "nothing is known yet");

    let mut parts = in_parts(&first, 1);
    let last = parts.pop().unwrap();
    for part in parts {
        assert_eq!(round.take(part), None);
    }
    assert_eq!(round.take(last).unwrap().sequence, 1);
    assert_eq!(round.take(second).unwrap().sequence, 2);
    process.delta(2);
    let ack = round.take(process.delta(3)).unwrap();
    assert!(ack.keyframe_wanted && ack.sequence == 2, "{ack:?}");
    assert_eq!(memory.targets("9732")[0].data.attributed(), [36, 0, 0]);
}

#[test]
fn processes_are_bounded_and_the_oldest_is_first() {
    let memory = Arc::new(Memory::default());
    let round = memory.begin(&"host-1".into());
    for number in 0..MOST_TARGETS as u64 {
        let mut process = recorder(number as u32 + 1, 10 + number, 1);
        process.process.started_ns = 10_000 - number as i64;
        assert_eq!(round.take(process.keyframe()).unwrap().refused, "");
    }
    let pids =
        |memory: &Memory| memory.targets("9732").iter().map(|target| target.data.process.pid).collect::<Vec<_>>();
    assert_eq!(pids(&memory)[0] as usize, MOST_TARGETS);
    let ack = round.take(recorder(9999, 9999, 1).keyframe()).unwrap();
    assert!(!ack.refused.is_empty() && !ack.keyframe_wanted);
    let mut gone = recorder(1, 10, 1);
    gone.keyframe();
    gone.process.ended_ns = 5;
    round.take(gone.keyframe()).unwrap();
    assert_eq!(round.take(recorder(9999, 9999, 1).keyframe()).unwrap().refused, "");
    assert_eq!(pids(&memory).len(), MOST_TARGETS);
}
