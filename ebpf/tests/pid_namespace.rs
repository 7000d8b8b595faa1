//! Hosts that are containers themselves (kind, k3d, minikube): two pid namespaces on one kernel, each with a probe that uses
//! the ids of its own `/proc`.
#![expect(unsafe_code, reason = "the test process makes raw system calls")]

mod common;
mod memory_common;
mod trace_common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use chainscope_ebpf::memory::{Kind, MemoryEvent, MemoryOptions, MemoryProbe};
use chainscope_ebpf::network::{CaptureMode, ExecEvents, NetworkOptions, NetworkProbe};
use chainscope_ebpf::trace::{Fetch, TraceOptions};
use chainscope_ebpf::{Error, PidNamespace};
use chainscope_testing::wait;

use common::TestProcess;
use common::recorder::Recorder;
use common::test_process::ENV_MARKER;
use memory_common::{Snapshot, drain, wait_until_counted};

/// Environment variable that marks a host: the name of what it does.
const HOST_MARKER: &str = "CHAINSCOPE_TEST_HOST";
/// Where hosts listen, each in a network namespace of its own.
const PORT: u16 = 19_732;
/// Program that hosts execute.
const PROGRAM: &str = "node-of-a-nested-host";

/// Runs before `main`, so that a host does not run the tests.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // The processes of a host are test processes.
    if std::env::var_os(ENV_MARKER).is_some() {
        return;
    }
    match std::env::var(HOST_MARKER).as_deref() {
        Ok("sock") => network_host(CaptureMode::Sock),
        Ok("syscall") => network_host(CaptureMode::Syscall),
        Ok("memory") => memory_host(),
        Ok("trace") => trace_host(),
        Ok("below") => below(),
        Ok(other) => panic!("{HOST_MARKER}: {other}"),
        Err(_) => return,
    }
    std::process::exit(0);
}

/// A host: process 1 of a pid namespace with a `/proc` of its own, and a network namespace. It runs to its end in steps, of
/// which each ends with a line.
struct Host {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Host {
    fn start(role: &str, arguments: &[&Path]) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--net"]);
        command.args(["sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
        command.arg(std::env::current_exe().expect("a path")).args(arguments);
        Self::run(command, role)
    }

    fn run(mut command: Command, role: &str) -> Self {
        command.env(HOST_MARKER, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    /// Waits for the end of a step.
    fn wait(&mut self, step: &str) {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        assert_eq!(line.trim_end(), step);
    }

    /// Begins the next step.
    fn go(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"go\n").expect("the host runs");
    }

    fn finish(mut self) {
        assert!(self.child.wait().expect("a child").success());
    }
}

/// The end of a step of a host, until the next one begins.
fn step(name: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{name}").and_then(|()| out.flush()).expect("the test runs");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the test runs");
    assert_eq!(line, "go\n");
}

/// Runs two hosts with the same role, step by step.
fn run_hosts(role: &str, arguments: &[&Path], steps: &[&str]) {
    let mut hosts = [Host::start(role, arguments), Host::start(role, arguments)];
    for step in steps {
        hosts.iter_mut().for_each(|host| host.wait(step));
        hosts.iter_mut().for_each(Host::go);
    }
    hosts.into_iter().for_each(Host::finish);
}

both_modes!(each_host_captures_its_own_processes);

fn each_host_captures_its_own_processes(mode: CaptureMode) {
    run_hosts(&mode.to_string(), &[], &["attached", "captured", "inherited", "done"]);
}

fn network_host(mode: CaptureMode) {
    assert_eq!(std::process::id(), 1, "the first of its namespace");
    let options = NetworkOptions { mode: Some(mode), exec_events: ExecEvents::Watched, ..NetworkOptions::default() };
    let mut recorder = Recorder::with(options);
    recorder.probe.watch_port(None, PORT).expect("map update");
    recorder.probe.watch_program(PROGRAM).expect("map update");
    step("attached");

    // Found by its port, and its name: before the probe has been polled.
    let exe = std::env::current_exe().expect("a path");
    let mut node = TestProcess::from_executable(&exe, Some(&Path::new("/somewhere").join(PROGRAM)));
    let listener = node.call_ok(&format!("listen 127.0.0.1:{PORT}"));
    let mut peer = std::net::TcpStream::connect(("127.0.0.1", PORT)).expect("it listens");
    let accepted = node.call_ok(&format!("accept {listener}"));
    assert_eq!(node.call_ok(&format!("send {accepted} 7 0 5000 1 write")), 5000);
    peer.read_exact(&mut [0; 5000]).expect("5000 bytes");
    let opened = recorder.wait_opened(node.pid(), 1);
    recorder.wait_covered(opened.socket, chainscope_ebpf::network::Direction::Sent, 5000);
    recorder.sent(opened.socket).verify_whole(7, 5000);
    // A process that is watched by its id, and connects.
    let mut client = TestProcess::new();
    recorder.probe.add_process(client.pid()).expect("map update");
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let fd = client.call_ok(&format!("connect {}", other.local_addr().expect("bound")));
    assert_eq!(client.call_ok(&format!("send {fd} 9 0 3000 1 write")), 3000);
    let opened = recorder.wait_opened(client.pid(), 1);
    recorder.wait_covered(opened.socket, chainscope_ebpf::network::Direction::Sent, 3000);
    recorder.sent(opened.socket).verify_whole(9, 3000);
    assert_eq!(recorder.account(client.pid()).captured, 3000);
    step("captured");

    // Both hosts have done the same; what happens from here on is reported after all of that.
    let fd = client.call_ok(&format!("connect {}", other.local_addr().expect("bound")));
    client.call_ok(&format!("send {fd} 9 0 1 1 write"));
    recorder.wait_opened(client.pid(), 2);
    assert_eq!(recorder.listening, [(node.pid(), node.netns(), ([127, 0, 0, 1], PORT).into())]);
    assert_eq!(recorder.executed, [node.pid()]);
    let mut watched = recorder.probe.processes();
    watched.sort_unstable();
    assert_eq!(watched, [node.pid(), client.pid()]);
    let own = |pid| pid == node.pid() || pid == client.pid();
    assert!(recorder.opened.values().all(|opened| own(opened.pid)), "{:?}", recorder.opened);
    assert_eq!(recorder.probe.counters().refused_processes, 0);
    step("inherited");
    recorder.probe.release_process(node.pid()).expect("it is watched");
    node.finish();
    client.finish();
    step("done");
}

#[test]
fn each_host_profiles_its_own_processes() {
    // Not by the hosts: their process ids, which temporary files are named by, are the same.
    let workload = chainscope_testing::program::memory_workload(Path::new(env!("CARGO_TARGET_TMPDIR")));
    run_hosts("memory", &[&workload, &plugin()], &["attached", "counted", "done"]);
}

fn memory_host() {
    assert_eq!(std::process::id(), 1, "the first of its namespace");
    let options = MemoryOptions { verify_stacks: true, ..MemoryOptions::default() };
    let mut probe = MemoryProbe::load(&options).expect("root, and a kernel with BTF");
    let arguments: Vec<PathBuf> = std::env::args_os().map(PathBuf::from).collect();
    let [_, workload, plugin] = arguments.as_slice() else { panic!("{arguments:?}") };
    let mut node = memory_common::TestProcess::start(workload, &[]);
    assert_eq!(node.call("ready"), 0);
    let pid = node.pid();
    let target = probe.watch(pid).expect("it runs");
    step("attached");

    node.call("one 0 300");
    node.call("two 1 500");
    // A library that is mapped now: the kernel reports the process that maps it.
    assert_eq!(node.call(&format!("load 2 70 {}", plugin.display())), 0);
    let mut events = Vec::new();
    wait::until_true("the mapping to be reported", || {
        events.extend(drain(&mut probe));
        events.iter().any(|event| matches!(event, MemoryEvent::Mapped { pid: of, .. } if *of == pid))
    });
    let child = u32::try_from(node.call("fork 0 10")).expect("a process");
    assert_eq!(node.call("reap"), 0);
    wait::until_true("the child to exit", || {
        events.extend(drain(&mut probe));
        events.iter().any(|event| matches!(event, MemoryEvent::Exited { pid: of, .. } if *of == child))
    });
    assert!(
        events.iter().any(
            |event| matches!(event, MemoryEvent::Forked { pid: of, parent, .. } if (*of, *parent) == (child, target))
        ),
        "{events:?}"
    );
    let snapshot = wait_until_counted(&mut probe, pid, |snapshot| snapshot.accounted_anon(target));
    let held = |function| snapshot.pages_in_function(target, Kind::Anonymous, node.path(), function);
    assert_eq!((held("hold_one"), held("hold_two")), (300, 500), "{:?}", snapshot.reading.health);
    assert_eq!(snapshot.pages_in_function(target, Kind::Anonymous, plugin, "hold_plugin"), 70);
    let own = |of| of == pid || of == child;
    assert!(snapshot.reading.targets.iter().all(|reading| own(reading.pid)), "{:?}", snapshot.reading.targets);
    assert_eq!((snapshot.reading.health.mismatches, snapshot.target(target).pid), (0, pid));
    step("counted");

    node.send_command("exec");
    wait::until_true("the execution", || {
        drain(&mut probe).iter().any(|event| matches!(event, MemoryEvent::Executed { pid: of, .. } if *of == pid))
    });
    assert_eq!(node.call("ready"), 0);
    node.finish();
    wait::until_true("the exit", || Snapshot::take(&mut probe).reading.targets.iter().all(|reading| !reading.alive));
    step("done");
}

#[test]
fn each_host_traces_its_own_processes() {
    let program = trace_common::target_program("target_of_hosts");
    run_hosts("trace", &[&program], &["attached", "fired", "done"]);
}

fn trace_host() {
    const NUMBER: (&str, &[Fetch]) = ("number", &[]);
    assert_eq!(std::process::id(), 1, "the first of its namespace");
    let arguments: Vec<PathBuf> = std::env::args_os().map(PathBuf::from).collect();
    let [_, program] = arguments.as_slice() else { panic!("{arguments:?}") };
    let mut node = trace_common::Target::start(program);
    let pid = node.pid();
    let attach = |pid| trace_common::Watcher::attach(program, pid, &[NUMBER], &TraceOptions::default());
    let (mut own, mut every) = (attach(Some(pid)), attach(None));
    step("attached");

    assert_eq!((node.call("numbers 3"), node.call("threads 2 5")), (3, 10));
    step("fired");
    let events = own.settle();
    assert_eq!(events.len(), 13);
    assert!(events.iter().all(|event| event.pid == pid), "{events:?}");
    let (main, threads): (Vec<u32>, Vec<u32>) = events.iter().map(|event| event.tid).partition(|tid| *tid == pid);
    assert_eq!((main.len(), threads.len()), (3, 10));
    // Those that follow the program's own in its namespace.
    assert!(threads.iter().all(|tid| (pid + 1..pid + 100).contains(tid)), "{threads:?}");
    // A process outside of the namespace has no id in it.
    let (ours, others): (Vec<_>, Vec<_>) = every.settle().into_iter().partition(|event| event.pid == pid);
    assert_eq!((ours.len(), others.len()), (13, 13));
    assert!(others.iter().all(|event| (event.pid, event.tid) == (0, 0)), "{others:?}");
    step("done");
}

/// A library with the function `hold_plugin`, which no other test uses.
fn plugin() -> PathBuf {
    let name = format!("plugin-of-host-{:?}.so", std::thread::current().id());
    memory_common::compile("gcc", "plugin.c", &name, &["-O2", "-shared", "-fPIC", "-fomit-frame-pointer"])
}

/// The agent without the host's pid namespace and with the host's `/proc` mounted: that decides.
#[test]
fn the_given_proc_decides() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("proc-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let port = chainscope_testing::free_port();
    let (mut node, mut workload) = (TestProcess::new(), memory_common::TestProcess::memory_workload());
    let mut command = Command::new("unshare");
    let script = "mount --bind /proc \"$1\" && exec unshare --pid --fork --kill-child --mount-proc \"$0\" \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(std::env::current_exe().expect("a path")).arg(&dir);
    command.args([port.to_string(), workload.pid().to_string(), workload.path().display().to_string()]);
    let mut host = Host::run(command, "below");
    host.wait("attached");
    node.call_ok(&format!("listen 127.0.0.1:{port}"));
    workload.call("one 0 300");
    let plugin = plugin();
    assert_eq!(workload.call(&format!("load 2 70 {}", plugin.display())), 0);
    host.go();
    host.wait(&format!("listening {}, {} is mapped", node.pid(), workload.pid()));
    host.go();
    host.finish();
    node.finish();
    workload.finish();
    std::fs::remove_dir(dir).expect("the mount was private");
}

fn below() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, proc, port, pid, program] = arguments.as_slice() else { panic!("{arguments:?}") };
    let (pid, proc) = (pid.parse().expect("a number"), PathBuf::from(proc));
    let own = PidNamespace::of_proc(Path::new("/proc")).expect("mounted");
    let given = PidNamespace::of_proc(&proc).expect("mounted");
    assert!(own.is_own() && !own.is_initial() && !given.is_own() && own != given, "{own}, {given}");
    let mut recorder = Recorder::with(NetworkOptions { proc: proc.clone(), ..NetworkOptions::default() });
    recorder.probe.watch_port(None, port.parse().expect("a number")).expect("map update");
    let mut probe = MemoryProbe::load(&MemoryOptions { proc, ..MemoryOptions::default() }).expect("root");
    let target = probe.watch(pid).expect("it runs");
    step("attached");
    recorder.poll_until("the port", |recorder| !recorder.listening.is_empty());
    let mut mapped = 0;
    wait::until_true("the mapping to be reported", || {
        let of = drain(&mut probe).into_iter().filter_map(|event| match event {
            MemoryEvent::Mapped { pid, .. } => Some(pid),
            _ => None,
        });
        mapped = of.fold(mapped, |_, pid| pid);
        mapped != 0
    });
    let snapshot = Snapshot::take(&mut probe);
    assert_eq!(snapshot.pages_in_function(target, Kind::Anonymous, Path::new(program), "hold_one"), 300);
    assert!(snapshot.target(target).control.anon >= 300, "{:?}", snapshot.target(target));
    step(&format!("listening {}, {mapped} is mapped", recorder.listening[0].0));
}

#[test]
fn a_proc_that_does_not_show_this_process_is_refused() {
    let mut host = Host::start("sock", &[]);
    host.wait("attached");
    let of_host = format!("/proc/{}/root/proc", child_of(host.child.id()));
    let refused = PidNamespace::of_proc(Path::new(&of_host)).expect_err("this process is not in it");
    assert!(matches!(refused, Error::PidNamespace { .. }), "{refused}");
    assert!(refused.to_string().contains("a pid namespace that this process is not in"), "{refused}");
    let options = NetworkOptions { proc: of_host.into(), ..NetworkOptions::default() };
    assert!(NetworkProbe::load(&options).is_err());
    host.child.kill().expect("it runs");
    host.child.wait().expect("a child");
}

/// The only child of a process.
fn child_of(pid: u32) -> u32 {
    let processes = std::fs::read_dir("/proc").expect("mounted").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |of: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(1)) == Some(pid.to_string().as_str())
    };
    pids.find(is_child).expect("one child")
}
