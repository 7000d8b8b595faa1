//! io_uring operations of the test process: bytes transferred without a send or receive system call.

use io_uring::{IoUring, opcode, squeue, types};

use super::pattern;

fn flags(worker: bool) -> squeue::Flags {
    if worker { squeue::Flags::ASYNC } else { squeue::Flags::empty() }
}

fn one(ring: &mut IoUring, entry: &squeue::Entry) -> i64 {
    // SAFETY: the entry's buffers live until its completion, which this function waits for.
    unsafe { ring.submission().push(entry).expect("submission queue entry") };
    ring.submit_and_wait(1).expect("io_uring_enter");
    i64::from(ring.completion().next().expect("a completion").result())
}

/// Sends by io_uring. `worker`: in an io-wq kernel thread (`IOSQE_ASYNC`) instead of inline in `io_uring_enter`.
pub fn send(fd: i32, seed: u64, offset: u64, length: usize, worker: bool) -> Vec<i64> {
    let mut ring = IoUring::new(8).expect("io_uring");
    let bytes = pattern(seed, offset, length);
    let entry = opcode::Send::new(types::Fd(fd), bytes.as_ptr(), length as u32).build().flags(flags(worker));
    vec![one(&mut ring, &entry)]
}

pub fn receive(fd: i32, length: usize, worker: bool) -> Vec<i64> {
    let mut ring = IoUring::new(8).expect("io_uring");
    let mut bytes = vec![0_u8; length];
    let entry = opcode::Recv::new(types::Fd(fd), bytes.as_mut_ptr(), length as u32).build().flags(flags(worker));
    vec![one(&mut ring, &entry)]
}

/// Receives `total` bytes by `recv` while an io_uring receive is pending on the same socket. The pending receive
/// completes as task work at the end of an arbitrary system call, with that call's registers. Returns the bytes
/// received each way.
pub fn mixed(fd: i32, total: usize) -> Vec<i64> {
    let mut ring = IoUring::new(8).expect("io_uring");
    let (mut by_read, mut by_ring) = (0, 0);
    let mut pending = false;
    let mut ring_bytes = vec![0_u8; 1000];
    let mut read_bytes = vec![0_u8; 700];
    while by_read + by_ring < total as i64 {
        if !pending {
            let entry = opcode::Recv::new(types::Fd(fd), ring_bytes.as_mut_ptr(), 1000).build();
            // SAFETY: `ring_bytes` lives until the ring is dropped at the end.
            unsafe { ring.submission().push(&entry).expect("submission queue entry") };
            ring.submit().expect("io_uring_enter");
            pending = true;
        }
        if let Some(done) = ring.completion().next() {
            assert!(done.result() > 0, "receive by ring: {}", done.result());
            by_ring += i64::from(done.result());
            pending = false;
        }
        // SAFETY: the buffer is large enough.
        let n = unsafe { libc::recv(fd, read_bytes.as_mut_ptr().cast(), 700, libc::MSG_DONTWAIT) };
        if n > 0 {
            by_read += n as i64;
        }
    }
    vec![by_read, by_ring]
}
