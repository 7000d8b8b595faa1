//! The watched process: this test binary re-executed, running the socket commands that it reads from standard input.
//!
//! It is a separate process because the probe watches whole processes, and the peer of a connection must not be
//! watched.

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;

use super::pattern;

/// Environment variable that marks a test process.
pub const ENV_MARKER: &str = "CHAINSCOPE_TEST_PROCESS";

/// Runs before `main`, so that a test process does not run the tests.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if std::env::var_os(ENV_MARKER).is_some() {
        for line in io::stdin().lock().lines() {
            let line = line.expect("a line");
            let words: Vec<&str> = line.split_whitespace().collect();
            reply(&execute(&words));
        }
        std::process::exit(0);
    }
}

fn reply(numbers: &[i64]) {
    let words: Vec<String> = numbers.iter().map(i64::to_string).collect();
    let mut out = io::stdout().lock();
    writeln!(out, "{}", words.join(" ")).expect("the test reads");
    out.flush().expect("the test reads");
}

/// The result of a system call, or the negated errno.
fn result(ret: impl TryInto<i64>) -> i64 {
    let ret = ret.try_into().unwrap_or(i64::MAX);
    if ret < 0 { -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { ret }
}

fn execute(words: &[&str]) -> Vec<i64> {
    let number = |at: usize| -> i64 { words.get(at).map_or(0, |word| word.parse().expect("a number")) };
    // -1 where the word is an address, which the command parses itself.
    let number_or = |at: usize| words.get(at).and_then(|word| word.parse::<i64>().ok()).unwrap_or(-1);
    let fd = number_or(1) as i32;
    let (a, b) = (number_or(2), number_or(3));
    // SAFETY: plain system calls on descriptors and buffers of this process, which outlive the calls.
    unsafe {
        match words[0] {
            "ready" => vec![0],
            "listen" => listen(words[1].parse().expect("an address")),
            "connect" => vec![connect(words[1].parse().expect("an address"), words.get(2) == Some(&"nonblocking"))],
            "accept" => vec![result(libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut()))],
            "accept4" => vec![result(libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), 0))],
            "close" => vec![result(libc::close(fd))],
            "dup" => vec![result(libc::dup(fd))],
            "shutdown" => vec![result(libc::shutdown(fd, a as i32))],
            "nonblocking" => vec![result(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK))],
            "disconnect" => {
                // SAFETY: all-zero is a value, and AF_UNSPEC.
                let nowhere: libc::sockaddr = std::mem::zeroed();
                vec![result(libc::connect(fd, &raw const nowhere, size_of::<libc::sockaddr>() as u32))]
            }
            "connect_again" => {
                let (raw, size) = sockaddr(words[2].parse().expect("an address"));
                vec![result(libc::connect(fd, (&raw const raw).cast(), size))]
            }
            "linger0" => {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                let size = size_of::<libc::linger>() as u32;
                vec![result(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size))]
            }
            "send" => vec![send(words[6], fd, a as u64, b as u64, number(4) as usize, number(5) as usize)],
            "receive" => vec![receive(words[5], fd, a as usize, b as usize, number(4) as i32)],
            "send_all" => {
                let (length, piece) = (number(4) as usize, number(5) as usize);
                let mut done = 0;
                while done < length {
                    let n = send(words[6], fd, a as u64, b as u64 + done as u64, piece.min(length - done), 1);
                    if n < 0 {
                        return vec![n];
                    }
                    done += n as usize;
                }
                vec![done as i64]
            }
            "receive_all" => {
                let mut done = 0;
                while done < a {
                    let n = receive(words[4], fd, b.min(a - done) as usize, 1, 0);
                    if n <= 0 {
                        return vec![n, done];
                    }
                    done += n;
                }
                vec![done]
            }
            "fork_send" => {
                let child = libc::fork();
                if child == 0 {
                    let sent = send("write", fd, a as u64, b as u64, number(4) as usize, 1);
                    libc::_exit(i32::from(sent != number(4)));
                }
                let mut status = 0;
                libc::waitpid(child, &raw mut status, 0);
                vec![i64::from(status)]
            }
            "thread_send" => {
                let (seed, from, length) = (a as u64, b as u64, number(4) as usize);
                let sender = std::thread::spawn(move || send("write", fd, seed, from, length, 1));
                vec![sender.join().expect("the thread returns")]
            }
            "thread_close" => vec![std::thread::spawn(move || result(libc::close(fd))).join().expect("it returns")],
            "two_threads_send" => {
                // Each thread writes to its own descriptor concurrently.
                let (other, length, piece) = (a as i32, b as usize, number(4) as usize);
                let both = [(fd, 1_u64), (other, 2)].map(|(fd, seed)| {
                    std::thread::spawn(move || {
                        let mut done = 0;
                        while done < length {
                            let n = send("write", fd, seed, done as u64, piece.min(length - done), 1);
                            assert!(n > 0, "write: {n}");
                            done += n as usize;
                        }
                        done as i64
                    })
                });
                both.map(|sender| sender.join().expect("the thread returns")).to_vec()
            }
            "storm" => vec![storm(fd, words[2].parse().expect("an address"), b as usize, number(4) as usize)],
            "sendfile" => {
                let file = libc::memfd_create(c"file".as_ptr(), 0);
                libc::ftruncate(file, a);
                vec![result(libc::sendfile(fd, file, std::ptr::null_mut(), a as usize))]
            }
            "splice_out" => {
                let mut pipe = [0; 2];
                libc::pipe(pipe.as_mut_ptr());
                let none = std::ptr::null_mut();
                vec![result(libc::splice(fd, none, pipe[1], none, a as usize, 0))]
            }
            "splice_in" => {
                let mut pipe = [0; 2];
                libc::pipe(pipe.as_mut_ptr());
                let bytes = vec![1_u8; a as usize];
                libc::write(pipe[1], bytes.as_ptr().cast(), bytes.len());
                let none = std::ptr::null_mut();
                vec![result(libc::splice(pipe[0], none, fd, none, a as usize, 0))]
            }
            "connect_and_send" => vec![connect_and_send(words[1].parse().expect("an address"), a as usize)],
            "send_with_hole" => send_with_hole(fd, a as u64),
            "send_and_unmap" => send_and_unmap(fd, a as u64, b as usize, number(4) as usize),
            "send_and_replace_vectors" => send_and_replace_vectors(fd, a as u64, b as usize, number(4) as usize),
            "int80_write" => int80_write(fd, a as u64, number(3) as usize),
            "error_queue" => {
                let mut byte = [0_u8; 64];
                vec![result(libc::recv(fd, byte.as_mut_ptr().cast(), 64, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT))]
            }
            "uring_send" => super::uring::send(fd, a as u64, b as u64, number(4) as usize, number(5) != 0),
            "uring_receive" => super::uring::receive(fd, a as usize, b != 0),
            "uring_mixed" => super::uring::mixed(fd, a as usize),
            other => panic!("unknown command {other}"),
        }
    }
}

/// Opens `each` consecutive connections to the process's own listener in each of `threads` threads, sends one byte over
/// each and closes both ends.
fn storm(listener: i32, address: SocketAddr, threads: usize, each: usize) -> i64 {
    let one = move || {
        for _ in 0..each {
            // SAFETY: plain system calls. accept may return another thread's connection.
            unsafe {
                let near = connect(address, false) as i32;
                assert_eq!(send("write", near, 0, 0, 1, 1), 1);
                let far = libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut());
                assert_eq!(receive("read", far, 1, 1, 0), 1);
                libc::close(near);
                libc::close(far);
            }
        }
    };
    let threads: Vec<_> = (0..threads).map(|_| std::thread::spawn(one)).collect();
    threads.into_iter().map(|thread| i64::from(thread.join().is_err())).sum()
}

/// Opens `count` connections, which stay open, and sends a byte over each; returns how many sends failed.
fn connect_and_send(address: SocketAddr, count: usize) -> i64 {
    // SAFETY: plain system calls; the limit is that of this process.
    unsafe {
        let limit = libc::rlimit { rlim_cur: count as u64 + 64, rlim_max: count as u64 + 64 };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        let failed = (0..count).filter(|_| send("write", connect(address, false) as i32, 0, 0, 1, 1) != 1).count();
        failed as i64
    }
}

fn sockaddr(address: SocketAddr) -> (libc::sockaddr_storage, u32) {
    // SAFETY: all-zero is a value of sockaddr_storage, which is as large as any address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let size = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough and aligned for every address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: 0,
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, size as u32)
}

unsafe fn socket(address: SocketAddr, flags: i32) -> i32 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    unsafe { libc::socket(family, libc::SOCK_STREAM | flags, 0) }
}

unsafe fn listen(address: SocketAddr) -> Vec<i64> {
    let (raw, size) = sockaddr(address);
    unsafe {
        let fd = socket(address, 0);
        let (on, off) = (1_i32, 0_i32);
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const on).cast(), 4);
        if address.is_ipv6() {
            libc::setsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, (&raw const off).cast(), 4);
        }
        let bound = result(libc::bind(fd, (&raw const raw).cast(), size));
        if bound < 0 {
            return vec![bound];
        }
        vec![i64::from(fd), result(libc::listen(fd, 64))]
    }
}

unsafe fn connect(address: SocketAddr, nonblocking: bool) -> i64 {
    let (raw, size) = sockaddr(address);
    unsafe {
        let fd = socket(address, if nonblocking { libc::SOCK_NONBLOCK } else { 0 });
        match result(libc::connect(fd, (&raw const raw).cast(), size)) {
            0 => i64::from(fd),
            error if nonblocking && error == -i64::from(libc::EINPROGRESS) => i64::from(fd),
            error => {
                libc::close(fd);
                error
            }
        }
    }
}

/// Splits the buffer into `parts` iovecs, each preceded by an empty one, which is legal.
fn vectors(buffer: &mut [u8], parts: usize) -> Vec<libc::iovec> {
    let mut vectors = Vec::new();
    let each = buffer.len().div_ceil(parts.max(1)).max(1);
    for part in buffer.chunks_mut(each) {
        vectors.push(libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: 0 });
        vectors.push(libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    }
    vectors
}

fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all-zero is a value of msghdr: no address, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len();
    message
}

/// Splits the buffer into `count` messages of two buffers each.
fn messages(buffer: &mut [u8], count: usize) -> (Vec<Vec<libc::iovec>>, Vec<libc::mmsghdr>) {
    let each = buffer.len().div_ceil(count.max(1)).max(1);
    let mut all: Vec<_> = buffer.chunks_mut(each).map(|part| vectors(part, 2)).collect();
    let headers = all.iter_mut().map(|one| libc::mmsghdr { msg_hdr: message(one), msg_len: 0 }).collect();
    (all, headers)
}

/// Number of bytes that sendmmsg or recvmmsg transferred.
fn total(ret: i32, messages: &[libc::mmsghdr]) -> i64 {
    if ret < 0 {
        return result(ret);
    }
    messages.iter().take(ret as usize).map(|one| i64::from(one.msg_len)).sum()
}

pub unsafe fn send(call: &str, fd: i32, seed: u64, offset: u64, length: usize, parts: usize) -> i64 {
    let mut bytes = pattern(seed, offset, length);
    let mut vectors_ = vectors(&mut bytes, parts);
    let (start, count) = (vectors_.as_ptr(), vectors_.len() as i32);
    unsafe {
        match call {
            "write" => result(libc::write(fd, bytes.as_ptr().cast(), length)),
            "sendto" => result(libc::send(fd, bytes.as_ptr().cast(), length, libc::MSG_NOSIGNAL)),
            "writev" => result(libc::writev(fd, start, count)),
            "pwritev2" => result(libc::pwritev2(fd, start, count, -1, 0)),
            "sendmsg" => result(libc::sendmsg(fd, &message(&mut vectors_), libc::MSG_NOSIGNAL)),
            "sendmmsg" => {
                let (_buffers, mut headers) = messages(&mut bytes, parts);
                let ret = libc::sendmmsg(fd, headers.as_mut_ptr(), headers.len() as u32, libc::MSG_NOSIGNAL);
                total(ret, &headers)
            }
            other => panic!("unknown call {other}"),
        }
    }
}

unsafe fn receive(call: &str, fd: i32, length: usize, parts: usize, flags: i32) -> i64 {
    let mut bytes = vec![0_u8; length];
    let mut vectors_ = vectors(&mut bytes, parts);
    let (start, count) = (vectors_.as_ptr(), vectors_.len() as i32);
    unsafe {
        match call {
            "read" => result(libc::read(fd, bytes.as_mut_ptr().cast(), length)),
            "recvfrom" => result(libc::recv(fd, bytes.as_mut_ptr().cast(), length, flags)),
            "readv" => result(libc::readv(fd, start, count)),
            "preadv2" => result(libc::preadv2(fd, start, count, -1, 0)),
            "recvmsg" => result(libc::recvmsg(fd, &mut message(&mut vectors_), flags)),
            "recvmmsg" | "recvmmsg_timeout" => {
                let (_buffers, mut headers) = messages(&mut bytes, parts);
                let mut limit = libc::timespec { tv_sec: 5, tv_nsec: 0 };
                let limit = if call == "recvmmsg" { std::ptr::null_mut() } else { &raw mut limit };
                let flags = flags | libc::MSG_WAITFORONE;
                let ret = libc::recvmmsg(fd, headers.as_mut_ptr(), headers.len() as u32, flags, limit);
                total(ret, &headers)
            }
            other => panic!("unknown call {other}"),
        }
    }
}

const READABLE: usize = 1 << 20;

/// Writes from a buffer whose last page is unmapped: the kernel returns a partial write.
unsafe fn send_with_hole(fd: i32, seed: u64) -> Vec<i64> {
    unsafe {
        let start = mapped(seed, READABLE + 4096);
        libc::munmap(start.add(READABLE).cast(), 4096);
        vec![result(libc::write(fd, start.cast(), READABLE + 4096))]
    }
}

/// Unmaps the first `gone` bytes of a buffer during a long write, after the kernel has copied them. Replies once after
/// the unmap and once with the result of the write.
unsafe fn send_and_unmap(fd: i32, seed: u64, gone: usize, length: usize) -> Vec<i64> {
    unsafe {
        let start = mapped(seed, length) as usize;
        let writer = std::thread::spawn(move || result(libc::write(fd, start as *const _, length)));
        let mut queued = 0_i32;
        while (queued as usize) < 2 * gone {
            libc::ioctl(fd, libc::TIOCOUTQ, &raw mut queued);
            std::thread::yield_now();
        }
        libc::munmap(start as *mut _, gone);
        reply(&[0]);
        vec![writer.join().expect("the thread returns")]
    }
}

/// Sends a buffer with one vector, and prefixes it with `empty` ones while the call is blocked: the kernel has its copy.
unsafe fn send_and_replace_vectors(fd: i32, seed: u64, empty: usize, length: usize) -> Vec<i64> {
    struct Shared(*mut libc::msghdr);
    // SAFETY: the test is about a message that two threads use.
    unsafe impl Send for Shared {}

    unsafe {
        let start = mapped(seed, length);
        let mut whole = [libc::iovec { iov_base: start.cast(), iov_len: length }];
        let mut replaced = vec![libc::iovec { iov_base: start.cast(), iov_len: 0 }; empty];
        replaced.extend(whole);
        let mut header = message(&mut whole);
        let shared = Shared(&raw mut header);
        let writer = std::thread::spawn(move || {
            let shared = shared;
            result(libc::sendmsg(fd, shared.0, 0))
        });
        let mut queued = 0_i32;
        while queued == 0 {
            libc::ioctl(fd, libc::TIOCOUTQ, &raw mut queued);
            std::thread::yield_now();
        }
        (&raw mut header.msg_iovlen).write_volatile(replaced.len());
        (&raw mut header.msg_iov).write_volatile(replaced.as_mut_ptr());
        reply(&[0]);
        vec![writer.join().expect("the thread returns")]
    }
}

unsafe fn mapped(seed: u64, length: usize) -> *mut u8 {
    unsafe {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let start = libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0).cast::<u8>();
        std::slice::from_raw_parts_mut(start, length).copy_from_slice(&pattern(seed, 0, length));
        start
    }
}

/// Calls the 32-bit `write` through `int 0x80`.
unsafe fn int80_write(fd: i32, seed: u64, length: usize) -> Vec<i64> {
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        let start = libc::mmap(std::ptr::null_mut(), 65536, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        std::slice::from_raw_parts_mut(start.cast::<u8>(), length).copy_from_slice(&pattern(seed, 0, length));
        let ret: i64;
        // The compiler reserves rbx, so it is swapped in and out.
        std::arch::asm!(
            "xchg rbx, {fd:r}", "int 0x80", "xchg rbx, {fd:r}",
            fd = inout(reg) i64::from(fd) => _,
            inout("rax") 4_i64 => ret, in("rcx") start as u64, in("rdx") length,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
        vec![i64::from(ret as i32)]
    }
}
