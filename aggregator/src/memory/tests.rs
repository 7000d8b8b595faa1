use std::sync::Arc;

use chainscope_proto::v1::{MemoryCounts, MemoryKind, MemoryState};
use chainscope_testing::memory::{FrameName, Recorder, in_parts};

use super::{MAX_TARGETS, Memory, ProcessState};
use crate::metrics::ReasonLabels;

fn recorder(pid: u32, profile: u64, pages: u64) -> Recorder {
    let mut recorder = Recorder::new("9732", pid, profile);
    recorder.hold(&[FrameName::own("main", 1)], [pages, 0, 0]);
    recorder
}

#[test]
fn a_process_runs_while_its_agent_tells_of_it() {
    let memory = Arc::new(Memory::default());
    let agent: Arc<str> = "host-1".into();
    let state = || memory.targets("9732").iter().map(|target| target.state).collect::<Vec<_>>();
    let mut process = recorder(1, 10, 5);
    let session = memory.begin(&agent);
    assert_eq!(session.merge(process.keyframe()).unwrap().sequence, 1);
    assert!(memory.is_reported("9732"));
    assert_eq!(state(), [ProcessState::Running]);
    drop(session);
    assert_eq!(state(), [ProcessState::Silent]);
    assert!(!memory.is_reported("9732"));

    // The agent reconnects after it attached again: the process is listed once as running.
    let session = memory.begin(&agent);
    session.merge(recorder(1, 20, 7).keyframe()).unwrap();
    assert_eq!(state(), [ProcessState::Ended, ProcessState::Running]);

    // An older session that ends late changes nothing.
    let late = memory.begin(&agent);
    let newest = memory.begin(&agent);
    let mut ended = recorder(1, 20, 0);
    ended.keyframe();
    newest.merge(ended.keyframe()).unwrap();
    drop(late);
    assert_eq!(state(), [ProcessState::Ended, ProcessState::Running]);
    ended.process.ended_ns = 99;
    newest.merge(ended.delta(2)).unwrap();
    assert_eq!(state(), [ProcessState::Ended, ProcessState::Ended]);
    memory.remove("9732");
    assert!(memory.targets("9732").is_empty() && memory.nodes().is_empty());
}

#[test]
fn a_gap_asks_for_a_keyframe_and_what_is_there_stays() {
    let memory = Arc::new(Memory::default());
    let session = memory.begin(&"host-1".into());
    let mut process = recorder(1, 10, 5);
    let first = process.keyframe();
    process.hold(&[FrameName::own("main", 1)], [9, 0, 0]);
    let second = process.delta(1);
    let ack = session.merge(second.clone()).unwrap();
    assert!(ack.keyframe_wanted && ack.sequence == 0 && ack.refused.contains("state 1"), "{ack:?}");
    assert!(memory.targets("9732").is_empty(), "nothing is known yet");

    let mut parts = in_parts(&first, 1);
    let last = parts.pop().unwrap();
    for part in parts {
        assert_eq!(session.merge(part), None);
    }
    assert_eq!(session.merge(last).unwrap().sequence, 1);
    assert_eq!(session.merge(second).unwrap().sequence, 2);
    process.delta(2);
    let ack = session.merge(process.delta(3)).unwrap();
    assert!(ack.keyframe_wanted && ack.sequence == 2, "{ack:?}");
    assert_eq!(memory.targets("9732")[0].data.attributed(), [36, 0, 0]);
}

#[test]
fn processes_are_bounded_and_the_oldest_is_first() {
    let memory = Arc::new(Memory::default());
    let session = memory.begin(&"host-1".into());
    for number in 0..MAX_TARGETS as u64 {
        let mut process = recorder(number as u32 + 1, 10 + number, 1);
        process.process.started_ns = 10_000 - number as i64;
        assert_eq!(session.merge(process.keyframe()).unwrap().refused, "");
    }
    let pids =
        |memory: &Memory| memory.targets("9732").iter().map(|target| target.data.process.pid).collect::<Vec<_>>();
    assert_eq!(pids(&memory)[0] as usize, MAX_TARGETS);
    let ack = session.merge(recorder(9999, 9999, 1).keyframe()).unwrap();
    assert!(!ack.refused.is_empty() && !ack.keyframe_wanted);
    let mut gone = recorder(1, 10, 1);
    gone.keyframe();
    gone.process.ended_ns = 5;
    session.merge(gone.keyframe()).unwrap();
    assert_eq!(session.merge(recorder(9999, 9999, 1).keyframe()).unwrap().refused, "");
    assert_eq!(pids(&memory).len(), MAX_TARGETS);
}

/// The first part of a state that goes on, of about 95 MiB.
fn unfinished(profile: u64) -> MemoryState {
    let counts = 102 << 15;
    let counts = MemoryCounts { kind: MemoryKind::Anon.into(), nodes: vec![0; counts], pages: vec![0; counts] };
    MemoryState {
        node: "9732".to_owned(),
        profile,
        sequence: 1,
        more: true,
        counts: vec![counts],
        ..MemoryState::default()
    }
}

#[test]
fn unfinished_states_of_one_agent_are_bounded_and_another_agent_is_merged() {
    let memory = Arc::new(Memory::default());
    let (liar, accomplice, honest) =
        (memory.begin(&"host-1".into()), memory.begin(&"host-2".into()), memory.begin(&"host-3".into()));
    let refused = |reason| memory.refused.get_or_create(&ReasonLabels { reason }).get();
    assert_eq!((0..8).filter(|profile| liar.merge(unfinished(*profile)).is_none()).count(), 2);
    assert_eq!(refused("agent_bytes"), 6);
    let ack = liar.merge(unfinished(9)).unwrap();
    assert!(!ack.keyframe_wanted && ack.refused.contains("of this agent"), "{ack:?}");
    let mut process = recorder(1, 10, 5);
    let ack = honest.merge(process.keyframe()).unwrap();
    assert_eq!((ack.sequence, ack.refused.as_str()), (1, ""));

    // A process that ended makes room.
    process.process.ended_ns = 99;
    honest.merge(process.delta(1)).unwrap();
    for profile in 0..2 {
        assert_eq!(accomplice.merge(unfinished(profile)), None);
    }
    assert_eq!(honest.merge(unfinished(11)), None);
    assert_eq!(memory.targets("9732").len(), 1);
    let ack = honest.merge(unfinished(12)).unwrap();
    assert!(ack.refused.contains("of all agents"), "{ack:?}");
    assert_eq!((refused("agent_bytes"), refused("total_bytes")), (7, 1));
    assert!(memory.targets("9732").is_empty());

    // The end of a session returns what is unfinished.
    drop(liar);
    assert_eq!(honest.merge(unfinished(12)), None);
    let kept = recorder(1, 20, 5).keyframe();
    assert_eq!(honest.merge(kept).unwrap().refused, "");
    drop((accomplice, honest));
    assert!(memory.budget.used() < 4 << 10, "{}", memory.budget.used());
    memory.remove("9732");
    assert_eq!(memory.budget.used(), 0);
}
