//! Sender and receiver processes that do nothing but read(2) and write(2), so that the recorder's cost is not hidden by theirs.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// What a side moved, and how long it took.
#[derive(Debug, Clone, Copy)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// From the first call to the last.
    pub seconds: f64,
}

impl Moved {
    /// Bytes a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// The receiver's `main`: prints its port, reads one connection to its end, prints what came.
///
/// # Errors
/// If a socket fails.
pub fn receive(size: usize) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    say(&listener.local_addr()?.port().to_string())?;
    let (stream, _) = listener.accept()?;
    let mut buffer = vec![0; size.max(1)];
    let (started, mut bytes) = (Instant::now(), 0);
    loop {
        match rustix::io::read(&stream, &mut buffer)? {
            0 => break,
            length => bytes += length as u64,
        }
    }
    say(&format!("{bytes} {}", started.elapsed().as_secs_f64()))
}

/// The sender's `main`: waits for a line, connects, writes for that long, prints what went.
///
/// # Errors
/// If a socket fails.
pub fn send(port: u16, size: usize, time: Duration) -> Result<()> {
    say("ready")?;
    std::io::stdin().read_line(&mut String::new())?;
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    let buffer: Vec<u8> = (0..size).map(|i| (i * 7 + (i >> 8)) as u8).collect();
    let (started, mut bytes) = (Instant::now(), 0);
    // The clock is asked now and then only: it costs as much as a small write.
    while started.elapsed() < time {
        for _ in 0..(1 << 18) / size.max(1) + 1 {
            bytes += rustix::io::write(&stream, &buffer)? as u64;
        }
    }
    say(&format!("{bytes} {}", started.elapsed().as_secs_f64()))
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// One of these processes, seen from the benchmark.
pub struct Side {
    child: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
    /// What it said first: the receiver its port.
    pub first: String,
}

impl Side {
    /// Starts this very program with other arguments.
    ///
    /// # Errors
    /// If it does not start, or says nothing.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a side")?;
        let orders = child.stdin.take().context("no standard input")?;
        let said = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut side = Self { child, orders, said, first: String::new() };
        side.first = side.line()?;
        Ok(side)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it begin.
    ///
    /// # Errors
    /// If it is gone.
    pub fn go(&mut self) -> Result<()> {
        Ok(writeln!(self.orders)?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Waits for its end and what it moved.
    ///
    /// # Errors
    /// If it failed.
    pub fn end(mut self) -> Result<Moved> {
        let line = self.line()?;
        let (bytes, seconds) = line.split_once(' ').with_context(|| format!("it said {line:?}"))?;
        let moved = Moved { bytes: bytes.parse()?, seconds: seconds.parse()? };
        self.child.wait()?;
        Ok(moved)
    }
}
