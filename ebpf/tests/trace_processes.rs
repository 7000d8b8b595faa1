//! Which processes are observed, their semaphores, and what an event says of its process.
#![expect(clippy::print_stdout, unsafe_code, reason = "a constructor that runs before main, and says when it is done")]

mod trace_common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use chainscope_ebpf::trace::{AttachMode, Fetch, Reads, TraceOptions, TraceProbe};

use trace_common::{Target, Watcher, image, locations, target_program, values};

const NUMBER: (&str, &[Fetch]) = ("number", &[]);
/// All semaphores of the program, by the number that `semaphores` replies.
const ALL: [(&str, &[Fetch]); 5] = [NUMBER, ("text", &[]), ("bytes", &[]), ("payload", &[]), ("narrow", &[])];

/// Environment variable of a tracer that a test kills: the program to attach to.
const TRACER: &str = "CHAINSCOPE_TEST_TRACER";

/// Runs before `main`, so that a tracer does not run the tests.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if let Some(program) = std::env::var_os(TRACER) {
        let _watcher = Watcher::attach(Path::new(&program), None, &ALL, &TraceOptions::default());
        println!("attached");
        loop {
            std::thread::park();
        }
    }
}

/// Both of them, and the one that is chosen here: the tested kernels have links to several locations.
#[test]
fn attach_modes() {
    for (mode, name) in [(AttachMode::Multi, "target_multi"), (AttachMode::PerfEvent, "target_perf_event")] {
        let options = TraceOptions { attach_mode: Some(mode), ..TraceOptions::default() };
        let program = target_program(name);
        let mut early = Target::start(&program);
        let mut watcher = Watcher::attach(&program, Some(early.pid()), &ALL, &options);
        assert_eq!(watcher.probe.attach_mode(), mode);
        let mut other = Target::start(&program);
        assert_eq!((early.call("semaphores"), other.call("semaphores")), (11112, 0), "{mode:?}");
        assert_eq!((early.call("threads 3 10"), other.call("numbers 10")), (30, 10));
        assert_eq!(watcher.settle().len(), 30, "{mode:?}");
        drop(watcher);
        let mut every = Watcher::attach(&program, None, &ALL, &options);
        let mut late = Target::start(&program);
        assert_eq!((early.call("semaphores"), late.call("semaphores")), (11112, 11112), "{mode:?}");
        assert_eq!((early.call("numbers 4"), late.call("text 10")), (4, 1));
        assert_eq!(every.settle().len(), 5, "{mode:?}");
        drop(every);
        early.wait_for_detach();
        late.wait_for_detach();
    }
    let watcher = TraceProbe::load(&TraceOptions::default()).expect("root");
    assert_eq!((watcher.attach_mode(), watcher.reads()), (AttachMode::Multi, Reads::Sleepable));
}

#[test]
fn processes_that_start_later() {
    let program = target_program("target_two");
    let mut first = Target::start(&program);
    let mut watcher = Watcher::attach(&program, None, &[NUMBER], &TraceOptions::default());
    let mut second = Target::start(&program);
    for (is_first, count) in [(true, 3), (false, 5), (true, 2)] {
        let target = if is_first { &mut first } else { &mut second };
        assert_eq!(target.call(&format!("numbers {count}")), count);
        let events = watcher.settle();
        assert_eq!(events.len() as i64, count);
        assert!(events.iter().all(|event| event.pid == target.pid()));
    }
    assert_eq!((watcher.total().hits, watcher.total().dropped()), (10, 0));
}

#[test]
fn only_one_process() {
    let program = target_program("target_filter");
    let mut wanted = Target::start(&program);
    let mut watcher = Watcher::attach(&program, Some(wanted.pid()), &[NUMBER], &TraceOptions::default());
    let mut other = Target::start(&program);
    assert_eq!(other.call("numbers 100"), 100);
    assert_eq!(wanted.call("numbers 7"), 7);
    // All threads of it.
    assert_eq!(wanted.call("threads 4 10"), 40);
    let events = watcher.settle();
    assert_eq!(watcher.total().hits, 47);
    assert!(events.iter().all(|event| event.pid == wanted.pid()));
    // The others do not even prepare the arguments. It has two locations.
    assert_eq!(wanted.call("semaphores"), 2);
    assert_eq!(other.call("semaphores"), 0);
}

#[test]
fn a_process_that_executes_itself() {
    let program = target_program("target_exec");
    let mut target = Target::start(&program);
    let mut watcher = Watcher::attach(&program, Some(target.pid()), &[NUMBER], &TraceOptions::default());
    assert_eq!(target.call("numbers 2"), 2);
    assert_eq!(watcher.settle().len(), 2);
    target.send("exec");
    assert_eq!(target.call("ready"), 0);
    assert_eq!(target.call("semaphores"), 2);
    assert_eq!(target.call("numbers 3"), 3);
    assert_eq!(watcher.settle().len(), 3);
}

#[test]
fn no_such_process() {
    let program = target_program("target_gone");
    let pid = Target::start(&program).pid();
    let mut probe = TraceProbe::load(&TraceOptions::default()).unwrap();
    let points = locations(&image(&program), "target", "number", &[]);
    let error = probe.attach(&std::fs::File::open(&program).unwrap(), Some(pid), &points).unwrap_err();
    assert!(error.to_string().contains("No such process"), "{error}");
}

#[test]
fn semaphores_are_given_back() {
    let program = target_program("target_semaphores");
    let mut target = Target::start(&program);
    assert_eq!(target.call("semaphores"), 0);
    let mut watcher = Watcher::attach(&program, None, &[NUMBER, ("payload", &[])], &TraceOptions::default());
    // One for each location: `number` has two.
    assert_eq!(target.call("semaphores"), 1002);
    assert_eq!(Target::start(&program).call("semaphores"), 1002);
    watcher.probe.detach(watcher.attachment);
    target.wait_for_detach();
    assert_eq!(target.call("numbers 5"), 5);
    assert_eq!(watcher.settle(), []);
    let second = Watcher::attach(&program, None, &ALL, &TraceOptions::default());
    assert_eq!(target.call("semaphores"), 11112);
    drop(second);
    target.wait_for_detach();
}

#[test]
fn semaphores_are_given_back_by_a_killed_tracer() {
    let program = target_program("target_killed");
    let mut early = Target::start(&program);
    let mut tracer =
        Command::new(std::env::current_exe().unwrap()).env(TRACER, &program).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(tracer.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "attached\n");
    let mut late = Target::start(&program);
    assert_eq!((early.call("semaphores"), late.call("semaphores")), (11112, 11112));
    assert_eq!(early.call("numbers 1000"), 1000);
    // SIGKILL
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    early.wait_for_detach();
    late.wait_for_detach();
}

/// Deleted while it runs, and found through the process.
#[test]
fn a_deleted_file() {
    let program = target_program("target_deleted");
    let mut target = Target::start(&program);
    let points = locations(&image(&program), "target", "number", &[]);
    std::fs::remove_file(&program).unwrap();
    let executable = format!("/proc/{}/exe", target.pid());
    let mut watcher = Watcher::attach_to(Path::new(&executable), None, &points, &TraceOptions::default());
    assert_eq!(target.call("numbers 4"), 4);
    assert_eq!(watcher.settle().len(), 4);
}

#[test]
fn locations_with_different_arguments() {
    let program = target_program("target_locations");
    let mut watcher = Watcher::attach(&program, None, &[NUMBER], &TraceOptions::default());
    let mut target = Target::start(&program);
    assert_eq!((target.call("numbers 2"), target.call("constant")), (2, 1));
    let events = watcher.settle();
    assert_eq!(events.iter().map(values).collect::<Vec<_>>(), [[0, 0], [0, 1], [-1, -7]]);
    assert_eq!(events[0].location, events[1].location);
    assert_ne!(events[0].location, events[2].location);
    let mut hits: Vec<u64> =
        watcher.locations.iter().map(|location| watcher.probe.counts(*location).unwrap().hits).collect();
    hits.sort_unstable();
    assert_eq!(hits, [1, 2]);
}

#[test]
fn time_and_thread_of_an_event() {
    let program = target_program("target_identity");
    let mut watcher = Watcher::attach(&program, None, &[NUMBER], &TraceOptions::default());
    let mut target = Target::start(&program);
    let before = target.call("monotonic_ns").cast_unsigned();
    target.call("numbers 1");
    let after = target.call("monotonic_ns").cast_unsigned();
    let thread = target.call("gettid");
    let events = watcher.settle();
    assert!((before..=after).contains(&events[0].time_ns), "{before} {} {after}", events[0].time_ns);
    assert_eq!((events[0].pid, i64::from(events[0].tid)), (target.pid(), thread));
    assert_eq!(events[0].comm, b"target_identity");
    let status = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let last: u32 = status.trim().rsplit(['-', ',']).next().unwrap().parse().unwrap();
    assert!(events[0].cpu <= last);
}
