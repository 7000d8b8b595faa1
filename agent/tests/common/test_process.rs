//! A process that executes commands from its standard input: the observed node, or its peer in another namespace.
//!
//! It is this test program, executed again with one ignored test. Replies are lines that begin with '@', because the test
//! harness writes other lines.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use chainscope_testing::program;

/// A running test process and its pipes.
pub(crate) struct TestProcess {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl TestProcess {
    pub(crate) fn start() -> Self {
        Self::run(&mut Self::program(&std::env::current_exe().unwrap()))
    }

    /// Starts this program with changes to its environment.
    pub(crate) fn start_with(change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        Self::run(change(&mut Self::program(&std::env::current_exe().unwrap())))
    }

    /// Starts another executable.
    pub(crate) fn start_as(exe: &Path) -> Self {
        program::copy(&std::env::current_exe().unwrap(), exe);
        Self::run(&mut Self::program(exe))
    }

    /// Starts in a new network namespace with its loopback up.
    pub(crate) fn start_apart() -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        unshare.arg(std::env::current_exe().unwrap()).args(ARGUMENTS);
        Self::run(&mut unshare)
    }

    /// Starts in a cgroup from its first instruction, under another name.
    pub(crate) fn start_in(group: &Path, program: &Path) -> Self {
        Self::run(Self::enter(group).arg(program).args(ARGUMENTS))
    }

    /// The same in a new network namespace with its loopback up.
    pub(crate) fn start_in_apart(group: &Path, program: &Path) -> Self {
        let mut command = Self::enter(group);
        command.args(["unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        Self::run(command.arg(program).args(ARGUMENTS))
    }

    fn enter(group: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(group);
        command
    }

    /// Starts in the network namespace of another process.
    pub(crate) fn start_beside(other: &Self) -> Self {
        let mut enter = Command::new("nsenter");
        enter.arg(format!("--net=/proc/{}/ns/net", other.pid()));
        enter.arg(std::env::current_exe().unwrap()).args(ARGUMENTS);
        Self::run(&mut enter)
    }

    fn program(exe: &Path) -> Command {
        let mut command = Command::new(exe);
        command.args(ARGUMENTS);
        command
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, orders, answers };
        assert_eq!(process.answer(), "ready");
        process
    }

    /// `unshare` and `nsenter` execute the program in the same process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Inode of its network namespace.
    pub(crate) fn netns(&self) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(format!("/proc/{}/ns/net", self.pid())).unwrap().ino()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the test process ended");
            // The harness does not terminate its line before a test writes.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().to_owned();
            }
        }
    }

    fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.answer()
    }

    /// Listens on a port of its loopback, or on one that the kernel chooses; returns it.
    pub(crate) fn listen(&mut self, port: u16) -> u16 {
        self.order(&format!("listen {port}")).parse().unwrap()
    }

    /// Accepts this number of connections and returns the index of the first.
    pub(crate) fn accept(&mut self, count: usize) -> usize {
        self.order(&format!("accept {count}")).parse().unwrap()
    }

    pub(crate) fn connect(&mut self, port: u16) -> usize {
        self.order(&format!("connect {port}")).parse().unwrap()
    }

    pub(crate) fn write(&mut self, connection: usize, bytes: &[u8]) {
        assert_eq!(self.order(&format!("write {connection} {}", hex::encode(bytes))), "done");
    }

    pub(crate) fn read(&mut self, connection: usize, length: usize) {
        assert_eq!(self.order(&format!("read {connection} {length}")), "done");
    }

    pub(crate) fn stop(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ARGUMENTS: [&str; 4] = ["common::test_process::run", "--exact", "--ignored", "--nocapture"];

/// Not a test: the main function of the test process.
#[test]
#[ignore = "the main function of the test process, run by the tests"]
fn run() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut listener: Option<TcpListener> = None;
    let mut connections: Vec<TcpStream> = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    println!("@ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |place: usize| words[place].parse::<usize>().unwrap();
        match words[0] {
            "listen" => {
                let made = TcpListener::bind(format!("127.0.0.1:{}", words[1])).unwrap();
                println!("@{}", made.local_addr().unwrap().port());
                listener = Some(made);
            }
            "accept" => {
                let first = connections.len();
                for _ in 0..number(1) {
                    connections.push(listener.as_ref().unwrap().accept().unwrap().0);
                }
                println!("@{first}");
            }
            "connect" => {
                connections.push(TcpStream::connect(format!("127.0.0.1:{}", words[1])).unwrap());
                println!("@{}", connections.len() - 1);
            }
            "write" => {
                connections[number(1)].write_all(&hex::decode(words[2]).unwrap()).unwrap();
                println!("@done");
            }
            "read" => {
                let length = number(2);
                connections[number(1)].read_exact(&mut buffer[..length]).unwrap();
                println!("@done");
            }
            other => panic!("{other}"),
        }
    }
}
