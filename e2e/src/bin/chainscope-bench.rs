//! `chainscope-bench`: ratios against the physical limit, as tables in Markdown. `make bench` runs it as root.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Result;
use chainscope_e2e::bench::{blast, capture, decode, size_name, unrelated};
use chainscope_ebpf::CaptureMode;
use clap::{Parser, Subcommand};

/// Measures Chainscope against the physical limit.
#[derive(Parser)]
#[command(name = "chainscope-bench", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Sender throughput with recording on to off, lost bytes, and the cost for processes that are not recorded
    Capture {
        /// Alternating pairs of runs for each size
        #[arg(long, default_value_t = 5)]
        pairs: usize,
        /// Length of a run
        #[arg(long, default_value_t = 1000)]
        millis: u64,
    },
    /// Decrypt, assemble, decode and preview against nothing but crypto_box
    Decode {
        /// Alternating pairs of runs for each size
        #[arg(long, default_value_t = 5)]
        pairs: usize,
    },
    #[command(hide = true)]
    Receive {
        #[arg(long)]
        size: usize,
    },
    #[command(hide = true)]
    Send {
        #[arg(long)]
        port: u16,
        #[arg(long)]
        size: usize,
        #[arg(long)]
        millis: u64,
    },
}

fn main() -> Result<()> {
    match Cli::parse().what {
        What::Receive { size } => blast::receive(size),
        What::Send { port, size, millis } => blast::send(port, size, Duration::from_millis(millis)),
        What::Capture { pairs, millis } => captures(pairs, Duration::from_millis(millis)),
        What::Decode { pairs } => decodes(pairs),
    }
}

fn captures(pairs: usize, time: Duration) -> Result<()> {
    line("| capture | write | alone, MB/s | recorded to alone: median (least..greatest) | lost of captured bytes |")?;
    line("| --- | ---: | ---: | ---: | ---: |")?;
    for mode in [CaptureMode::Sock, CaptureMode::Syscall] {
        for size in [256, 4 << 10, 64 << 10, 1 << 20] {
            let f = capture::measure(mode, size, pairs, time)?;
            line(&format!(
                "| {mode} | {} | {:.0} | {} | {} of {} |",
                size_name(size),
                f.alone / 1e6,
                f.ratio,
                f.lost,
                f.moved
            ))?;
        }
    }
    line("")?;
    line("| capture | system call of another process | without, ns | with, ns |")?;
    line("| --- | --- | ---: | ---: |")?;
    for mode in [CaptureMode::Sock, CaptureMode::Syscall] {
        let f = unrelated::measure(mode)?;
        line(&format!("| {mode} | getppid | {:.0} | {:.0} |", f.getppid.0, f.getppid.1))?;
        line(&format!("| {mode} | read of 1 byte | {:.0} | {:.0} |", f.read.0, f.read.1))?;
    }
    Ok(())
}

fn decodes(pairs: usize) -> Result<()> {
    line("| message | crypto_box alone, messages/s | interpreted, messages/s | ratio: median (least..greatest) |")?;
    line("| ---: | ---: | ---: | ---: |")?;
    for (size, count) in [(128, 50_000), (1024, 50_000), (16 << 10, 5_000), (256 << 10, 500)] {
        let f = decode::measure(size, count, pairs)?;
        line(&format!("| {} | {:.0} | {:.0} | {} |", size_name(size), f.open, f.interpret, f.ratio))?;
    }
    Ok(())
}

fn line(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
}
