//! What recording costs a process that is not recorded: nanoseconds of a system call, with the probe attached and without.

use std::time::Instant;

use anyhow::Result;
use chainscope_ebpf::{CaptureMode, NetworkOptions, NetworkProbe};

/// Calls a measurement.
const CALLS: u32 = 1_000_000;

/// The best of three, nanoseconds a call.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// getppid(2), without and with.
    pub getppid: (f64, f64),
    /// read(2) of one byte of /dev/zero, without and with.
    pub read: (f64, f64),
}

/// Measures with the probe attached in that mode, watching somebody else.
///
/// # Errors
/// If the probe cannot be loaded.
pub fn measure(mode: CaptureMode) -> Result<Figures> {
    let without = calls()?;
    let mut probe = NetworkProbe::load(&NetworkOptions { mode: Some(mode), ..NetworkOptions::default() })?;
    probe.watch_port(None, 1)?;
    let with = calls()?;
    drop(probe);
    Ok(Figures { getppid: (without.0, with.0), read: (without.1, with.1) })
}

fn calls() -> Result<(f64, f64)> {
    let zero = std::fs::File::open("/dev/zero")?;
    let mut byte = [0u8];
    let (mut getppid, mut read) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        let started = Instant::now();
        for _ in 0..CALLS {
            std::hint::black_box(rustix::process::getppid());
        }
        getppid = getppid.min(started.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
        let started = Instant::now();
        for _ in 0..CALLS {
            rustix::io::read(&zero, &mut byte)?;
        }
        read = read.min(started.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    Ok((getppid, read))
}
