//! The memory queue against a model aggregator: sequences are dense, and each fact is delivered exactly once or counted in
//! exactly one loss.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use chainscope_proto::v1::{Batch, Chunk, HighWaterMark, NetworkAccount, Record, TargetEvent, record::Kind};
use proptest::prelude::*;

use super::*;

const NODES: [&str; 2] = ["a", "b"];

/// The durable records of the model aggregator, by node.
#[derive(Default)]
struct Durable(BTreeMap<String, Vec<Record>>);

impl Durable {
    fn take(&mut self, batch: &Batch) {
        let stream = self.0.entry(batch.node.clone()).or_default();
        let mark = stream.len() as u64;
        assert!(batch.first_sequence <= mark, "hole before {} at {mark}", batch.first_sequence);
        for (place, record) in batch.records.iter().enumerate() {
            match stream.get(usize::try_from(batch.first_sequence).unwrap() + place) {
                Some(known) => assert_eq!(known, record, "a resend differs"),
                None => stream.push(record.clone()),
            }
        }
    }

    fn marks(&self) -> Vec<HighWaterMark> {
        let mark = |(node, stream): (&String, &Vec<Record>)| HighWaterMark {
            node: node.clone(),
            next_sequence: stream.len() as u64,
        };
        self.0.iter().map(mark).collect()
    }
}

fn fact(id: i64, size: usize) -> Record {
    let event = TargetEvent { event: "x".repeat(size), pid: 0, detail: String::new() };
    Record { time_ns: id, target: "t".to_owned(), kind: Some(Kind::TargetEvent(event)) }
}

fn chunk(id: i64, size: usize) -> Record {
    let chunk = Chunk { plain: vec![b'x'; size].into(), ..Chunk::default() };
    Record { time_ns: id, target: "t".to_owned(), kind: Some(Kind::Chunk(chunk)) }
}

fn state(target: u8, value: u64) -> Record {
    let account = NetworkAccount { bytes_seen: value, ..Default::default() };
    Record { time_ns: 0, target: format!("t{target}"), kind: Some(Kind::NetworkAccount(account)) }
}

#[test]
fn a_fact_that_can_wait_leaves_half_of_the_space_and_is_not_counted() {
    let mut queue = MemoryQueue::new(100_000);
    queue.open("a", Some(0));
    let mut accepted = 0;
    while let Ok(number) = queue.offer("a", chunk(0, 1000)) {
        accepted += 1;
        assert_eq!(number, accepted);
    }
    assert!((45_000..=50_000).contains(&queue.bytes()), "{}", queue.bytes());
    assert!(queue.push("a", chunk(0, 30_000)), "what cannot wait finds space");
    assert_eq!((queue.durable("a"), queue.status()[0].dropped.records), (0, 0));
    // It is accepted again once records are durable.
    let batch = queue.next_batch(&BTreeSet::new()).unwrap();
    queue.acknowledge("a", batch.records.len() as u64).unwrap();
    assert_eq!(queue.durable("a"), accepted + 1);
    assert_eq!(queue.offer("a", chunk(0, 1000)).unwrap(), accepted + 2);
    // More than half of the space, and more than all of it, which is a loss.
    queue.offer("a", chunk(0, 60_000)).unwrap_err();
    queue.offer("a", chunk(0, 200_000)).unwrap();
    assert_eq!(queue.status()[0].dropped.records, 1);
    queue.offer("b", chunk(0, 1)).unwrap_err();
}

#[derive(Debug, Clone)]
enum Step {
    Push {
        node: usize,
        size: usize,
        is_chunk: bool,
    },
    State {
        node: usize,
        target: u8,
        value: u64,
    },
    Send,
    /// The aggregator makes this number of the batches in flight durable.
    Commit(usize),
    /// The agent receives this number of acknowledgements.
    Ack(usize),
    /// The connection is cut; everything in flight is lost.
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..2_usize, 0..600_usize).prop_map(|(node, size)| Step::Push { node, size, is_chunk: true }),
        3 => (0..2_usize, 0..300_usize).prop_map(|(node, size)| Step::Push { node, size, is_chunk: false }),
        2 => (0..2_usize, 0..3_u8, any::<u64>()).prop_map(|(node, target, value)| Step::State { node, target, value }),
        4 => Just(Step::Send),
        3 => (1..4_usize).prop_map(Step::Commit),
        3 => (1..4_usize).prop_map(Step::Ack),
        1 => Just(Step::Reconnect),
    ]
}

/// The queue, the network and the aggregator.
struct World {
    streams: MemoryQueue,
    durable: Durable,
    batches_in_flight: VecDeque<Batch>,
    acks_in_flight: VecDeque<(String, u64)>,
    /// Whether each pushed fact, by its id, was accepted.
    pushed: BTreeMap<&'static str, Vec<bool>>,
    last_state: BTreeMap<(&'static str, u8), u64>,
}

impl World {
    fn new() -> Self {
        let mut streams = MemoryQueue::new(8_000);
        for node in NODES {
            streams.open(node, None);
        }
        let mut world = Self {
            streams,
            durable: Durable::default(),
            batches_in_flight: VecDeque::new(),
            acks_in_flight: VecDeque::new(),
            pushed: BTreeMap::new(),
            last_state: BTreeMap::new(),
        };
        world.reconnect();
        world
    }

    fn reconnect(&mut self) {
        self.batches_in_flight.clear();
        self.acks_in_flight.clear();
        let renumbered = self.streams.begin_session(&self.durable.marks(), &self.streams.names());
        assert!(renumbered.is_empty(), "{renumbered:?}");
    }

    fn commit(&mut self) {
        if let Some(batch) = self.batches_in_flight.pop_front() {
            self.durable.take(&batch);
            let mark = self.durable.0.get(&batch.node).map_or(0, |stream| stream.len() as u64);
            self.acks_in_flight.push_back((batch.node, mark));
        }
    }

    fn ack(&mut self) {
        if let Some((node, mark)) = self.acks_in_flight.pop_front() {
            self.streams.acknowledge(&node, mark).unwrap();
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Push { node, size, is_chunk } => {
                let node = NODES[node];
                let pushed = self.pushed.entry(node).or_default();
                let id = pushed.len() as i64;
                let record = if is_chunk { chunk(id, size) } else { fact(id, size) };
                pushed.push(self.streams.push(node, record));
            }
            Step::State { node, target, value } => {
                self.last_state.insert((NODES[node], target), value);
                self.streams.merge(NODES[node], state(target, value));
            }
            Step::Send => self.batches_in_flight.extend(self.streams.next_batch(&BTreeSet::new())),
            Step::Commit(count) => (0..count).for_each(|_| self.commit()),
            Step::Ack(count) => (0..count).for_each(|_| self.ack()),
            Step::Reconnect => self.reconnect(),
        }
    }

    fn drain(&mut self) {
        self.reconnect();
        while !self.streams.is_empty() {
            while let Some(batch) = self.streams.next_batch(&BTreeSet::new()) {
                self.batches_in_flight.push_back(batch);
            }
            assert!(!self.batches_in_flight.is_empty(), "records are pending, but nothing is sent");
            while !self.batches_in_flight.is_empty() {
                self.commit();
            }
            while !self.acks_in_flight.is_empty() {
                self.ack();
            }
        }
    }

    fn check(&self) {
        for node in NODES {
            let stream = self.durable.0.get(node).cloned().unwrap_or_default();
            // Each id in order, as a fact or within a loss.
            let mut received = Vec::new();
            for record in &stream {
                match &record.kind {
                    Some(Kind::TargetEvent(_) | Kind::Chunk(_)) => {
                        assert_eq!(record.time_ns, received.len() as i64);
                        received.push(true);
                    }
                    Some(Kind::Loss(loss)) => {
                        assert_eq!(loss.from_ns, received.len() as i64);
                        received.extend((loss.from_ns..=loss.to_ns).map(|_| false));
                        assert_eq!(loss.records, (loss.from_ns..=loss.to_ns).count() as u64);
                    }
                    _ => {}
                }
            }
            assert_eq!(received, self.pushed.get(node).cloned().unwrap_or_default());
            for (&(_, target), value) in self.last_state.iter().filter(|((of, _), _)| *of == node) {
                let newest = stream.iter().rev().find_map(|record| match &record.kind {
                    Some(Kind::NetworkAccount(account)) if record.target == format!("t{target}") => {
                        Some(account.bytes_seen)
                    }
                    _ => None,
                });
                assert_eq!(newest, Some(*value), "the last state of t{target} did not arrive");
            }
        }
    }
}

proptest! {
    #[test]
    fn each_fact_arrives_once_or_is_counted(steps in prop::collection::vec(step(), 0..400)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
        }
        world.drain();
        world.check();
    }
}

#[test]
fn a_full_stream_drops_the_newest_facts_and_does_not_affect_others() {
    let mut streams = MemoryQueue::new(20_000);
    streams.open("loud", Some(0));
    streams.open("quiet", Some(0));
    let taken = (0..1_000).filter(|id| streams.push("loud", fact(*id, 100))).count();
    assert!((10..100).contains(&taken), "{taken}");
    assert!(streams.push("quiet", fact(1, 100)));
    let loud = streams.status().into_iter().find(|stream| stream.node == "loud").unwrap();
    assert_eq!(loud.dropped.records, 1_000 - taken as u64);

    // Both are served in turn; once the stream has free space the loss is its next record.
    let (first, second) =
        (streams.next_batch(&BTreeSet::new()).unwrap(), streams.next_batch(&BTreeSet::new()).unwrap());
    assert_ne!(first.node, second.node);
    streams.acknowledge("loud", taken as u64).unwrap();
    let batch = std::iter::from_fn(|| streams.next_batch(&BTreeSet::new())).find(|batch| batch.node == "loud").unwrap();
    assert_eq!(batch.first_sequence, taken as u64);
    let Some(Kind::Loss(loss)) = &batch.records[0].kind else { panic!("{:?}", batch.records[0]) };
    assert_eq!((loss.records, loss.from_ns, loss.to_ns), (1_000 - taken as u64, taken as i64, 999));
}

#[test]
fn a_stream_full_of_chunks_accepts_connection_events() {
    let mut streams = MemoryQueue::new(80_000);
    streams.open("a", Some(0));
    let taken = (0..1_000).take_while(|id| streams.push("a", chunk(*id, 500))).count();
    assert!((80..140).contains(&taken), "{taken}");
    let mut id = taken as i64;
    for _ in 0..10 {
        assert!(!streams.push("a", chunk(id + 1, 1)), "chunks wait until half of the stream is free");
        assert!(streams.push("a", fact(id + 2, 50)));
        id += 2;
    }
    // Its share is limited for them too.
    while streams.push("a", fact(id + 1, 50)) {
        id += 1;
        assert!(id < 1_000);
    }
    let status = streams.status().remove(0);
    assert!(status.pending_bytes <= 80_000, "{status:?}");
    assert_eq!(status.dropped.records, 12);

    let batch = streams.next_batch(&BTreeSet::new()).unwrap();
    let is_loss: Vec<bool> =
        batch.records[taken..].iter().map(|record| matches!(record.kind, Some(Kind::Loss(_)))).collect();
    assert_eq!(is_loss[..4], [true, false, true, false], "a loss precedes later records");
    streams.acknowledge("a", batch.records.len() as u64).unwrap();
    assert!(streams.push("a", chunk(id + 1, 500)), "half of the stream is free");
}

#[test]
fn batches_stay_below_a_mebibyte_unless_one_record_is_larger() {
    let mut streams = MemoryQueue::new(64 << 20);
    streams.open("a", Some(7));
    for id in 0..40 {
        assert!(streams.push("a", fact(id, 70_000)));
    }
    assert!(streams.push("a", fact(40, 3 << 20)));
    let mut expected = 7;
    while let Some(batch) = streams.next_batch(&BTreeSet::new()) {
        assert_eq!(batch.first_sequence, expected);
        expected += batch.records.len() as u64;
        let size = prost::Message::encoded_len(&batch);
        assert!(
            size <= crate::delivery::batch::MAX_BATCH_BYTES || batch.records.len() == 1,
            "{size} with {}",
            batch.records.len()
        );
    }
    assert_eq!(expected, 7 + 41);
}

#[test]
fn nothing_is_sent_before_the_high_water_mark_is_known() {
    let mut streams = MemoryQueue::new(1 << 20);
    streams.open("a", None);
    assert!(streams.push("a", fact(1, 1)));
    assert_eq!(streams.next_batch(&BTreeSet::new()), None);
    let mark = HighWaterMark { node: "a".to_owned(), next_sequence: 41 };
    assert!(streams.begin_session(&[mark], &["a".to_owned()]).is_empty());
    assert_eq!(streams.next_batch(&BTreeSet::new()).unwrap().first_sequence, 41);
}

#[test]
fn a_stream_follows_an_aggregator_that_lost_its_database() {
    let mut streams = MemoryQueue::new(1 << 20);
    streams.open("a", Some(10));
    for id in 0..3 {
        assert!(streams.push("a", fact(id, 1)));
    }
    streams.next_batch(&BTreeSet::new()).unwrap();
    streams.acknowledge("a", 12).unwrap();
    assert_eq!(streams.begin_session(&[], &["a".to_owned()]), ["a"]);
    let batch = streams.next_batch(&BTreeSet::new()).unwrap();
    assert_eq!((batch.first_sequence, batch.records.len()), (0, 1));
}

#[test]
fn an_acknowledgement_of_unsent_records_is_an_error() {
    let mut streams = MemoryQueue::new(1 << 20);
    streams.open("a", Some(0));
    assert!(streams.push("a", fact(1, 1)));
    let error = streams.acknowledge("a", 1).unwrap_err().to_string();
    assert_eq!(error, "stream of node \"a\": sequence 1 was acknowledged, 0 is the next one to be sent");
}

#[test]
fn only_streams_in_use_have_a_share() {
    let mut streams = MemoryQueue::new(100_000);
    for stream in 0..100 {
        streams.open(&format!("old{stream}"), Some(0));
    }
    assert!(!streams.push("old0", fact(1, 1_000)), "a hundredth of the memory");
    streams.expect(&BTreeSet::from(["old1".to_owned()]));
    assert!(streams.push("old1", fact(1, 40_000)), "half of it: one is expected, one has a loss to report");
    assert!(streams.push("old2", fact(1, 30_000)), "a record of a node that is not expected is accepted");
    assert!(!streams.push("old1", fact(2, 1_000)), "and so there are three");
}
