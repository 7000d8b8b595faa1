//! Sessions that wait for an identity, which is read on another thread.

use std::{sync::Arc, time::Instant};

use chainscope_tezos::Identity;

use super::{Interpreter, context, session::Session};
use crate::{pillar::RecordSink, targets::identity::IdentityAnswer};

/// Maximum number of ended sessions that wait for their identity.
const MAX_ENDED: usize = 64;

/// A session whose connection ended while it waits for its identity.
pub(super) struct EndedSession {
    pub(super) session: Session,
    /// Final stream offsets, sent and received.
    pub(super) ends: Option<(u64, u64)>,
    pub(super) by: &'static str,
    pub(super) time: i64,
}

impl<S: RecordSink> Interpreter<S> {
    /// Whether the answer of a read of the target's identity is awaited.
    pub(crate) fn is_reading_identity(&self, pid: u32) -> bool {
        self.targets.get(&pid).is_some_and(|observed| observed.target.keys.is_reading())
    }

    /// Whether any session waits for its identity.
    pub(crate) fn awaits_identities(&self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "the order does not matter")]
        let mut sessions = self.sessions.values();
        !self.ended.is_empty() || sessions.any(|session| session.awaited_identity().is_some())
    }

    /// Takes an answer. Returns false if sessions of the target have to wait for another one.
    pub(crate) fn identity_read(&mut self, answer: IdentityAnswer) -> bool {
        let pid = answer.pid;
        let Some(observed) = self.targets.get_mut(&pid) else { return true };
        let Some(outcome) = observed.target.keys.take_answer(answer) else { return false };
        self.resolve_identity(pid, outcome.err());
        true
    }

    /// Ends the wait for reads that take too long. Returns their processes.
    pub(crate) fn expire_identities(&mut self, now: Instant) -> Vec<u32> {
        let late = |(pid, observed): (&u32, &mut super::Observed)| Some((*pid, observed.target.keys.expire(now)?));
        let late: Vec<(u32, String)> = self.targets.iter_mut().filter_map(late).collect();
        late.into_iter()
            .map(|(pid, reason)| {
                self.resolve_identity(pid, Some(reason));
                pid
            })
            .collect()
    }

    /// Ends the wait of the target's sessions. `reason`: why there is no identity that is not known.
    pub(super) fn resolve_identity(&mut self, pid: u32, reason: Option<String>) {
        let reason = reason.unwrap_or_else(|| "of another node".to_owned());
        let time = self.clock.now();
        if let Some(observed) = self.targets.get_mut(&pid) {
            let ended = self.ended.iter_mut().map(|ended| &mut ended.session);
            #[expect(clippy::disallowed_methods, reason = "sorted below")]
            let mut waiting: Vec<_> =
                self.sessions.values_mut().chain(ended).filter(|session| session.pid == pid).collect();
            waiting.sort_unstable_by_key(|session| session.key);
            for session in waiting {
                let Some(key) = session.awaited_identity() else { continue };
                let found: Result<Arc<Identity>, String> =
                    observed.target.keys.known(&key).ok_or_else(|| reason.clone());
                let mut context = context(&mut self.sink, observed, &self.clock, &mut self.verdicts);
                session.set_identity(found, time, &mut context);
                self.has_new_session |= session.is_settled();
                if session.counted.is_some() {
                    observed.recount(session);
                }
            }
        }
        self.finish_ended_of(pid);
        self.emit_identity_events(pid);
    }

    /// Keeps a session until its identity is known. The oldest one is finished without if there are too many.
    pub(super) fn end_later(&mut self, ended: EndedSession) {
        if self.ended.len() >= MAX_ENDED {
            let oldest = self.ended.remove(0);
            self.finish_ended(oldest);
        }
        self.ended.push(ended);
    }

    /// Finishes the ended sessions of a target.
    pub(super) fn finish_ended_of(&mut self, pid: u32) {
        let of_target: Vec<EndedSession> = self.ended.extract_if(.., |ended| ended.session.pid == pid).collect();
        for ended in of_target {
            self.finish_ended(ended);
        }
    }

    pub(super) fn finish_ended(&mut self, ended: EndedSession) {
        let EndedSession { mut session, ends, by, time } = ended;
        let Some(observed) = self.targets.get_mut(&session.pid) else { return };
        let mut context = context(&mut self.sink, observed, &self.clock, &mut self.verdicts);
        session.finish(ends, by, time, &mut context);
        observed.end(&mut session);
    }
}
