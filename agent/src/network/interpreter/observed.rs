//! An observed process with what is counted for it, and the keys of a node's connections.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    time::{Duration, Instant},
};

use chainscope_ebpf::network::{KernelAccount, SocketId};
use chainscope_proto::v1::{NetworkAccount, ReasonCount};
use chainscope_tezos::MemoryBudget;

use super::{Target, session::Session};
use crate::{
    figures::Tally,
    network::account::{Reasons, Totals},
};

/// How often an account that does not change is sent.
const ACCOUNT_INTERVAL: Duration = Duration::from_secs(10);

/// A target with what is counted for it.
pub(super) struct Observed {
    pub(super) target: Target,
    pub(super) totals: Totals,
    pub(super) kernel: KernelAccount,
    /// When `kernel` was read, nanoseconds since 1970.
    pub(super) kernel_ns: i64,
    /// Sockets of its sessions that have not ended.
    pub(super) sockets: BTreeSet<SocketId>,
    /// Sockets whose handshake is not complete, oldest first; settled ones are taken out lazily.
    pub(super) undecided: VecDeque<SocketId>,
    pub(super) undecided_count: usize,
    pub(super) undecided_bytes: u64,
    /// Memory of its other sessions.
    pub(super) memory: MemoryBudget,
    /// Data that did not fit in the budget, as of the last account.
    pub(super) over_memory: Reasons,
    /// Its account as it was sent last.
    sent: NetworkAccount,
    sent_at: Option<Instant>,
}

impl Observed {
    pub(super) fn new(target: Target, now_ns: i64, memory: MemoryBudget) -> Self {
        Self {
            target,
            totals: Totals::default(),
            kernel: KernelAccount::default(),
            kernel_ns: now_ns,
            sockets: BTreeSet::new(),
            undecided: VecDeque::new(),
            undecided_count: 0,
            undecided_bytes: 0,
            memory,
            over_memory: Reasons::default(),
            sent: NetworkAccount::default(),
            sent_at: None,
        }
    }

    /// Whether an account has to be sent: it changed, or the last one was sent a while ago.
    pub(super) fn is_due(&self, account: &NetworkAccount) -> bool {
        *account != self.sent || self.sent_at.is_none_or(|at| at.elapsed() >= ACCOUNT_INTERVAL)
    }

    pub(super) fn set_sent(&mut self, account: &NetworkAccount) {
        self.sent.clone_from(account);
        self.sent_at = Some(Instant::now());
    }

    pub(super) fn tally(&self) -> Tally {
        let account = &self.sent;
        let sum = |reasons: &[ReasonCount]| reasons.iter().map(|reason| reason.count).sum::<u64>();
        let (peer_id, identity_error) = match self.target.keys.state() {
            Ok(peer_id) => (peer_id.to_owned(), String::new()),
            Err(trouble) => (String::new(), trouble.to_owned()),
        };
        Tally {
            messages: account.messages_sent,
            connections_open: account.connections_open,
            bytes_seen: account.bytes_seen,
            bytes_residual: account.bytes_residual,
            bytes_lost: sum(&account.bytes_dropped),
            records_lost: sum(&account.messages_dropped) + account.chunks_dropped,
            over_memory: self.over_memory.clone(),
            last_record_ns: self.totals.last_record_ns,
            peer_id,
            identity_error,
            ..Tally::default()
        }
    }

    /// Brings the count of undecided sessions up to date with one session.
    pub(super) fn recount(&mut self, session: &mut Session) {
        let before = session.counted.take();
        let after = (!session.is_settled()).then(|| session.account().pending);
        self.undecided_count = self.undecided_count + usize::from(after.is_some()) - usize::from(before.is_some());
        self.undecided_bytes = self.undecided_bytes + after.unwrap_or(0) - before.unwrap_or(0);
        session.counted = after;
    }

    /// Counts a session that left the table as undecided no more.
    pub(super) fn uncount(&mut self, session: &mut Session) {
        if let Some(counted) = session.counted.take() {
            self.undecided_count -= 1;
            self.undecided_bytes -= counted;
        }
    }

    /// Adds a session that left the table to the totals.
    pub(super) fn end(&mut self, session: &mut Session) {
        self.uncount(session);
        self.totals.ended += session.account();
        self.totals.connections_open -= 1;
    }
}

/// Connection keys of a node: real-time nanoseconds of the start, each assigned once.
#[derive(Debug, Default)]
pub(super) struct ConnectionKeys {
    given: HashSet<u64>,
    order: VecDeque<u64>,
}

/// Keys remembered for each node. A collision needs two sockets in one nanosecond, or the clock set back to it.
const REMEMBERED_KEYS: usize = 1 << 16;

impl ConnectionKeys {
    pub(super) fn give(&mut self, wanted: u64) -> u64 {
        let mut key = wanted;
        while !self.given.insert(key) {
            key += 1;
        }
        self.order.push_back(key);
        if self.order.len() > REMEMBERED_KEYS
            && let Some(oldest) = self.order.pop_front()
        {
            self.given.remove(&oldest);
        }
        key
    }
}
