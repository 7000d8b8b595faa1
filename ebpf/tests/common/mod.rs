//! What the tests share: a watched process on strings, a recorder of what the probe says about it, and patterns.
//!
//! The tests need root: a missing privilege makes them fail, by the probe's own error.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod recorder;
pub mod test_process;
pub mod uring;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use chainscope_ebpf::network::CaptureMode;
use chainscope_testing::free_port;
use recorder::Recorder;

/// The bytes from `offset` on of stream `seed`: whoever sees a piece can tell whether it is the right one.
pub fn pattern(seed: u64, offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64).map(|at| pattern_byte(seed, at)).collect()
}

pub fn pattern_byte(seed: u64, at: u64) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8).wrapping_mul(17) ^ (at >> 16).wrapping_mul(73) ^ seed.wrapping_mul(57)) as u8
}

/// The handle of a process process.
pub struct TestProcess {
    child: Child,
    orders: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl TestProcess {
    pub fn new() -> Self {
        Self::start(Command::new(std::env::current_exe().expect("own path")))
    }

    /// Of another executable file, perhaps under another name.
    pub fn of(file: &std::path::Path, argument: Option<&std::path::Path>) -> Self {
        let mut command = Command::new(file);
        if let Some(argument) = argument {
            command.arg0(argument);
        }
        Self::start(command)
    }

    /// In a network namespace of its own, whose loopback is up.
    pub fn in_new_netns() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\""]);
        command.arg(std::env::current_exe().expect("own path"));
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        // SAFETY: prctl is async-signal-safe. A test that panics must not leave its process behind.
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
            .expect("the process starts");
        let orders = child.stdin.take().expect("piped");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        let mut process = Self { child, orders, replies };
        // Before this reply it may still be a shell that has not even changed its namespace.
        assert_eq!(process.call("ready"), [0]);
        process
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The inode of its network namespace.
    pub fn netns(&self) -> u32 {
        let link = std::fs::read_link(format!("/proc/{}/ns/net", self.pid())).expect("its namespace");
        let text = link.to_string_lossy().into_owned();
        text.trim_start_matches("net:[").trim_end_matches(']').parse().expect("an inode")
    }

    /// Gives an order without waiting for the reply.
    pub fn send_command(&mut self, command: &str) {
        writeln!(self.orders, "{order}").expect("the process lives");
        self.orders.flush().expect("the process lives");
    }

    pub fn read_reply(&mut self) -> Vec<i64> {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the process replies");
        line.split_whitespace().map(|word| word.parse().expect("a number")).collect()
    }

    pub fn call(&mut self, order: &str) -> Vec<i64> {
        self.send_command(order);
        let reply = self.read_reply();
        assert!(!reply.is_empty(), "the process died at {order:?}");
        reply
    }

    /// An order whose one result is a count or a descriptor.
    pub fn call_ok(&mut self, order: &str) -> i64 {
        let reply = self.call(order)[0];
        assert!(reply >= 0, "{order:?} gave {}", std::io::Error::from_raw_os_error(-reply as i32));
        reply
    }

    pub fn finish(mut self) {
        drop(self.orders);
        self.child.wait().expect("the process ends");
    }
}

pub fn listener(address: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(address).expect("a listener");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

/// Each test in both modes.
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

/// A process that listens at a port that is waited for.
pub fn responder(mode: CaptureMode) -> (Recorder, TestProcess, i64, SocketAddr) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let port = free_port();
    recorder.probe.watch_port(None, port).expect("room for one");
    let listener = process.call_ok(&format!("listen 127.0.0.1:{port}"));
    (recorder, process, listener, SocketAddr::from(([127, 0, 0, 1], port)))
}
