//! Threads, forks, and processes that come and go: nothing is doubled and nothing is left.
#![allow(unsafe_code)]

mod memory_common;

use std::path::Path;
use std::time::Duration;

use chainscope_ebpf::memory::{Kind, MemoryEvent, MemoryOptions, MemoryProbe, Scope, StackEnd};
use chainscope_testing::wait;

use memory_common::{Answer, Program, compile, counted, drain, probe};

/// Address spaces that the probe can know at once.
const LAYOUTS: usize = 16_384;

#[test]
fn eight_threads_that_fork() {
    let mut probe = probe();
    let mut crowd = Program::start(&compile("gcc", "crowd.c", "crowd", &["-O2", "-pthread"]), &[]);
    assert_eq!(crowd.reply(), "ready");
    let target = probe.watch(crowd.pid()).expect("it lives");
    crowd.order("go");
    while !crowd.try_reply(&mut probe) {}
    wait::until_true("the children to end", || {
        Answer::all(&mut probe).reading.targets.iter().all(|reading| reading.alive == (reading.target == target))
    });
    // What a child still holds of its parent's is nobody's when it ends.
    let answer = counted(&mut probe, crowd.pid(), |answer| {
        let attributed: u64 = answer.reading.targets.iter().map(|reading| reading.attributed[0]).sum();
        attributed + answer.target(target).before_attach.anon
    });
    let reading = answer.target(target);
    assert!(answer.reading.targets.len() > 60, "{} processes", answer.reading.targets.len());
    assert!(answer.reading.health.mismatches == 0, "{:?}", answer.reading.health);
    let (all, complete) = answer.stacks(target);
    assert!(complete * 1000 >= all * 999, "{:?}", reading.stacks);
    crowd.order("end");
    crowd.end();
    wait::until_true("nothing to be left", || {
        Answer::all(&mut probe).reading.targets.iter().all(|reading| !reading.alive && reading.attributed[0] == 0)
    });
}

/// The kernel stops checking a program when a signal comes: it is loaded again.
#[test]
fn signals_do_not_stop_the_start() {
    const SIGNALS: u32 = 8;
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; both threads live until the scope ends.
    let loading = unsafe {
        let handler: extern "C" fn(libc::c_int) = nothing;
        assert_ne!(libc::signal(libc::SIGUSR1, handler as libc::sighandler_t), libc::SIG_ERR);
        libc::pthread_self()
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..SIGNALS {
                std::thread::park_timeout(Duration::from_millis(100));
                // SAFETY: as above.
                assert_eq!(unsafe { libc::pthread_kill(loading, libc::SIGUSR1) }, 0);
            }
        });
        probe();
    });
}

#[test]
fn what_is_forgotten_makes_room() {
    let options = MemoryOptions { nodes: 1024, verify_stacks: true, ..MemoryOptions::default() };
    let mut probe = MemoryProbe::load(&options).expect("root");
    let mut life = Program::life();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("forgotten");
    for round in 0..40 {
        let target = probe.watch(life.pid()).expect("it lives");
        life.tell(&format!("deep 0 20 {}", 60 + round % 7));
        // Pages that stay in the page cache belong to nobody then.
        std::fs::write(&file, vec![1; 20 * 4096]).expect("room");
        memory_common::drop_from_cache(&file);
        life.tell(&format!("read {}", file.display()));
        let answer = Answer::all(&mut probe);
        let held = answer.inside(target, Kind::Anonymous, life.path(), "hold_one");
        assert!((20..=21).contains(&held), "{held} in round {round}, {:?}", answer.reading.health);
        assert_eq!(answer.reading.health.mismatches, 0);
        assert!(answer.reading.health.nodes_used < 300, "{:?}", answer.reading.health);
        life.tell("unmap 0");
        probe.unwatch(target);
        for _ in 0..3 {
            drain(&mut probe);
            let reading = probe.read(Scope::All).expect("a reading");
            assert!(reading.targets.is_empty() && reading.counts.is_empty());
        }
    }
    life.end();
}

#[test]
fn a_life_with_more_children_than_there_is_room_for_at_once() {
    const BATCH: usize = 500;
    let mut probe = MemoryProbe::load(&MemoryOptions::default()).expect("root");
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    life.tell("one 0 50");
    let mut children = 0;
    while children < LAYOUTS + 2 * BATCH {
        life.tell(&format!("children {BATCH}"));
        wait::until_true("their ends", || {
            for event in drain(&mut probe) {
                if let MemoryEvent::Exited { target: child, .. } = event {
                    probe.unwatch(child);
                    children += 1;
                }
            }
            children % BATCH == 0
        });
        // Their nodes are freed between readings.
        (0..3).for_each(|_| drop(Answer::all(&mut probe)));
    }
    life.tell("two 1 70");
    let answer = Answer::all(&mut probe);
    let held = |function| answer.inside(target, Kind::Anonymous, life.path(), function);
    assert_eq!((held("hold_one"), held("hold_two")), (50, 70), "{:?}", answer.reading.health);
    let (all, complete) = answer.stacks(target);
    assert_eq!(all, complete, "{:?}", answer.target(target).stacks);
    life.end();
}

#[test]
fn a_child_that_is_watched_for_itself_is_followed_once() {
    let mut probe = MemoryProbe::load(&MemoryOptions::default()).expect("root");
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    life.tell("one 0 50");
    // Nobody has asked for news yet.
    let child = u32::try_from(life.tell("fork 0 10")).expect("a process");
    let of_child = probe.watch(child).expect("it lives");
    let forked = drain(&mut probe);
    assert!(
        forked.iter().any(
            |event| matches!(event, MemoryEvent::Forked { target: to, pid, .. } if (*to, *pid) == (of_child, child))
        ),
        "{forked:?}"
    );
    let answer = Answer::all(&mut probe);
    let targets: Vec<_> = answer.reading.targets.iter().map(|reading| (reading.target, reading.alive)).collect();
    assert_eq!(targets, [(target, true), (of_child, true)]);
    life.tell("reap");
    life.end();
}

#[test]
fn a_full_tree_is_counted() {
    let options = MemoryOptions { nodes: 1024, verify_stacks: false, ..MemoryOptions::default() };
    let mut probe = MemoryProbe::load(&options).expect("root");
    let program = compile("gcc", "vary.c", "vary-full", &["-O2", "-pthread", "-fomit-frame-pointer"]);
    let mut vary = Program::start(&program, &["3000"]);
    assert_eq!(vary.reply(), "ready");
    let target = probe.watch(vary.pid()).expect("it lives");
    vary.order("go");
    while !vary.try_reply(&mut probe) {}
    // Pages count for the nearest caller that has a node.
    let answer = counted(&mut probe, vary.pid(), |answer| answer.explained(target));
    let health = &answer.reading.health;
    assert!(health.lost.iter().any(|(reason, count)| *reason == "tree_full" && *count > 100), "{health:?}");
    let cut = answer.target(target).stacks.iter().find(|(end, _)| *end == StackEnd::TreeFull);
    assert!(cut.is_some_and(|(_, count)| *count > 100), "{:?}", answer.target(target).stacks);
    vary.end();
    wait::until_true("nothing to be left", || Answer::all(&mut probe).anon(target) == 0);
}

#[test]
fn a_hundred_thousand_mappings() {
    let before = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("there is a limit");
    let limit: u64 = before.trim().parse().expect("a number");
    if limit < 300_000 {
        std::fs::write("/proc/sys/vm/max_map_count", "300000").expect("root");
    }
    let mut probe = probe();
    let program = compile("gcc", "mappings.c", "mappings", &["-O2", "-fomit-frame-pointer"]);
    let mut mappings = Program::start(&program, &["100000", "2000"]);
    assert_eq!(mappings.reply(), "ready");
    let target = probe.watch(mappings.pid()).expect("it lives");
    mappings.order("go");
    assert_eq!(mappings.reply(), "done");
    let answer = counted(&mut probe, mappings.pid(), |answer| answer.explained(target));
    let reading = answer.target(target);
    let (all, complete) = answer.stacks(target);
    assert!(all > 9000 && all == complete, "{:?}", reading.stacks);
    assert_eq!(answer.reading.health.mismatches, 0);
    mappings.end();
    std::fs::write("/proc/sys/vm/max_map_count", before.trim()).expect("root");
}
