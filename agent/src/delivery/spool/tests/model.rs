//! A random life of a spool and its aggregator: what entered arrives once or is counted.

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
    /// The process, or with a cut the machine, ends: of what was not synced so many of 256 parts are on the disk.
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
    way_there: VecDeque<Batch>,
    way_back: VecDeque<(String, u64)>,
    /// Ids that were written, in order, and how many of the last of them are not synced.
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
            way_there: VecDeque::new(),
            way_back: VecDeque::new(),
            written: NODES.map(|node| (node, (Vec::new(), 0))).into(),
            next_id: 0,
        };
        world.reconnect();
        world
    }

    fn reconnect(&mut self) {
        self.way_there.clear();
        self.way_back.clear();
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
            Step::Send => self.way_there.extend(self.spool.next_batch(&BTreeSet::new())),
            Step::Commit => {
                if let Some(batch) = self.way_there.pop_front() {
                    let mark = self.durable.take(&batch);
                    self.way_back.push_back((batch.node, mark));
                }
            }
            Step::Ack => {
                if let Some((node, mark)) = self.way_back.pop_front() {
                    self.spool.acknowledge(&node, mark).unwrap();
                }
            }
            Step::Reconnect => self.reconnect(),
            Step::Kill(part) => self.kill(*part),
        }
        assert!(self.spool.bytes() <= LIMIT, "{} bytes", self.spool.bytes());
        assert_eq!(self.spool.pending_loss_ns(), None, "something old can always go");
    }

    fn drain(&mut self) {
        self.sync();
        self.spool.write_pending_losses();
        self.sync();
        self.reconnect();
        while !self.spool.is_empty() {
            let batch = self.spool.next_batch(&BTreeSet::new());
            assert!(batch.is_some() || !self.way_there.is_empty(), "something waits, but nothing is sent");
            self.way_there.extend(batch);
            let batch = self.way_there.pop_front().unwrap();
            let mark = self.durable.take(&batch);
            self.spool.acknowledge(&batch.node, mark).unwrap();
        }
    }

    fn check(&self) {
        for node in NODES {
            let (ids, _) = &self.written[node];
            let mut left = ids.as_slice();
            for record in self.durable.stream(node) {
                let told = match &record.kind {
                    Some(Kind::Loss(loss)) => {
                        assert!(!loss.amount_unknown, "{loss:?}");
                        let count = usize::try_from(loss.records).unwrap();
                        assert_eq!(left[..count].last(), Some(&loss.to_ns), "{loss:?}");
                        count
                    }
                    _ => 1,
                };
                if told == 1 || !losses(std::slice::from_ref(record)).is_empty() {
                    let first =
                        losses(std::slice::from_ref(record)).first().map_or(record.time_ns, |loss| loss.from_ns);
                    assert_eq!(left.first(), Some(&first));
                }
                left = &left[told..];
            }
            assert!(left.is_empty(), "{node}: {left:?} are neither there nor lost");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn what_entered_arrives_once_or_is_counted(steps in prop::collection::vec(step(), 0..150)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
        }
        world.drain();
        world.check();
    }
}
