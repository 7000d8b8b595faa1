//! Programs watched by name from exec, and processes watched again after their release.
#![expect(unsafe_code, reason = "the test process makes raw system calls")]

mod common;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use chainscope_ebpf::network::{CaptureMode, ExecEvents, MissingReason, NetworkOptions, Role, SocketId};

use common::recorder::Recorder;
use common::{TestProcess, listener};

both_modes!(
    program_is_watched_from_exec,
    released_process_can_be_watched_again,
    processes_of_one_cgroup_leave_room_for_others,
    each_cgroup_has_room_of_its_own,
    one_process_does_not_fill_the_table_of_sockets,
);

/// Name of the executable: longer than `TASK_COMM_LEN`, and different for each test that runs at the same time.
fn file_name(mode: CaptureMode) -> String {
    format!("{mode}-octez-node-of-the-test")
}

fn as_file(mode: CaptureMode) -> (TestProcess, std::path::PathBuf) {
    let dir = std::env::temp_dir().join(format!("chainscope-{}-{mode}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let file = dir.join(file_name(mode));
    // The kernel derives the task name from the executed path. A symlink avoids ETXTBSY, which a copy would cause while
    // a child forked by another test holds it open for writing.
    std::os::unix::fs::symlink(std::env::current_exe().expect("the executable path"), &file).expect("a link");
    (TestProcess::from_executable(&file, None), dir)
}

fn as_argument(name: &str) -> TestProcess {
    TestProcess::from_executable(
        &std::env::current_exe().expect("the executable path"),
        Some(&Path::new("/somewhere").join(name)),
    )
}

fn program_is_watched_from_exec(mode: CaptureMode) {
    let options = NetworkOptions { mode: Some(mode), exec_events: ExecEvents::Watched, ..NetworkOptions::default() };
    let mut recorder = Recorder::with(options);
    recorder.probe.watch_program(&file_name(mode)).expect("map update");
    let argument = format!("{mode}-by-argument");
    recorder.probe.watch_program(&argument).expect("map update");
    let (by_file, dir) = as_file(mode);
    let mut processes = [by_file, as_argument(&argument), TestProcess::new()];
    let mut peers = Vec::new();
    for process in &mut processes {
        // All traffic precedes the first poll of the probe.
        let (at, address) = listener("127.0.0.1:0");
        let fd = process.call_ok(&format!("connect {address}"));
        assert_eq!(process.call_ok(&format!("send {fd} 7 0 1000 1 write")), 1000);
        peers.push(at.accept().expect("a connection"));
    }
    let [by_file, by_argument, other] = processes;
    recorder.poll_until("both", |r| r.opened.len() == 2);
    assert_eq!(recorder.executed, [by_file.pid(), by_argument.pid()]);
    let sockets: BTreeMap<SocketId, u32> = recorder.opened.values().map(|opened| (opened.socket, opened.pid)).collect();
    for socket in sockets.keys() {
        assert_eq!((recorder.opened[socket].sent_offset, recorder.opened[socket].received_offset), (0, 0));
        recorder.poll_until("its bytes", |r| r.sent(*socket).captured() == 1000);
        recorder.sent(*socket).verify_whole(7, 1000);
    }
    assert!(
        sockets.values().all(|pid| [by_file.pid(), by_argument.pid()].contains(pid)),
        "no sockets of the third process"
    );
    recorder.probe.unwatch_program(&argument).expect("it was watched");
    let late = as_argument(&argument);
    assert_eq!(recorder.probe.account(late.pid()), None);
    for process in [by_file, by_argument, other, late] {
        process.finish();
    }
    std::fs::remove_dir_all(dir).expect("it is there");
}

fn released_process_can_be_watched_again(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    recorder.probe.add_process(process.pid()).expect("map update");
    let (at, address) = listener("127.0.0.1:0");
    let fd = process.call_ok(&format!("connect {address}"));
    let _peer = at.accept().expect("a connection");
    process.call_ok(&format!("send {fd} 7 0 1000 1 write"));
    recorder.wait_opened(process.pid(), 1);
    recorder.probe.release_process(process.pid()).expect("it is watched");
    process.call_ok(&format!("send {fd} 7 1000 500 1 write"));
    recorder.probe.add_process(process.pid()).expect("map update");
    process.call_ok(&format!("send {fd} 7 1500 2000 1 write"));
    let opened = recorder.wait_opened(process.pid(), 2);
    assert_eq!((opened.sent_offset, opened.role), (1500, Some(Role::Initiator)));
    recorder.poll_until("its bytes", |r| r.sent(opened.socket).captured() == 2000);
    recorder.sent(opened.socket).verify(7);
    let account = recorder.account(process.pid());
    assert_eq!((account.seen, account.captured), (2000, 2000));
    process.finish();
}

/// Processes that are watched for their name, which anybody can use, are limited until user space has decided.
fn processes_of_one_cgroup_leave_room_for_others(mode: CaptureMode) {
    const OF_CGROUP: usize = 32;
    const MORE: usize = 8;
    let options = NetworkOptions { mode: Some(mode), exec_events: ExecEvents::Watched, ..NetworkOptions::default() };
    let mut recorder = Recorder::with(options);
    // Other tests, which run at the same time, know others.
    let name = format!("of-cgroup-{mode}");
    recorder.probe.watch_program(&name).expect("an entry in the map");
    let mut processes: Vec<TestProcess> = (0..OF_CGROUP + MORE).map(|_| as_argument(&name)).collect();
    assert_eq!(recorder.probe.processes().len(), OF_CGROUP);
    assert_eq!(recorder.probe.counters().refused_processes, MORE as u64);
    // One that is configured is added nevertheless, and its traffic captured.
    let configured = processes.last_mut().expect("a process");
    let pid = configured.pid();
    assert_eq!(recorder.probe.account(pid), None);
    recorder.probe.add_process(pid).expect("an entry in the map");
    let (at, address) = listener("127.0.0.1:0");
    let fd = configured.call_ok(&format!("connect {address}"));
    let _peer = at.accept().expect("a connection");
    assert_eq!(configured.call_ok(&format!("send {fd} 7 0 1000 1 write")), 1000);
    let opened = recorder.wait_opened(pid, 1);
    recorder.poll_until("its bytes", |r| r.sent(opened.socket).captured() == 1000);
    // Decisions about two of them make place for two others.
    recorder.probe.add_process(processes[0].pid()).expect("it is watched");
    recorder.probe.release_process(processes[1].pid()).expect("it is watched");
    processes.extend([as_argument(&name), as_argument(&name), as_argument(&name)]);
    assert_eq!(recorder.probe.processes().len(), 1 + OF_CGROUP + 1);
    assert_eq!(recorder.probe.counters().refused_processes, MORE as u64 + 1);
    processes.into_iter().for_each(TestProcess::finish);
}

fn each_cgroup_has_room_of_its_own(mode: CaptureMode) {
    const OF_CGROUP: usize = 32;
    let options = NetworkOptions { mode: Some(mode), exec_events: ExecEvents::Watched, ..NetworkOptions::default() };
    let mut recorder = Recorder::with(options);
    let name = format!("other-cgroup-{mode}");
    recorder.probe.watch_program(&name).expect("an entry in the map");
    let mut processes: Vec<TestProcess> = (0..OF_CGROUP + 1).map(|_| as_argument(&name)).collect();
    assert_eq!(recorder.probe.counters().refused_processes, 1);
    let other = Cgroup::new(&name);
    processes.push(TestProcess::in_cgroup(&other.0, &Path::new("/somewhere").join(&name)));
    let last = processes.last().expect("a process").pid();
    assert_eq!(recorder.probe.counters().refused_processes, 1);
    assert!(recorder.probe.processes().contains(&last), "the process of another cgroup is watched");
    processes.into_iter().for_each(TestProcess::finish);
}

/// A cgroup as containers have it: below the memory controller with version 1, anywhere with version 2. Removed on drop, when it
/// has no process.
struct Cgroup(std::path::PathBuf);

impl Cgroup {
    fn new(name: &str) -> Self {
        let own = std::fs::read_to_string("/proc/self/cgroup").expect("/proc/self/cgroup");
        let of_memory = own.lines().find_map(|line| line.split_once(":memory:")).map(|(_, path)| path);
        let parent = match of_memory {
            Some(path) => format!("/sys/fs/cgroup/memory{path}"),
            None => "/sys/fs/cgroup".to_owned(),
        };
        let group = Path::new(&parent).join(format!("chainscope-{}-{name}", std::process::id()));
        std::fs::create_dir(&group).unwrap_or_else(|error| panic!("{}: {error}", group.display()));
        Self(group)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn one_process_does_not_fill_the_table_of_sockets(mode: CaptureMode) {
    const OF_PROCESS: u64 = 16_384;
    const MORE: u64 = 16;
    let mut recorder = Recorder::new(mode);
    let (mut greedy, mut modest) = (TestProcess::new(), TestProcess::new());
    for process in [&greedy, &modest] {
        recorder.probe.add_process(process.pid()).expect("an entry in the map");
    }
    let (at, address) = listener("127.0.0.1:0");
    let peers = std::thread::spawn(move || {
        // The other end stays open, without a descriptor of this process for each.
        for peer in at.incoming().take((OF_PROCESS + MORE) as usize) {
            peer.expect("a connection").read_exact(&mut [0]).expect("a byte");
        }
        at
    });
    assert_eq!(greedy.call_ok(&format!("connect_and_send {address} {}", OF_PROCESS + MORE)), 0);
    let at = peers.join().expect("all connections");
    let account = recorder.account(greedy.pid());
    assert_eq!((account.seen, account.captured), (OF_PROCESS + MORE, OF_PROCESS), "a byte each");
    assert_eq!(account.dropped_for(MissingReason::SocketTableFull), MORE);
    let fd = modest.call_ok(&format!("connect {address}"));
    assert_eq!(modest.call_ok(&format!("send {fd} 7 0 1000 1 write")), 1000);
    assert_eq!(recorder.account(modest.pid()).captured, 1000);
    // What is closed or released is no longer counted.
    recorder.probe.release_process(greedy.pid()).expect("it is watched");
    recorder.probe.add_process(greedy.pid()).expect("an entry in the map");
    let fd = greedy.call_ok(&format!("connect {address}"));
    assert_eq!(greedy.call_ok(&format!("send {fd} 7 0 1000 1 write")), 1000);
    assert_eq!(recorder.account(greedy.pid()).captured, 1000);
    drop(at);
    greedy.finish();
    modest.finish();
}
