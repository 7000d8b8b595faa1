//! Bounds on connections whose handshake is not complete: peers cannot make the agent hold more.

use chainscope_ebpf::network::{SocketId, Verdict};

use super::{Interpreter, context};
use crate::pillar::RecordSink;

impl<S: RecordSink> Interpreter<S> {
    /// Brings the count of undecided connections up to date after an event of this socket.
    pub(super) fn settle(&mut self, pid: u32, socket: SocketId) {
        let (Some(session), Some(observed)) = (self.sessions.get_mut(&socket), self.targets.get_mut(&pid)) else {
            return;
        };
        observed.recount(session);
        self.bound_undecided(pid);
    }

    /// Gives up the oldest undecided connections until the target is within its limits.
    pub(super) fn bound_undecided(&mut self, pid: u32) {
        loop {
            let Some(observed) = self.targets.get_mut(&pid) else { return };
            // Settled and closed sockets are removed from the queue, so that its length stays near the count.
            let sessions = &self.sessions;
            if observed.undecided.len() > 2 * observed.undecided_count + 64 {
                observed
                    .undecided
                    .retain(|socket| sessions.get(socket).is_some_and(|session| session.counted.is_some()));
            }
            let is_within = observed.undecided_count <= self.limits.undecided_connections
                && observed.undecided_bytes <= self.limits.undecided_bytes;
            if is_within {
                return;
            }
            let Some(oldest) = observed.undecided.pop_front() else { return };
            self.give_up(oldest);
        }
    }

    fn give_up(&mut self, socket: SocketId) {
        let Some(session) = self.sessions.get_mut(&socket) else { return };
        let Some(observed) = self.targets.get_mut(&session.pid) else { return };
        if session.counted.is_none() {
            return;
        }
        chainscope_hygiene::warn_limited!(
            node = %observed.target.node,
            "too many open handshakes: the oldest connection is given up"
        );
        let time = self.clock.now();
        let mut context = context(&mut self.sink, observed, &self.clock, &mut self.verdicts);
        session.give_up(time, &mut context);
        observed.recount(session);
        self.verdicts.push((socket, Verdict::LeaveAlone));
    }
}
