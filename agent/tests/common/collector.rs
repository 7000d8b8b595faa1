//! An aggregator in memory: stores the records that agents deliver by stream, and lets tests wait for them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_agent::{Link, Uplink};
use chainscope_profile::{Limits, MergeOutcome, Profile, ProfileData};
use chainscope_proto::v1::{
    Ack, ConnectionEvent, HighWaterMark, MemoryAck, MemoryState, Message, NetworkAccount, Record, RecordReply,
    RecordRequest, TargetEvent, Welcome, connection_event::Event, record::Kind, record_reply::Reply,
    record_request::Request,
};
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc;

/// Time limit of waits on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<(Mutex<Received>, Condvar)>);

type Streams = BTreeMap<String, Vec<Record>>;

#[derive(Default)]
struct Received {
    streams: Streams,
    /// Memory by node and profile.
    profiles: BTreeMap<(String, u64), Profile>,
}

impl Received {
    fn now(&self) -> Delivered {
        let data = |((node, _), profile): (&(String, u64), &Profile)| Some((node.clone(), profile.data()?.clone()));
        Delivered { streams: self.streams.clone(), profiles: self.profiles.iter().filter_map(data).collect() }
    }

    /// Merges a part of a state; returns an acknowledgement after the last part.
    fn take(&mut self, state: MemoryState) -> Option<MemoryAck> {
        let (node, profile) = (state.node.clone(), state.profile);
        let of = self.profiles.entry((node.clone(), profile)).or_default();
        match of.merge(state, &Limits::default()) {
            MergeOutcome::Incomplete => None,
            MergeOutcome::Merged(sequence) => Some(MemoryAck { node, profile, sequence, ..MemoryAck::default() }),
            MergeOutcome::KeyframeRequired(fault) => panic!("{node}: {fault}"),
        }
    }
}

impl Collector {
    /// Serves any number of agents, one after the other.
    pub(crate) fn link(&self) -> Link {
        let collector = self.clone();
        Link::Reopen(Box::new(move || {
            let (requests, incoming) = mpsc::channel(4);
            let (outgoing, replies) = mpsc::channel(4);
            tokio::spawn(collector.clone().serve(incoming, outgoing));
            Some(Uplink { requests, replies })
        }))
    }

    async fn serve(self, mut requests: mpsc::Receiver<RecordRequest>, replies: mpsc::Sender<RecordReply>) {
        while let Some(RecordRequest { request: Some(request) }) = requests.recv().await {
            let reply = {
                let mut kept = self.0.0.lock();
                let Received { streams, .. } = &mut *kept;
                match request {
                    Request::Hello(hello) => {
                        let mark = |node: &String| {
                            let next_sequence = streams.get(node).map_or(0, Vec::len) as u64;
                            HighWaterMark { node: node.clone(), next_sequence }
                        };
                        let marks = hello.nodes.iter().map(mark).collect();
                        Reply::Welcome(Welcome {
                            version: 1,
                            build: "test".to_owned(),
                            high_water_marks: marks,
                            memory: true,
                            ..Welcome::default()
                        })
                    }
                    Request::Batch(batch) => {
                        let stream = streams.entry(batch.node.clone()).or_default();
                        assert_eq!(batch.first_sequence, stream.len() as u64, "stream {}", batch.node);
                        stream.extend(batch.records);
                        Reply::Ack(Ack { node: batch.node, next_sequence: stream.len() as u64 })
                    }
                    Request::Memory(state) => match kept.take(state) {
                        Some(ack) => Reply::Memory(ack),
                        None => continue,
                    },
                }
            };
            self.0.1.notify_all();
            if replies.send(RecordReply { reply: Some(reply) }).await.is_err() {
                return;
            }
        }
    }

    /// Waits until `found` finds something in the delivered records.
    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, mut found: impl FnMut(&Delivered) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        let mut kept = self.0.0.lock();
        loop {
            let delivered = kept.now();
            if let Some(found) = found(&delivered) {
                return found;
            }
            if self.0.1.wait_until(&mut kept, deadline).timed_out() {
                panic!("waited in vain for {what}; delivered: {:#?}", delivered.summary());
            }
        }
    }

    pub(crate) fn now(&self) -> Delivered {
        self.0.0.lock().now()
    }
}

/// The records that have been delivered so far.
pub(crate) struct Delivered {
    streams: Streams,
    profiles: Vec<(String, ProfileData)>,
}

impl Delivered {
    pub(crate) fn nodes(&self) -> Vec<&str> {
        self.streams.keys().map(String::as_str).collect()
    }

    pub(crate) fn kinds(&self, node: &str) -> impl DoubleEndedIterator<Item = &Kind> {
        self.streams.get(node).into_iter().flatten().filter_map(|record| record.kind.as_ref())
    }

    pub(crate) fn connection_events(&self, node: &str) -> Vec<(u64, &Event)> {
        let event = |kind| match kind {
            &Kind::Connection(ConnectionEvent { connection, event: Some(ref event) }) => Some((connection, event)),
            _ => None,
        };
        self.kinds(node).filter_map(event).collect()
    }

    /// (connection, incoming, first chunk, SHA-256) of the messages between peers, in order of these.
    pub(crate) fn messages(&self, node: &str) -> Vec<(u64, bool, u64, Vec<u8>)> {
        let peer = |kind| match kind {
            &Kind::Message(ref message @ Message { .. }) if message.category == "p2p" => {
                Some((message.connection, message.incoming, message.first_chunk, message.sha256.to_vec()))
            }
            _ => None,
        };
        let mut messages: Vec<_> = self.kinds(node).filter_map(peer).collect();
        messages.sort();
        messages
    }

    /// The memory profiles of a node, oldest first.
    pub(crate) fn profiles(&self, node: &str) -> impl DoubleEndedIterator<Item = &ProfileData> {
        self.profiles.iter().filter(move |(of, _)| of == node).map(|(_, data)| data)
    }

    pub(crate) fn target_events(&self, node: &str) -> Vec<&TargetEvent> {
        self.kinds(node)
            .filter_map(|kind| if let Kind::TargetEvent(event) = kind { Some(event) } else { None })
            .collect()
    }

    pub(crate) fn account(&self, node: &str) -> Option<&NetworkAccount> {
        self.kinds(node)
            .rev()
            .find_map(|kind| if let Kind::NetworkAccount(account) = kind { Some(account) } else { None })
    }

    fn summary(&self) -> Vec<String> {
        let line = |(node, stream): (&String, &Vec<Record>)| {
            let counts: Vec<String> = stream
                .iter()
                .filter(|record| !matches!(record.kind, Some(Kind::Chunk(_) | Kind::Message(_))))
                .map(|record| format!("{:?}", record.kind))
                .collect();
            format!("{node}: {} records, of these {}", stream.len(), counts.join("\n  "))
        };
        self.streams.iter().map(line).collect()
    }
}
