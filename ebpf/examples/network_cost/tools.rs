//! Programs that capture packets: tcpdump and dumpcap on the loopback interface, whole packets, a buffer as large as the ring.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ToolKind {
    TcpdumpNull,
    TcpdumpFile,
    DumpcapFile,
}

impl ToolKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TcpdumpNull => "tcpdump-null",
            Self::TcpdumpFile => "tcpdump-file",
            Self::DumpcapFile => "dumpcap-file",
        }
    }

    fn program(self) -> &'static str {
        if self == Self::DumpcapFile { "dumpcap" } else { "tcpdump" }
    }

    /// Whether the program can be run.
    pub(crate) fn is_installed(self) -> bool {
        Command::new(self.program()).arg("--version").output().is_ok()
    }

    /// Starts the program; it captures when this returns.
    pub(crate) fn start(self) -> Tool {
        let file = (self != Self::TcpdumpNull)
            .then(|| std::env::temp_dir().join(format!("chainscope-capture-{}", std::process::id())));
        let path = file.clone().unwrap_or_else(|| "/dev/null".into());
        let mut command = Command::new(self.program());
        command.args(["-i", "lo", "-s", "0", "-w"]).arg(path);
        match self {
            // The buffer is in KiB, or in MiB.
            Self::TcpdumpNull | Self::TcpdumpFile => command.args(["-B", "32768", "-Z", "root"]),
            Self::DumpcapFile => command.args(["-B", "32", "-P"]),
        };
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("{self:?}: {error}"));
        let mut messages = BufReader::new(child.stderr.take().expect("piped"));
        // tcpdump: "listening on lo, …"; dumpcap: "Capturing on 'Loopback: lo'" before the file is open, then "File: …".
        let begins = if self == Self::DumpcapFile { "File:" } else { "listening on" };
        let mut line = String::new();
        while !line.contains(begins) {
            line.clear();
            let read = messages.read_line(&mut line).expect("its messages");
            assert!(read > 0, "{} ended before it captured", self.program());
        }
        Tool { child, messages, file }
    }
}

/// A program that is running.
pub(crate) struct Tool {
    child: Child,
    messages: BufReader<ChildStderr>,
    file: Option<PathBuf>,
}

impl Tool {
    /// Ends the program; returns the packets that it lost.
    pub(crate) fn finish(mut self) -> u64 {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).expect("it runs");
        let mut messages = String::new();
        self.messages.read_to_string(&mut messages).expect("its messages");
        self.child.wait().expect("it ends");
        if let Some(file) = &self.file {
            std::fs::remove_file(file).expect("its file");
        }
        lost_packets(&messages).unwrap_or_else(|| panic!("no number of lost packets: {messages:?}"))
    }
}

/// Of the last messages: tcpdump's "12 packets dropped by kernel", dumpcap's "Packets received/dropped on interface
/// 'Loopback: lo': 34/12 (pcap:…)".
fn lost_packets(messages: &str) -> Option<u64> {
    messages.lines().find_map(|line| {
        if let Some(number) = line.strip_suffix("packets dropped by kernel") {
            return number.trim().parse().ok();
        }
        let counts = line.strip_prefix("Packets received/dropped on interface")?.rsplit_once(": ")?.1;
        let dropped = counts.split(' ').next()?.split_once('/')?.1;
        dropped.parse().ok()
    })
}
