//! The interpreter fed with events made from recorded sessions: no kernel.

mod accounts;
mod connections;
pub(in crate::network) mod recorded;
mod restart;
mod waiting;
mod whole;

use std::task::Poll;

use chainscope_ebpf::network::{Direction, KernelAccount, Role};
use chainscope_proto::v1::{Message, NetworkAccount, connection_event::Event as ConnectionKind, record::Kind};
use prost::Message as _;
use recorded::{
    INODE, NETNS, Socket, Step, address, bytes_of, identity, p2p_messages, read, synthetic, synthetic_messages,
};

use super::*;
use crate::network::account;

const PID: u32 = 77;

/// Records as they would enter streams, up to a maximum number.
struct Collected {
    records: Vec<(String, Record)>,
    states: Vec<Record>,
    capacity: usize,
    /// Index from 0 of a chunk that is dropped.
    lost_chunk: Option<usize>,
}

impl Default for Collected {
    fn default() -> Self {
        Self { records: Vec::new(), states: Vec::new(), capacity: usize::MAX, lost_chunk: None }
    }
}

impl RecordSink for Collected {
    fn push(&mut self, node: &str, record: Record) -> bool {
        let is_chunk = |record: &Record| matches!(record.kind, Some(Kind::Chunk(_)));
        let nth = || self.records.iter().filter(|(_, known)| is_chunk(known)).count();
        if self.lost_chunk.is_some() && is_chunk(&record) && self.lost_chunk == Some(nth()) {
            self.lost_chunk = None;
            return false;
        }
        if self.capacity == 0 {
            return false;
        }
        self.capacity -= 1;
        self.records.push((node.to_owned(), record));
        true
    }

    fn merge(&mut self, _node: &str, record: Record) {
        self.states.push(record);
    }
}

struct OneKey(Result<Arc<Identity>, String>);

impl Keyring for OneKey {
    fn identity(&mut self, public_key: &[u8; 32]) -> Poll<Result<Arc<Identity>, String>> {
        match &mut self.0 {
            Ok(identity) => identity.identity(public_key),
            Err(reason) => Poll::Ready(Err(reason.clone())),
        }
    }
}

impl Keys for OneKey {
    fn take_events(&mut self) -> Vec<IdentityEvent> {
        Vec::new()
    }
}

type Bench = Interpreter<Collected>;

fn bench(keys: OneKey) -> Bench {
    bench_with(keys, TargetLimits::default(), Waiting::default(), Store::Both)
}

fn bench_with(keys: OneKey, limits: TargetLimits, waiting: Waiting, store: Store) -> Bench {
    let mut bench = Interpreter::new(Collected::default(), Clock::with_offset(1_000), limits, waiting);
    let target = Target {
        node: "node".into(),
        label: "pid 77".into(),
        pid: PID,
        p2p_port: Some(9732),
        store,
        keys: Box::new(keys),
    };
    bench.start_target(target);
    bench
}

impl Bench {
    fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.sink.records.iter().filter_map(|(_, record)| record.kind.as_ref())
    }

    fn messages(&self) -> Vec<&Message> {
        self.kinds().filter_map(|kind| if let Kind::Message(message) = kind { Some(message) } else { None }).collect()
    }

    fn connection_events(&self) -> Vec<(u64, &ConnectionKind)> {
        self.kinds()
            .filter_map(|kind| match kind {
                Kind::Connection(event) => Some((event.connection, event.event.as_ref().unwrap())),
                _ => None,
            })
            .collect()
    }

    /// The newest account, once the kernel's is as given; its equations were checked where it was made.
    fn account_now(&mut self, kernel: KernelAccount) -> NetworkAccount {
        self.account(PID, kernel);
        match self.sink.states.last().unwrap().kind.clone() {
            Some(Kind::NetworkAccount(account)) => account,
            other => panic!("{other:?}"),
        }
    }
}

fn seen(bytes: u64) -> KernelAccount {
    KernelAccount { seen: bytes, captured: bytes, ..KernelAccount::default() }
}
