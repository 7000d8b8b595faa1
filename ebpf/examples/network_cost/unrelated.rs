//! Latency of system calls that do not use sockets, in a process that is not watched.

use std::io::Read;
use std::time::Instant;

use chainscope_ebpf::network::CaptureMode;

use crate::load;

/// Prints the least latency of `pairs` rounds.
pub(crate) fn compare(pairs: u64) {
    println!("system calls of a process that is not watched, ns (least of {pairs})");
    println!("{:>9} {:>9} {:>14}", "", "getppid", "read /dev/zero");
    for (name, mode) in [("none", None), ("sock", Some(CaptureMode::Sock)), ("syscall", Some(CaptureMode::Syscall))] {
        let _probe = mode.map(|mode| load(Some(mode)));
        let (getppid, read) = unrelated(pairs);
        println!("{name:>9} {getppid:>9.1} {read:>14.1}");
    }
}

fn unrelated(rounds: u64) -> (f64, f64) {
    const CALLS: u32 = 1_000_000;
    let mut zero = std::fs::File::open("/dev/zero").expect("/dev/zero");
    let least = |call: &mut dyn FnMut()| {
        (0..rounds)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..CALLS {
                    call();
                }
                start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
            })
            .fold(f64::INFINITY, f64::min)
    };
    // SAFETY: getppid has no arguments and cannot fail.
    let getppid = least(&mut || {
        unsafe { libc::syscall(libc::SYS_getppid) };
    });
    let mut byte = [0];
    let read = least(&mut || zero.read_exact(&mut byte).expect("/dev/zero"));
    (getppid, read)
}
