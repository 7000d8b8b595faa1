//! Attaches a program to locations of a file.
//!
//! aya has neither reference counters (`ref_ctr_offset`) nor links to several locations (`BPF_TRACE_UPROBE_MULTI`).

use std::ffi::{CString, c_long};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::AttachMode;

const BPF_LINK_CREATE: c_long = 28;
const BPF_PERF_EVENT: u32 = 41;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_TRACE_UPROBE_SESSION: u32 = 57;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;
/// In `config` of a perf event: at the return of the function.
const RETURN_PROBE: u64 = 1;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
/// The type of uprobes among perf events.
pub(crate) const UPROBE_TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// What the kernel needs to know of a location.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) offset: u64,
    pub(crate) semaphore: Option<u64>,
    pub(crate) cookie: u64,
}

/// When the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// Before the instruction.
    Hit,
    /// When a function that began at the instruction returns. The kernel replaces the return address on the stack.
    Return,
    /// Both; the program is one for sessions. Needs [`AttachMode::Multi`].
    Session,
}

/// Attached locations. Dropping it detaches them.
#[derive(Debug)]
#[expect(dead_code, reason = "owned, so that they are closed")]
pub(crate) enum Links {
    Multi(OwnedFd),
    /// Links, and the perf events that they are of.
    PerfEvents(Vec<(OwnedFd, OwnedFd)>),
}

/// A point that cannot be attached, or `None` if it is not known which, and why.
pub(crate) type AttachError = (Option<Point>, io::Error);

/// Attaches a program that was loaded for `mode`.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    mode: AttachMode,
    trigger: Trigger,
    file: &File,
    pid: Option<u32>,
    points: &[Point],
) -> Result<Links, AttachError> {
    // Leads to the open file, though it was deleted or belongs to another mount namespace.
    let path = CString::new(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())).map_err(|_| plain(libc::EINVAL))?;
    match mode {
        AttachMode::Multi => {
            multi(program, trigger, &path, pid, points).map(Links::Multi).map_err(|error| (None, error))
        }
        AttachMode::PerfEvent => {
            let kind = uprobe_type().map_err(|error| (None, error))?;
            let attached = points.iter().map(|point| {
                perf_event(program, kind, trigger, &path, pid, *point).map_err(|error| (Some(*point), error))
            });
            attached.collect::<Result<_, _>>().map(Links::PerfEvents)
        }
    }
}

fn plain(code: i32) -> AttachError {
    (None, io::Error::from_raw_os_error(code))
}

fn uprobe_type() -> io::Result<u32> {
    let text = std::fs::read_to_string(UPROBE_TYPE)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("{UPROBE_TYPE} has no number")))
}

/// `struct perf_event_attr`, version 1.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    /// The offset of the reference counter is in its upper half.
    config: u64,
    unused: [u64; 5],
    uprobe_path: u64,
    probe_offset: u64,
}

fn perf_event(
    program: BorrowedFd<'_>,
    kind: u32,
    trigger: Trigger,
    path: &CString,
    pid: Option<u32>,
    point: Point,
) -> io::Result<(OwnedFd, OwnedFd)> {
    let semaphore = u32::try_from(point.semaphore.unwrap_or(0))
        .map_err(|_| io::Error::other("its semaphore is beyond the first 4 GiB of the file, which needs Linux 6.10"))?;
    let at_return = match trigger {
        Trigger::Hit => 0,
        Trigger::Return => RETURN_PROBE,
        Trigger::Session => return Err(io::Error::other("a perf event has no sessions")),
    };
    let attr = PerfEventAttr {
        kind,
        size: size_of::<PerfEventAttr>() as u32,
        config: u64::from(semaphore) << 32 | at_return,
        uprobe_path: path.as_ptr() as u64,
        probe_offset: point.offset,
        ..PerfEventAttr::default()
    };
    // A process on any processor, or any process; then the processor has no meaning but must be given.
    let (pid, cpu) = match pid {
        Some(pid) => (libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?, -1),
        None => (-1, 0),
    };
    // SAFETY: `attr` and the path it points to live during the call.
    let event =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC) };
    let event = owned(event)?;
    let attr = LinkCreate {
        program: program.as_raw_fd().cast_unsigned(),
        target: event.as_raw_fd().cast_unsigned(),
        attach_type: BPF_PERF_EVENT,
        cookie_or_path: point.cookie,
        ..LinkCreate::default()
    };
    Ok((link(&attr)?, event))
}

/// The part of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    cookie_or_path: u64,
    offsets: u64,
    semaphores: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    pad: u32,
}

fn multi(
    program: BorrowedFd<'_>,
    trigger: Trigger,
    path: &CString,
    pid: Option<u32>,
    points: &[Point],
) -> io::Result<OwnedFd> {
    let (attach_type, multi_flags) = match trigger {
        Trigger::Hit => (BPF_TRACE_UPROBE_MULTI, 0),
        Trigger::Return => (BPF_TRACE_UPROBE_MULTI, BPF_F_UPROBE_MULTI_RETURN),
        Trigger::Session => (BPF_TRACE_UPROBE_SESSION, 0),
    };
    let offsets: Vec<u64> = points.iter().map(|point| point.offset).collect();
    let semaphores: Vec<u64> = points.iter().map(|point| point.semaphore.unwrap_or(0)).collect();
    let cookies: Vec<u64> = points.iter().map(|point| point.cookie).collect();
    link(&LinkCreate {
        program: program.as_raw_fd().cast_unsigned(),
        attach_type,
        multi_flags,
        cookie_or_path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        semaphores: semaphores.as_ptr() as u64,
        cookies: cookies.as_ptr() as u64,
        count: u32::try_from(points.len()).map_err(io::Error::other)?,
        pid: pid.unwrap_or(0),
        ..LinkCreate::default()
    })
}

/// Creates a link. What the attributes point to must live during the call.
fn link(attr: &LinkCreate) -> io::Result<OwnedFd> {
    // SAFETY: `attr` is a prefix of `union bpf_attr` of the given size, and what it points to lives in the callers.
    owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, std::ptr::from_ref(attr), size_of::<LinkCreate>()) })
}

fn owned(result: c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(result).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: a new file descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
