//! Targets of the interpreter: start, change, end, and their accounts.

use std::sync::Arc;

use chainscope_ebpf::network::KernelAccount;
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_tezos::StreamStats;

use super::{Interpreter, Target, context, observed::Observed, records};
use crate::{
    config::Store,
    figures::Tally,
    network::account,
    pillar::RecordSink,
    targets::identity::{IdentityEvent, Source},
};

impl<S: RecordSink> Interpreter<S> {
    /// Begins to observe a process.
    pub(crate) fn start_target(&mut self, target: Target) {
        let (node, pid) = (Arc::clone(&target.node), target.pid);
        for key in self.waiting.keys_of(&node) {
            self.keys.entry(Arc::clone(&node)).or_default().give(key);
        }
        let observed = Observed::new(target, self.clock.now(), self.memory.part(self.limits.session_bytes));
        self.targets.insert(pid, observed);
        self.emit_identity_events(pid);
    }

    /// Changes the options of a target; its node stays.
    pub(crate) fn update_target(&mut self, pid: u32, p2p_port: Option<u16>, store: Store, identity: Source) {
        let Some(observed) = self.targets.get_mut(&pid) else { return };
        (observed.target.p2p_port, observed.target.store) = (p2p_port, store);
        observed.target.keys.set_source(identity);
        if !observed.target.keys.is_reading() {
            let reason = observed.target.keys.state().err().map(str::to_owned);
            self.resolve_identity(pid, reason);
        }
        self.emit_identity_events(pid);
    }

    /// Reads the identities of targets that have none, or of all: files may have changed.
    pub(crate) fn reload_identities(&mut self, all: bool) {
        let pids: Vec<u32> = self.targets.keys().copied().collect();
        for pid in pids {
            let Some(observed) = self.targets.get_mut(&pid) else { continue };
            if all || observed.target.keys.state().is_err() {
                observed.target.keys.reload();
                self.emit_identity_events(pid);
            }
        }
    }

    /// Counts bytes of a target that were captured and dropped before they reached the interpreter.
    pub(crate) fn add_dropped(&mut self, pid: u32, reason: &'static str, bytes: u64) {
        if let Some(observed) = self.targets.get_mut(&pid)
            && bytes > 0
        {
            observed.totals.bytes_taken += bytes;
            *observed.totals.bytes_dropped.entry(reason).or_default() += bytes;
        }
    }

    /// The tally of a target, as of its last account.
    pub(crate) fn tally(&self, pid: u32) -> Option<Tally> {
        self.targets.get(&pid).map(Observed::tally)
    }

    /// Records an event of a target.
    pub(crate) fn report(&mut self, pid: u32, event: &str, detail: String) {
        let Some(observed) = self.targets.get(&pid) else { return };
        let (node, label) = (Arc::clone(&observed.target.node), Arc::clone(&observed.target.label));
        self.push(&node, records::target_event(self.clock.now(), &label, event, pid, detail));
    }

    /// Ends the observation of a process and its connections. Returns its last tally.
    pub(crate) fn end_target(&mut self, pid: u32, by: &str, event: &str) -> Option<Tally> {
        let sockets =
            self.targets.get_mut(&pid).map(|observed| std::mem::take(&mut observed.sockets)).unwrap_or_default();
        let time = self.clock.now();
        self.finish_ended_of(pid);
        for socket in sockets {
            let Some(mut session) = self.sessions.remove(&socket) else { continue };
            let Some(observed) = self.targets.get_mut(&pid) else { continue };
            let mut context = context(&mut self.sink, observed, &self.clock, &mut self.verdicts);
            session.finish(None, by, time, &mut context);
            observed.end(&mut session);
        }
        self.send_account(pid);
        let observed = self.targets.remove(&pid)?;
        let (tally, target) = (observed.tally(), observed.target);
        self.push(&target.node, records::target_event(time, &target.label, event, pid, String::new()));
        Some(tally)
    }

    /// Takes the kernel's account of a target, read after every event given so far was taken from the ring, and sends
    /// the target's account if it changed.
    pub(crate) fn account(&mut self, pid: u32, kernel: KernelAccount) {
        let Some(observed) = self.targets.get_mut(&pid) else { return };
        let time = self.clock.now();
        let node = Arc::clone(&observed.target.node);
        let label = Arc::clone(&observed.target.label);
        let losses = records::kernel_losses((observed.kernel_ns, time), &label, &observed.kernel, &kernel);
        (observed.kernel, observed.kernel_ns) = (kernel, time);
        for loss in losses {
            self.push(&node, loss);
        }
        self.send_account(pid);
    }

    /// Sends the account of a target if it changed, or if the last one was sent a while ago.
    pub(super) fn send_account(&mut self, pid: u32) {
        let Some(observed) = self.targets.get_mut(&pid) else { return };
        let open = observed.sockets.iter().filter_map(|socket| self.sessions.get(socket));
        let ended = self.ended.iter().map(|ended| &ended.session).filter(|session| session.pid == pid);
        let mut live = StreamStats::default();
        for session in open.chain(ended) {
            live += session.account();
        }
        let account = account::network_account(&observed.kernel, &observed.totals, &live);
        #[cfg(any(test, debug_assertions))]
        assert_eq!(account::broken_equation(&account), None, "{account:?}");
        observed.over_memory = account::over_memory(&observed.totals, &live);
        if !observed.is_due(&account) {
            return;
        }
        observed.set_sent(&account);
        let record = Record {
            time_ns: self.clock.now(),
            target: observed.target.label.to_string(),
            kind: Some(Kind::NetworkAccount(account)),
        };
        self.sink.merge(&observed.target.node, record);
    }

    /// Records and logs the events of a target's identity.
    pub(super) fn emit_identity_events(&mut self, pid: u32) {
        let Some(observed) = self.targets.get_mut(&pid) else { return };
        let (node, label) = (Arc::clone(&observed.target.node), Arc::clone(&observed.target.label));
        for event in observed.target.keys.take_events() {
            let time = self.clock.now();
            let record = match event {
                IdentityEvent::Found(peer_id) => {
                    tracing::info!(%node, pid, peer_id, "identity read");
                    records::target_event(time, &label, "identity", pid, peer_id)
                }
                IdentityEvent::Failed(trouble) => {
                    chainscope_hygiene::warn_limited!(%node, pid, "{trouble}");
                    records::target_event(time, &label, "identity error", pid, trouble)
                }
            };
            self.push(&node, record);
        }
    }
}
