//! Shared test support: a watched process controlled line by line, a recorder of the probe's events, and byte patterns.
//!
//! The tests need root. Without it they fail with the probe's error.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]

pub mod recorder;
pub mod test_process;
pub mod uring;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use chainscope_ebpf::network::CaptureMode;
use chainscope_testing::free_port;
use recorder::Recorder;

/// Bytes `offset..offset + length` of stream `seed`. Each byte depends on its offset, so that a piece can be verified
/// alone.
pub fn pattern(seed: u64, offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64).map(|at| pattern_byte(seed, at)).collect()
}

pub fn pattern_byte(seed: u64, at: u64) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8).wrapping_mul(17) ^ (at >> 16).wrapping_mul(73) ^ seed.wrapping_mul(57)) as u8
}

/// Handle of a child process that executes socket commands (see [`test_process`]).
pub struct TestProcess {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl TestProcess {
    pub fn new() -> Self {
        Self::start(Command::new(std::env::current_exe().expect("the executable path")))
    }

    /// Starts another executable file, optionally with a different `argv[0]`.
    pub fn from_executable(file: &std::path::Path, argument: Option<&std::path::Path>) -> Self {
        let mut command = Command::new(file);
        if let Some(argument) = argument {
            command.arg0(argument);
        }
        Self::start(command)
    }

    /// Starts in a new network namespace with its loopback interface up.
    pub fn in_new_netns() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\""]);
        command.arg(std::env::current_exe().expect("the executable path"));
        Self::start(command)
    }

    /// Starts this executable in a cgroup, with a different `argv[0]`.
    pub fn in_cgroup(cgroup: &std::path::Path, argument: &std::path::Path) -> Self {
        let mut command = Command::new("bash");
        command.args(["-ec", "echo $$ >\"$1/cgroup.procs\"; exec -a \"$2\" \"$3\"", "bash"]).args([cgroup, argument]);
        command.arg(std::env::current_exe().expect("the executable path"));
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        // SAFETY: prctl is async-signal-safe. It kills the process if the test panics.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command
            .env(test_process::ENV_MARKER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test process starts");
        let commands = child.stdin.take().expect("piped");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        let mut process = Self { child, commands, replies };
        // Before this reply the child may still be `unshare` or a shell.
        assert_eq!(process.call("ready"), [0]);
        process
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Inode of the network namespace.
    pub fn netns(&self) -> u32 {
        let link = std::fs::read_link(format!("/proc/{}/ns/net", self.pid())).expect("its namespace");
        let text = link.to_string_lossy().into_owned();
        text.trim_start_matches("net:[").trim_end_matches(']').parse().expect("an inode")
    }

    /// Sends a command without waiting for the reply.
    pub fn send_command(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the test process runs");
        self.commands.flush().expect("the test process runs");
    }

    pub fn read_reply(&mut self) -> Vec<i64> {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the test process replies");
        line.split_whitespace().map(|word| word.parse().expect("a number")).collect()
    }

    /// Sends a command and returns the numbers of its reply.
    pub fn call(&mut self, command: &str) -> Vec<i64> {
        self.send_command(command);
        let reply = self.read_reply();
        assert!(!reply.is_empty(), "the test process exited at {command:?}");
        reply
    }

    /// Sends a command and returns its result, a count or a descriptor; panics on an errno.
    pub fn call_ok(&mut self, command: &str) -> i64 {
        let reply = self.call(command)[0];
        assert!(reply >= 0, "{command:?} returned {}", std::io::Error::from_raw_os_error(-reply as i32));
        reply
    }

    /// Closes the connection `fd`, then the peer's end. While the peer stays open, a delayed acknowledgement destroys the
    /// socket, in softirq on top of any process. See `is_other_connection` of the probe for why the event may be missing then.
    pub fn close(&mut self, fd: i64, peer: TcpStream) {
        self.call_ok(&format!("close {fd}"));
        drop(peer);
    }

    /// Closes standard input and waits for the exit.
    pub fn finish(mut self) {
        drop(self.commands);
        self.child.wait().expect("the test process exits");
    }
}

pub fn listener(address: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(address).expect("a listener");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

/// Runs each test in both capture modes.
#[macro_export]
macro_rules! both_modes {
    ($($name:ident),* $(,)?) => {
        mod sock {
            $(#[test] fn $name() { super::$name(chainscope_ebpf::network::CaptureMode::Sock) })*
        }
        mod syscall {
            $(#[test] fn $name() { super::$name(chainscope_ebpf::network::CaptureMode::Syscall) })*
        }
    };
}

/// Starts a test process that listens on a watched port.
pub fn responder(mode: CaptureMode) -> (Recorder, TestProcess, i64, SocketAddr) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let port = free_port();
    recorder.probe.watch_port(None, port).expect("map update");
    let listener = process.call_ok(&format!("listen 127.0.0.1:{port}"));
    (recorder, process, listener, SocketAddr::from(([127, 0, 0, 1], port)))
}
