//! One non-blocking socket and the behaviour that drives it: each system call is tried first and polled for only after `EAGAIN`.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::behaviour::{Behaviour, Next, Role};
use crate::report::Tally;

/// Why a connection ended; `None`: as its behaviour planned.
pub(crate) type EndReason = Option<String>;

/// A connection, connecting or connected.
pub(crate) struct Connection {
    pub(crate) fd: OwnedFd,
    pub(crate) role: Role,
    pub(crate) behaviour: Box<dyn Behaviour>,
    /// While it connects: when a refusal becomes final.
    pub(crate) connect_deadline: Option<Instant>,
    /// Bytes of the current write(2).
    out: Vec<u8>,
    /// Length of the prefix of `out` that the kernel has taken.
    written: usize,
    done_writing: bool,
    /// A write returned `EAGAIN` since the last readiness event.
    pub(crate) write_blocked: bool,
    pub(crate) sent: Tally,
    pub(crate) received: Tally,
}

/// The result of one attempt to read or write.
pub(crate) enum Progress {
    /// A system call moved bytes.
    Moved,
    /// Nothing to do before the socket is ready.
    Idle,
    /// Nothing to do before that moment.
    Until(Instant),
    /// The connection ended.
    Ended(EndReason),
}

impl Connection {
    /// A connection on `fd`; `connect_deadline` is given while a connect(2) is in progress.
    pub(crate) fn new(
        fd: OwnedFd,
        role: Role,
        behaviour: Box<dyn Behaviour>,
        connect_deadline: Option<Instant>,
    ) -> Self {
        Self {
            fd,
            role,
            behaviour,
            connect_deadline,
            out: Vec::new(),
            written: 0,
            done_writing: false,
            write_blocked: false,
            sent: Tally::default(),
            received: Tally::default(),
        }
    }

    /// One read(2), of as many bytes as the behaviour requests.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Progress {
        let size = self.behaviour.read_size().min(buffer.len());
        if size == 0 {
            return Progress::Idle;
        }
        let Some(space) = buffer.get_mut(..size) else { return Progress::Idle };
        match rustix::io::read(&self.fd, &mut *space) {
            Ok(0) => match self.behaviour.end_of_stream() {
                Ok(true) => Progress::Ended(None),
                Ok(false) if self.done_writing => Progress::Ended(None),
                Ok(false) => Progress::Idle,
                Err(why) => Progress::Ended(Some(why)),
            },
            Ok(length) => {
                let bytes = space.get(..length).unwrap_or_default();
                self.received.add(bytes);
                match self.behaviour.received(bytes) {
                    Ok(()) => Progress::Moved,
                    Err(why) => Progress::Ended(Some(why)),
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.received.again += 1;
                Progress::Idle
            }
            Err(error) => Progress::Ended(Some(format!("read: {error}"))),
        }
    }

    /// One write(2), of what is left of the last one or of what the behaviour sends next.
    pub(crate) fn write(&mut self, released: bool) -> Progress {
        if self.done_writing || self.write_blocked {
            return Progress::Idle;
        }
        if self.written == self.out.len() {
            match self.behaviour.next(Instant::now(), released) {
                Next::Write(bytes) => {
                    self.out = bytes;
                    self.written = 0;
                }
                Next::Wait => return Progress::Idle,
                Next::At(moment) => return Progress::Until(moment),
                Next::Close => return Progress::Ended(None),
                Next::Done => {
                    self.done_writing = true;
                    return match rustix::net::shutdown(&self.fd, Shutdown::Write) {
                        Ok(()) | Err(Errno::NOTCONN) => Progress::Moved,
                        Err(error) => Progress::Ended(Some(format!("shutdown: {error}"))),
                    };
                }
            }
        }
        let rest = self.out.get(self.written..).unwrap_or_default();
        match rustix::io::write(&self.fd, rest) {
            Ok(length) => {
                self.sent.add(rest.get(..length).unwrap_or(rest));
                self.sent.short += u64::from(length < rest.len());
                self.written += length;
                Progress::Moved
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.sent.again += 1;
                self.write_blocked = true;
                Progress::Idle
            }
            Err(error) => Progress::Ended(Some(format!("write: {error}"))),
        }
    }
}
