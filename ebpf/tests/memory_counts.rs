//! Every page is counted once, under the function that asked for it: against the kernel's own count while the program
//! waits.

mod memory_common;

use std::path::PathBuf;

use chainscope_ebpf::memory::{Frame, Kind, MappingKind, MemoryProbe, StackEnd, TargetId};
use chainscope_testing::wait;

use memory_common::{Answer, Program, compile, counted, probe, rollup};

/// What the kernel counts for an anonymous page is attributed or was there before; to the page.
#[track_caller]
fn assert_exact(probe: &mut MemoryProbe, target: TargetId, life: &Program) -> Answer {
    let answer = counted(probe, life.pid(), |answer| {
        let is_explained = answer.target(target).unattributed() == 0;
        if is_explained { answer.explained(target) } else { 0 }
    });
    let reading = answer.target(target);
    assert_eq!(answer.reading.health.mismatches, 0, "{:?}", answer.reading.health);
    let (all, complete) = answer.stacks(target);
    assert_eq!(all, complete, "{:?}", reading.stacks);
    answer
}

#[track_caller]
fn assert_gone(probe: &mut MemoryProbe, target: TargetId) {
    wait::until_true("nothing to be left", || {
        let answer = Answer::all(probe);
        let reading = answer.target(target);
        // Of the kernel's own pages some stay: its caches of names and files outlive who filled them.
        !reading.alive && reading.attributed[0] == 0 && reading.attributed[2] < 64
    });
}

/// A function also touches the page of its own variables.
#[track_caller]
fn assert_near(held: u64, expected: u64) {
    assert!((expected..=expected + 1).contains(&held), "{held} pages instead of {expected}");
}

#[test]
fn functions_hold_what_they_asked_for() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    life.tell("one 0 1000");
    life.tell("two 1 300");
    life.tell("heap 100 200000");
    let answer = assert_exact(&mut probe, target, &life);
    let anon = |answer: &Answer, function: &str| answer.inside(target, Kind::Anonymous, life.path(), function);
    assert_near(anon(&answer, "hold_one"), 1000);
    assert_near(anon(&answer, "hold_two"), 300);
    // 112 bytes each with malloc's own.
    assert!((5468..=5470).contains(&anon(&answer, "hold_heap")), "{}", anon(&answer, "hold_heap"));
    life.tell("drop 0 100 500");
    life.tell("unmap 1");
    let answer = assert_exact(&mut probe, target, &life);
    let anon = |answer: &Answer, function: &str| answer.inside(target, Kind::Anonymous, life.path(), function);
    assert_near(anon(&answer, "hold_one"), 500);
    assert_near(anon(&answer, "hold_two"), 0);
    life.end();
    assert_gone(&mut probe, target);
}

#[test]
fn what_was_there_before_shrinks() {
    let mut probe = probe();
    let mut life = Program::life();
    life.tell("one 0 2000");
    life.tell("huge 1 1024");
    let target = probe.watch(life.pid()).expect("it lives");
    let before = assert_exact(&mut probe, target, &life).target(target).before_attach.anon;
    assert!(before > 3000, "{before}");
    life.tell("two 2 500");
    let answer = assert_exact(&mut probe, target, &life);
    assert_eq!(answer.target(target).before_attach.anon, before);
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_two"), 500);
    let at_attach: u64 = answer.target(target).at_attach.iter().map(|share| share.anon).sum();
    assert_eq!(at_attach, before);
    assert_eq!(in_mapping(&answer, target, &MappingKind::Anonymous), {
        let shares = &answer.target(target).at_attach;
        shares.iter().find(|share| share.mapping == MappingKind::Anonymous).map_or(0, |share| share.anon)
    });
    life.tell("drop 0 0 1500");
    let answer = assert_exact(&mut probe, target, &life);
    assert_eq!(answer.target(target).before_attach.anon, before - 1500);
    life.tell("unmap 1");
    let answer = assert_exact(&mut probe, target, &life);
    assert_eq!(answer.target(target).before_attach.anon, before - 1500 - 1024);
    life.end();
    assert_gone(&mut probe, target);
}

/// What is left in mappings of a kind of what was there before.
#[track_caller]
fn in_mapping(answer: &Answer, target: TargetId, mapping: &MappingKind) -> u64 {
    let exact = answer.target(target).before_exact.as_ref().expect("page by page");
    exact.iter().find(|(kind, _)| kind == mapping).map_or(0, |(_, pages)| *pages)
}

/// Each page: as soon as it is freed, in a huge page, moved, collapsed, shared after a fork.
#[test]
fn what_was_there_before_is_known_page_by_page() {
    let mut probe = probe();
    let mut life = Program::life();
    life.tell("heap 100 200000");
    life.tell("one 0 10000");
    life.tell("huge 1 4096");
    life.tell("drop 1 100 256");
    life.tell("one 3 5000");
    let target = probe.watch(life.pid()).expect("it lives");
    let answer = assert_exact(&mut probe, target, &life);
    let (heap, anon) =
        (in_mapping(&answer, target, &MappingKind::Heap), in_mapping(&answer, target, &MappingKind::Anonymous));
    assert!((5468..=5600).contains(&heap), "{heap}");
    assert!((18_840..=19_200).contains(&anon), "{anon}");

    // Other code gets pages meanwhile: the kernel's sum alone would not tell.
    life.tell("two 2 3000");
    life.tell("drop 0 0 3000");
    let answer = assert_exact(&mut probe, target, &life);
    assert_eq!(in_mapping(&answer, target, &MappingKind::Anonymous), anon - 3000);
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_two"), 3000);
    life.tell("drop 1 1024 300");
    let answer = assert_exact(&mut probe, target, &life);
    assert_eq!(in_mapping(&answer, target, &MappingKind::Anonymous), anon - 3300);
    assert_eq!(life.tell("collapse 3"), 0);
    std::fs::write("/proc/sys/vm/compact_memory", "1").expect("root");
    let answer = assert_exact(&mut probe, target, &life);
    assert_eq!(in_mapping(&answer, target, &MappingKind::Anonymous), anon - 3300);
    life.tell("unmap 1");
    life.tell("unmap 0");
    life.tell("unmap 3");
    let answer = assert_exact(&mut probe, target, &life);
    assert!(in_mapping(&answer, target, &MappingKind::Anonymous) < 200);
    assert_eq!(in_mapping(&answer, target, &MappingKind::Heap), heap);
    life.end();
    assert_gone(&mut probe, target);
}

/// Of pages that two processes share when they are watched nobody can say whose they are: the kernel's sum has to do.
#[test]
fn what_was_shared_before_is_known_as_a_sum() {
    let mut probe = probe();
    let mut life = Program::life();
    life.tell("one 0 5000");
    let child = u32::try_from(life.tell("fork 0 1000")).expect("a process");
    let target = probe.watch(life.pid()).expect("it lives");
    let copy = probe.watch(child).expect("it lives");
    let answer = Answer::all(&mut probe);
    assert!(answer.target(target).before_exact.is_some());
    let reading = answer.target(copy);
    assert_eq!((reading.before_exact.as_ref(), reading.before_attach.anon), (None, rollup(child, "Anonymous")));
    assert_eq!(life.tell("reap"), 0);
    assert_exact(&mut probe, target, &life);
    life.end();
}

#[test]
fn huge_pages_in_whole_and_in_part() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    life.tell("huge 0 4096");
    let answer = assert_exact(&mut probe, target, &life);
    assert!(rollup(life.pid(), "AnonHugePages") >= 4096, "the kernel gives huge pages");
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_huge"), 4096);
    // The kernel keeps what is given back of a huge page, and charges nobody for it.
    life.tell("drop 0 100 256");
    let answer = assert_exact(&mut probe, target, &life);
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_huge"), 4096 - 256);
    life.tell("drop 0 512 512");
    life.tell("drop 0 1024 300");
    assert_exact(&mut probe, target, &life);
    life.tell("unmap 0");
    let answer = assert_exact(&mut probe, target, &life);
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_huge"), 0);
    life.end();
    assert_gone(&mut probe, target);
}

#[test]
fn small_pages_that_become_huge_ones_keep_their_stack() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    life.tell("one 0 10000");
    assert_eq!(life.tell("collapse 0"), 0);
    assert!(rollup(life.pid(), "AnonHugePages") >= 9000, "it collapsed");
    let answer = assert_exact(&mut probe, target, &life);
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_one"), 10_000);
    assert!(answer.reading.health.moved >= 9000, "{:?}", answer.reading.health);
    life.tell("unmap 0");
    assert_exact(&mut probe, target, &life);
    life.end();
}

/// The kernel collapses again what a huge page was taken apart to; the hole is filled by nobody's code.
#[test]
fn parts_of_huge_pages_that_become_huge_again_keep_their_stack() {
    let mut probe = probe();
    let mut life = Program::life();
    life.tell("huge 0 4096");
    life.tell("drop 0 100 256");
    let target = probe.watch(life.pid()).expect("it lives");
    let anon = in_mapping(&assert_exact(&mut probe, target, &life), target, &MappingKind::Anonymous);
    life.tell("huge 1 4096");
    life.tell("drop 1 100 256");
    for area in ["collapse 0", "collapse 1"] {
        assert_eq!(life.tell(area), 0);
    }
    assert!(rollup(life.pid(), "AnonHugePages") >= 8192, "they collapsed");
    let answer = assert_exact(&mut probe, target, &life);
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_huge"), 4096 - 256);
    assert_eq!(in_mapping(&answer, target, &MappingKind::Anonymous), anon);
    life.tell("unmap 0");
    life.tell("unmap 1");
    let answer = assert_exact(&mut probe, target, &life);
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_huge"), 0);
    life.end();
    assert_gone(&mut probe, target);
}

#[test]
fn compacted_pages_keep_their_stack() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    // Islands of one page all over the memory: there is something to compact.
    life.tell("one 0 100000");
    life.tell("thin 0");
    let mut moved = 0;
    // Compaction needs free pages to move others to; after a build the page cache holds nearly all of them.
    std::fs::write("/proc/sys/vm/drop_caches", "1").expect("root");
    wait::until_true("pages to move", || {
        std::fs::write("/proc/sys/vm/compact_memory", "1").expect("root");
        moved = Answer::all(&mut probe).reading.health.moved;
        moved > 1000
    });
    let answer = assert_exact(&mut probe, target, &life);
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_one"), 50_000);
    life.end();
    assert_gone(&mut probe, target);
}

#[test]
fn a_copy_made_by_fork_doubles_nothing() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    life.tell("one 0 5000");
    life.tell("huge 1 2048");
    let child = u32::try_from(life.tell("fork 0 3000")).expect("a process");
    life.tell("touch 0 2000 2500");
    life.tell("touch 1 0 700");
    let answer = Answer::all(&mut probe);
    let targets = &answer.reading.targets;
    assert_eq!(targets.iter().map(|reading| reading.pid).collect::<Vec<_>>(), [life.pid(), child]);
    assert_eq!((targets[1].parent, targets[1].shares_pages), (Some(target), true));
    let mut last = String::new();
    let is_counted = wait::until_or(|| {
        let answer = Answer::all(&mut probe);
        let sum: u64 = answer.reading.targets.iter().map(|reading| answer.explained(reading.target)).sum();
        // Each process's share of shared pages is rounded down.
        let control = rollup(life.pid(), "Pss_Anon") + rollup(child, "Pss_Anon");
        last = format!("{sum} instead of {control}: {:?}", answer.reading.targets);
        sum.abs_diff(control) <= 2
    });
    assert!(is_counted, "{last}");
    assert_eq!(life.tell("reap"), 0);
    assert_gone(&mut probe, targets[1].target);
    assert_exact(&mut probe, target, &life);
    life.end();
    assert_gone(&mut probe, target);
}

#[test]
fn another_program_in_the_same_process() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    life.tell("one 0 1000");
    life.order("exec");
    wait::until_true("the new program's tables", || {
        memory_common::drain(&mut probe)
            .iter()
            .any(|event| matches!(event, chainscope_ebpf::memory::MemoryEvent::Executed { .. }))
    });
    assert_eq!(life.tell("one 0 700"), 0);
    let answer = counted(&mut probe, life.pid(), |answer| answer.anon(target));
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_one"), 700);
    life.end();
    assert_gone(&mut probe, target);
}

#[test]
fn files_that_are_read_and_shared_memory() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    let file: PathBuf = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cold-{}", std::process::id()));
    std::fs::write(&file, vec![7; 1000 * 4096]).expect("room");
    // Another test compacts all memory and drops the page cache; the owner of a moved page of an unmapped file is lost.
    let (held, in_cache) = wait::until("a time in which the kernel moves no page", || {
        let moved = memory_common::moved_by_kernel();
        memory_common::drop_from_cache(&file);
        assert_eq!(life.tell(&format!("read {}", file.display())), 1000 * 4096);
        let answer = assert_exact(&mut probe, target, &life);
        let held = answer.inside(target, Kind::Cache, life.path(), "read_file");
        let in_cache = memory_common::in_cache(&file);
        (moved == memory_common::moved_by_kernel() && in_cache >= 1000).then_some((held, in_cache))
    });
    assert_eq!(held, in_cache);
    assert!(in_cache >= 1000, "{in_cache}");
    std::fs::remove_file(&file).expect("it is there");
    life.tell("share 1 400");
    let answer = assert_exact(&mut probe, target, &life);
    assert_eq!(answer.inside(target, Kind::Cache, life.path(), "read_file"), 0, "they went with the file");
    assert_near(answer.inside(target, Kind::Cache, life.path(), "share"), 400);
    life.end();
    assert_gone(&mut probe, target);
}

/// Page tables are memory of the kernel, of which it keeps a count for each process too.
#[test]
fn page_tables_are_of_who_filled_them() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    let before = memory_common::page_tables(life.pid());
    life.tell("sparse 0 1000");
    let answer = assert_exact(&mut probe, target, &life);
    let tables = memory_common::page_tables(life.pid()) - before;
    assert!(tables >= 1000, "{tables}");
    let program = life.path().to_owned();
    let held = |answer: &Answer, kind: Kind| answer.inside(target, kind, &program, "hold_sparse");
    assert_near(held(&answer, Kind::Anonymous), 1000);
    assert_eq!(held(&answer, Kind::Kernel), tables);
    life.tell("unmap 0");
    wait::until_true("the page tables to be given back", || held(&Answer::all(&mut probe), Kind::Kernel) == 0);
    life.end();
    assert_gone(&mut probe, target);
}

#[test]
fn a_deep_recursion_is_cut_and_says_so() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    life.tell("deep 0 200 200");
    let answer = assert_exact(&mut probe, target, &life);
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_one"), 200);
    life.tell("deep 1 150 5000");
    let answer = counted(&mut probe, life.pid(), |answer| answer.explained(target));
    let deepest = answer.reading.counts.iter().map(|count| answer.stack(count.node)).max_by_key(Vec::len);
    let deepest = deepest.expect("a stack");
    assert!(deepest.len() > 255, "{}", deepest.len());
    assert_eq!(deepest.last(), Some(&Frame::Incomplete(StackEnd::Truncated)));
    assert_near(answer.inside(target, Kind::Anonymous, life.path(), "hold_one"), 350);
    life.end();
    assert_gone(&mut probe, target);
}

#[test]
fn libraries_that_come_and_go() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    let flags = ["-O2", "-fomit-frame-pointer", "-shared", "-fPIC"];
    for (name, pad) in [("plugin.so", "-UPAD"), ("plugin-of-other-code.so", "-DPAD")] {
        let library = compile("gcc", "plugin.c", name, &[&flags[..], &[pad]].concat());
        // Twice: the first stack may come before the tables.
        assert_eq!(life.tell(&format!("load 0 10 {}", library.display())), 0);
        memory_common::drain(&mut probe);
        assert_eq!(life.tell(&format!("load 1 500 {}", library.display())), 0);
        let answer = Answer::all(&mut probe);
        assert!(answer.inside(target, Kind::Anonymous, &library, "hold_plugin") >= 500, "{:?}", answer.target(target));
        assert_eq!(answer.reading.health.mismatches, 0);
        life.tell("unmap 0");
        life.tell("unmap 1");
        assert_eq!(life.tell("unload") | life.tell("unload"), 0);
    }
    let answer = Answer::all(&mut probe);
    let (all, complete) = answer.stacks(target);
    assert!(all - complete <= 40, "{:?}", answer.target(target).stacks);
    life.end();
}
