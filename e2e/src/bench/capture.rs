//! Sender throughput with recording on to off, and lost bytes; both ends run on this machine and both are captured.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use chainscope_ebpf::{CaptureMode, Event, NetworkOptions, NetworkProbe, SocketId, Verdict};

use super::Spread;
use super::blast::{Moved, Side};

/// The result for one size of writes.
#[derive(Debug)]
pub struct Figures {
    /// Bytes of each write.
    pub size: usize,
    /// Bytes a second of the sender without recording, median.
    pub alone: f64,
    /// Throughput with recording to without, by pairs.
    pub ratio: Spread,
    /// Bytes that both sides moved while recorded.
    pub moved: u64,
    /// Of these, not captured.
    pub lost: u64,
}

/// One run; with a probe, the bytes that it delivered.
fn once(size: usize, time: Duration, probe: Option<NetworkProbe>) -> Result<(Moved, u64, u64)> {
    let text = size.to_string();
    let receiver = Side::start(&["receive", "--size", &text])?;
    let millis = time.as_millis().to_string();
    let mut sender = Side::start(&["send", "--port", &receiver.first, "--size", &text, "--millis", &millis])?;
    let Some(mut probe) = probe else {
        sender.go()?;
        let moved = sender.end()?;
        receiver.end()?;
        return Ok((moved, 0, 0));
    };
    probe.add_process(sender.pid())?;
    probe.add_process(receiver.pid())?;
    let done = Arc::new(AtomicBool::new(false));
    let stop = done.clone();
    let reader = std::thread::spawn(move || -> Result<u64> {
        let mut captured: BTreeMap<SocketId, u64> = BTreeMap::new();
        loop {
            let was_done = stop.load(Ordering::Acquire);
            let mut opened = Vec::new();
            let events = probe.poll(Duration::from_millis(20), &mut |event| match event {
                Event::Opened(socket) => opened.push(socket.socket),
                Event::Data(data) => *captured.entry(data.socket).or_default() += data.bytes.len() as u64,
                _ => {}
            })?;
            for socket in opened {
                probe.decide(socket, Verdict::Keep)?;
            }
            if was_done && events == 0 {
                return Ok(captured.values().sum());
            }
        }
    });
    sender.go()?;
    let moved = sender.end();
    let received = receiver.end();
    done.store(true, Ordering::Release);
    let captured = reader.join().map_err(|_| anyhow!("the reader panicked"))??;
    let (moved, received) = (moved?, received?);
    Ok((moved, moved.bytes + received.bytes, captured))
}

/// Measures one size of writes in `pairs` alternating pairs of runs.
///
/// # Errors
/// If the probe cannot be loaded, or a side fails.
pub fn measure(mode: CaptureMode, size: usize, pairs: usize, time: Duration) -> Result<Figures> {
    let mut figures = Figures { size, alone: 0.0, ratio: Spread::of(Vec::new()), moved: 0, lost: 0 };
    let (mut ratios, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        let (off, ..) = once(size, time, None)?;
        let probe = NetworkProbe::load(&NetworkOptions { mode: Some(mode), ..NetworkOptions::default() })?;
        let (on, moved, captured) = once(size, time, Some(probe))?;
        ratios.push(on.rate() / off.rate());
        alone.push(off.rate());
        figures.moved += moved;
        figures.lost += moved.saturating_sub(captured);
    }
    figures.ratio = Spread::of(ratios);
    figures.alone = Spread::of(alone).median;
    Ok(figures)
}
