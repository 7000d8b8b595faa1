//! Random sequences of operations of a spool and its aggregator: each appended record is delivered once or counted.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Append {
        node: usize,
        sizes: Vec<usize>,
    },
    Sync,
    Send,
    Commit,
    Ack,
    Reconnect,
    /// A kill (255) or a power cut: this part of 255 of the unsynced bytes is on the disk.
    Kill(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_usize, prop::collection::vec(0..3_000_usize, 1..6)).prop_map(|(node, sizes)| Step::Append { node, sizes }),
        4 => Just(Step::Sync),
        3 => Just(Step::Send),
        2 => Just(Step::Commit),
        2 => Just(Step::Ack),
        1 => Just(Step::Reconnect),
        1 => any::<u8>().prop_map(Step::Kill),
    ]
}

struct World {
    dir: tempfile::TempDir,
    spool: Spool,
    durable: Durable,
    batches_in_flight: VecDeque<Batch>,
    acks_in_flight: VecDeque<(String, u64)>,
    /// Ids of the appended records, in order, and the number of the last of them that are not synced.
    written: BTreeMap<&'static str, (Vec<i64>, usize)>,
    next_id: i64,
}

const LIMIT: u64 = 200_000;

impl World {
    fn new() -> Self {
        let dir = folder();
        let spool = open(dir.path(), LIMIT);
        let mut world = Self {
            dir,
            spool,
            durable: Durable::default(),
            batches_in_flight: VecDeque::new(),
            acks_in_flight: VecDeque::new(),
            written: NODES.map(|node| (node, (Vec::new(), 0))).into(),
            next_id: 0,
        };
        world.reconnect();
        world
    }

    fn reconnect(&mut self) {
        self.batches_in_flight.clear();
        self.acks_in_flight.clear();
        let others = self.spool.begin_session(&self.durable.marks(), &self.spool.names());
        assert!(others.is_empty(), "{others:?}");
    }

    fn sync(&mut self) {
        sync(&mut self.spool);
        for (_, unsynced) in self.written.values_mut() {
            *unsynced = 0;
        }
    }

    fn kill(&mut self, part: u8) {
        let tails: Vec<_> = self
            .spool
            .streams
            .by_node
            .iter()
            .map(|(node, stream)| (node.clone(), stream.tail(), stream.written()))
            .collect();
        for (_, tail, _) in &tails {
            if let Some((path, synced, length)) = tail {
                let cut = synced + (length - synced) * u64::from(part) / 255;
                fs::OpenOptions::new().write(true).open(path).unwrap().set_len(cut).unwrap();
            }
        }
        self.spool = open(self.dir.path(), LIMIT);
        for (node, _, before) in tails {
            let survived = self.spool.streams.by_node[&node].written();
            let (ids, unsynced) = self.written.get_mut(node.as_str()).unwrap();
            let gone = usize::try_from(before - survived).unwrap();
            assert!(gone <= *unsynced, "{gone} of {unsynced} unsynced records are gone");
            assert!(part < 255 || gone == 0, "a killed process loses nothing that it wrote");
            ids.truncate(ids.len() - gone);
            *unsynced = 0;
        }
        self.reconnect();
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Append { node, sizes } => {
                let node = NODES[*node];
                let records: Vec<Record> = sizes.iter().zip(self.next_id..).map(|(size, id)| fact(id, *size)).collect();
                self.next_id += records.len() as i64;
                // A writer syncs what it wrote before it writes more than one batch to a stream.
                if self.written[node].1 > 0 {
                    self.sync();
                }
                self.spool.append(node, &records);
                let (ids, unsynced) = self.written.get_mut(node).unwrap();
                ids.extend(records.iter().map(|record| record.time_ns));
                *unsynced = records.len();
            }
            Step::Sync => self.sync(),
            Step::Send => self.batches_in_flight.extend(self.spool.next_batch(&BTreeSet::new())),
            Step::Commit => {
                if let Some(batch) = self.batches_in_flight.pop_front() {
                    let mark = self.durable.take(&batch);
                    self.acks_in_flight.push_back((batch.node, mark));
                }
            }
            Step::Ack => {
                if let Some((node, mark)) = self.acks_in_flight.pop_front() {
                    self.spool.acknowledge(&node, mark).unwrap();
                }
            }
            Step::Reconnect => self.reconnect(),
            Step::Kill(part) => self.kill(*part),
        }
        assert!(self.spool.bytes() <= LIMIT, "{} bytes", self.spool.bytes());
        assert_eq!(self.spool.pending_loss_ns(), None, "old records can always be dropped");
    }

    fn drain(&mut self) {
        self.sync();
        self.spool.write_pending_losses();
        self.sync();
        self.reconnect();
        while !self.spool.is_empty() {
            let batch = self.spool.next_batch(&BTreeSet::new());
            assert!(batch.is_some() || !self.batches_in_flight.is_empty(), "records are pending, but nothing is sent");
            self.batches_in_flight.extend(batch);
            let batch = self.batches_in_flight.pop_front().unwrap();
            let mark = self.durable.take(&batch);
            self.spool.acknowledge(&batch.node, mark).unwrap();
        }
    }

    fn check(&self) {
        for node in NODES {
            let (ids, _) = &self.written[node];
            let mut left = ids.as_slice();
            for record in self.durable.stream(node) {
                let covered = match &record.kind {
                    Some(Kind::Loss(loss)) => {
                        assert!(!loss.amount_unknown, "{loss:?}");
                        let count = usize::try_from(loss.records).unwrap();
                        assert_eq!(left[..count].last(), Some(&loss.to_ns), "{loss:?}");
                        count
                    }
                    _ => 1,
                };
                if covered == 1 || !losses(std::slice::from_ref(record)).is_empty() {
                    let first =
                        losses(std::slice::from_ref(record)).first().map_or(record.time_ns, |loss| loss.from_ns);
                    assert_eq!(left.first(), Some(&first));
                }
                left = &left[covered..];
            }
            assert!(left.is_empty(), "{node}: {left:?} are neither there nor lost");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn each_appended_record_is_delivered_once_or_counted(steps in prop::collection::vec(step(), 0..150)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
        }
        world.drain();
        world.check();
    }
}
