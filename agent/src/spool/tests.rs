//! The spool against a model aggregator and a model disk: whatever is dropped, killed or cut, numbers are dense, a resend
//! is the same, and each record that entered arrives once or is counted in one loss.

use std::{
    collections::{BTreeMap, VecDeque},
    os::unix::fs::PermissionsExt as _,
};

use chainscope_proto::v1::{Chunk, Loss, NetworkAccount, record::Kind};
use proptest::prelude::*;

use super::{segment::Header, *};

const NODES: [&str; 2] = ["a", "b"];
const EPOCH: Epoch = Epoch([7; 16]);
const NOW: i64 = 1_000_000;

/// In memory where there is such a place: what a sync is good for is not tried here, how often it is done costs time.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn fact(id: i64, size: usize) -> Record {
    let chunk = Chunk { plain: vec![b'x'; size].into(), ..Chunk::default() };
    Record { time_ns: id, target: "t".to_owned(), kind: Some(Kind::Chunk(chunk)) }
}

fn account(value: u64) -> Record {
    let account = NetworkAccount { bytes_seen: value, ..Default::default() };
    Record { time_ns: 0, target: "t".to_owned(), kind: Some(Kind::NetworkAccount(account)) }
}

fn losses(records: &[Record]) -> Vec<&Loss> {
    records.iter().filter_map(|r| if let Some(Kind::Loss(loss)) = &r.kind { Some(loss) } else { None }).collect()
}

fn open(dir: &Path, limit: u64) -> Spool {
    let mut spool = Spool::open(dir, &EPOCH, limit, NOW).unwrap();
    for node in NODES {
        spool.open_lane(node, true).unwrap();
    }
    spool
}

fn sync(spool: &mut Spool) {
    for (node, sync) in spool.unsynced() {
        sync.run().unwrap();
        spool.synced(&node, true);
    }
}

/// What the aggregator keeps of each lane.
#[derive(Default)]
struct Durable(BTreeMap<String, Vec<Record>>);

impl Durable {
    fn take(&mut self, batch: &Batch) -> u64 {
        let lane = self.0.entry(batch.node.clone()).or_default();
        assert!(batch.first_sequence <= lane.len() as u64, "a hole before {}", batch.first_sequence);
        for (place, record) in batch.records.iter().enumerate() {
            match lane.get(usize::try_from(batch.first_sequence).unwrap() + place) {
                Some(known) => assert_eq!(known, record, "a resend differs"),
                None => lane.push(record.clone()),
            }
        }
        lane.len() as u64
    }

    fn marks(&self) -> Vec<LaneMark> {
        let mark =
            |(node, lane): (&String, &Vec<Record>)| LaneMark { node: node.clone(), next_sequence: lane.len() as u64 };
        self.0.iter().map(mark).collect()
    }

    fn lane(&self, node: &str) -> &[Record] {
        self.0.get(node).map_or(&[], Vec::as_slice)
    }
}

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
        let others = self.spool.welcome(&self.durable.marks(), &self.spool.names());
        assert!(others.is_empty(), "{others:?}");
    }

    fn sync(&mut self) {
        sync(&mut self.spool);
        for (_, unsynced) in self.written.values_mut() {
            *unsynced = 0;
        }
    }

    fn kill(&mut self, part: u8) {
        let tails: Vec<_> =
            self.spool.lanes.iter().map(|(node, lane)| (node.clone(), lane.tail(), lane.written())).collect();
        for (_, tail, _) in &tails {
            if let Some((path, synced, length)) = tail {
                let cut = synced + (length - synced) * u64::from(part) / 255;
                fs::OpenOptions::new().write(true).open(path).unwrap().set_len(cut).unwrap();
            }
        }
        self.spool = open(self.dir.path(), LIMIT);
        for (node, _, before) in tails {
            let survived = self.spool.lanes[&node].written();
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
                // A writer syncs what it wrote before it writes more than one batch to a lane.
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
        assert_eq!(self.spool.owed_ns(), None, "something old can always go");
    }

    fn drain(&mut self) {
        self.sync();
        self.spool.tell_owed();
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
            for record in self.durable.lane(node) {
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

    #[test]
    fn hostile_bytes_are_read_to_the_first_that_is_no_record(
        sizes in prop::collection::vec(0..200_usize, 0..8),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 0..3),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = Header { ordinal: 3, last: 3 }.encode().to_vec();
        let mut ends = vec![bytes.len()];
        for (id, size) in sizes.iter().enumerate() {
            segment::put(&mut bytes, 3, 0, &fact(id as i64, *size));
            ends.push(bytes.len());
        }
        let mut hurt = bytes.clone();
        hurt.truncate(cut.index(bytes.len() + 1));
        hurt.extend_from_slice(&noise);
        for (place, flip) in &flips {
            if !hurt.is_empty() {
                let place = place.index(hurt.len());
                hurt[place] ^= flip;
            }
        }
        // As far as the bytes are the old ones, the records are.
        let same = bytes.iter().zip(&hurt).take_while(|(a, b)| a == b).count();
        let scan = segment::scan(&hurt.into());
        let whole = ends.iter().filter(|end| **end <= same).count();
        prop_assert_eq!(scan.header.is_some(), whole > 0);
        prop_assert_eq!(scan.records, whole.saturating_sub(1) as u64);
        prop_assert_eq!(scan.good, whole.checked_sub(1).map_or(0, |last| ends[last] as u64));
    }
}

/// Sends and acknowledges everything; the records that arrived of a lane.
fn deliver(spool: &mut Spool, durable: &mut Durable) {
    sync(spool);
    spool.tell_owed();
    sync(spool);
    spool.welcome(&durable.marks(), &spool.names());
    while let Some(batch) = spool.next_batch(&BTreeSet::new()) {
        let mark = durable.take(&batch);
        spool.acknowledge(&batch.node, mark).unwrap();
    }
    assert!(spool.is_empty());
}

fn files_of(spool: &Spool, node: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(spool.lanes[node].dir()).unwrap().map(|item| item.unwrap().path()).collect();
    files.retain(|path| !path.ends_with("node"));
    files.sort();
    files
}

/// So many segments of 100 KB, ten records each.
fn fill(spool: &mut Spool, node: &str, from: i64, segments: i64) {
    for id in from..from + 10 * segments {
        spool.append(node, &[fact(id, 10_000)]);
        sync(spool);
    }
}

#[test]
fn a_loud_lane_drops_its_oldest_and_a_quiet_one_keeps_its_share() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "b", 0, 5);
    fill(&mut spool, "a", 0, 100);
    assert!(spool.bytes() <= 2_000_000);
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    assert_eq!(durable.lane("b").len(), 50);
    let a = durable.lane("a");
    let told = losses(a);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].stage.as_str(), told[0].reason.as_str(), told[0].from_ns), ("spool", "spool full", 0));
    assert_eq!(told[0].records as usize + a.len() - 1, 1_000);
    assert!(a.len() > 100, "more than its share is lent: {}", a.len());
    assert_eq!(spool.status()[0].dropped.records, told[0].records);
}

#[test]
fn what_was_sent_is_kept_although_the_lane_is_full() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 2);
    spool.welcome(&[], &spool.names());
    let mut sent = Vec::new();
    while let Some(batch) = spool.next_batch(&BTreeSet::new()) {
        sent.push(batch);
    }
    drop(spool);
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 20, 50);
    let mut durable = Durable::default();
    for batch in &sent {
        durable.take(batch);
    }
    deliver(&mut spool, &mut durable);
    let lane = durable.lane("a");
    assert!(lane.iter().zip(0..20).all(|(record, id)| record.time_ns == id));
    let told = losses(lane);
    assert_eq!((told.len(), told[0].from_ns), (1, 20));
    assert_eq!(told[0].records as usize + lane.len() - 1, 520);
}

#[test]
fn a_damaged_part_that_was_sent_becomes_losses_under_the_same_numbers() {
    let dir = folder();
    let mut spool = open(dir.path(), 4_000_000);
    fill(&mut spool, "a", 0, 5);
    spool.welcome(&[], &spool.names());
    while spool.next_batch(&BTreeSet::new()).is_some() {}
    let path = files_of(&spool, "a").swap_remove(0);
    assert_eq!(path.extension().unwrap(), "out");
    let whole = segment::scan(&fs::read(&path).unwrap().into()).records;
    let mut bytes = fs::read(&path).unwrap();
    bytes[30_000] ^= 1;
    // Once it is found while it is sent, once when the spool is opened.
    for is_reopened in [false, true] {
        fs::write(&path, &bytes).unwrap();
        if is_reopened {
            spool = open(dir.path(), 4_000_000);
        }
        let mut durable = Durable::default();
        spool.welcome(&[], &spool.names());
        while let Some(batch) = spool.next_batch(&BTreeSet::new()) {
            durable.take(&batch);
        }
        let lane = durable.lane("a");
        assert_eq!(lane.len(), 50);
        let lost = losses(lane);
        assert_eq!(lost.len() as u64, whole - 2, "the third record and what follows in the file");
        assert!(lost.iter().all(|loss| loss.records == 1 && loss.reason == "spool damaged"), "{lost:?}");
        assert_eq!(lane[usize::try_from(whole).unwrap()].time_ns, whole as i64, "the others have their numbers");
    }
}

#[test]
fn a_damaged_part_that_was_never_sent_becomes_a_loss_of_unknown_amount() {
    let dir = folder();
    let mut spool = open(dir.path(), 4_000_000);
    fill(&mut spool, "a", 0, 5);
    let path = files_of(&spool, "a").swap_remove(0);
    assert_eq!(path.extension().unwrap(), "seg");
    let mut bytes = fs::read(&path).unwrap();
    let whole = segment::scan(&bytes.clone().into()).records;
    for (place, left) in [(30_000, 2), (3, 0)] {
        bytes[place] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let mut again = open(dir.path(), 4_000_000);
        let mut durable = Durable::default();
        again.welcome(&[], &again.names());
        while let Some(batch) = again.next_batch(&BTreeSet::new()) {
            durable.take(&batch);
        }
        // Not acknowledged, so that the second round finds the files again.
        let lane = durable.lane("a");
        assert_eq!(lane.len() as u64, 50 - whole + left + 1);
        let lost = losses(lane);
        assert!(lost.len() == 1 && lost[0].amount_unknown, "{lost:?}");
        for file in files_of(&again, "a") {
            fs::remove_file(file).unwrap();
        }
        drop(again);
        let mut fresh = open(dir.path(), 4_000_000);
        fill(&mut fresh, "a", 0, 5);
        assert_eq!(files_of(&fresh, "a")[0], path);
        bytes = fs::read(&path).unwrap();
    }
}

#[test]
fn a_lane_follows_an_aggregator_that_lost_its_database() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 3);
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    fill(&mut spool, "a", 30, 3);
    spool.welcome(&durable.marks(), &spool.names());
    let batch = spool.next_batch(&BTreeSet::new()).unwrap();
    assert_eq!(batch.first_sequence, 30);
    drop(spool);

    let mut spool = open(dir.path(), 2_000_000);
    let mut empty = Durable::default();
    assert_eq!(spool.welcome(&[], &spool.names()), ["a"]);
    deliver(&mut spool, &mut empty);
    // What was in a file with the rest is sent once more; nothing is missing.
    let ids: Vec<i64> = empty.lane("a").iter().map(|record| record.time_ns).collect();
    assert!(ids.ends_with(&(30..60).collect::<Vec<_>>()), "{ids:?}");
    assert!(ids.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{ids:?}");
}

#[test]
fn newer_states_need_no_loss_and_losses_are_not_lost() {
    let dir = folder();
    let mut spool = open(dir.path(), 1_000_000);
    let gone =
        Loss { stage: "kernel".into(), reason: "ring full".into(), bytes: 5, from_ns: 1, to_ns: 1, ..Loss::default() };
    let gone = Record { time_ns: 1, target: "t".to_owned(), kind: Some(Kind::Loss(gone)) };
    for round in 0..3_000 {
        spool.append("a", &[account(round), gone.clone()]);
        if round % 10 == 0 {
            spool.append("a", &[fact(round as i64, 10_000)]);
        }
        sync(&mut spool);
    }
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    let lost = losses(durable.lane("a"));
    let of = |stage: &str, count: fn(&Loss) -> u64| {
        lost.iter().filter(|loss| loss.stage == stage).map(|loss| count(loss)).sum::<u64>()
    };
    assert_eq!(of("kernel", |loss| loss.bytes), 15_000);
    let facts = durable.lane("a").iter().filter(|record| matches!(record.kind, Some(Kind::Chunk(_)))).count() as u64;
    assert_eq!(of("spool", |loss| loss.records), 300 - facts);
}

#[test]
fn a_lane_that_was_set_aside_is_sent_from_its_beginning() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 1);
    fill(&mut spool, "b", 10, 1);
    spool.welcome(&[], &spool.names());
    let first = spool.next_batch(&BTreeSet::new()).unwrap();
    let aside = BTreeSet::from([first.node.clone()]);
    assert_ne!(spool.next_batch(&aside).unwrap().node, first.node);
    assert_eq!(spool.next_batch(&aside), None);
    spool.rewind(&first.node);
    assert_eq!(spool.next_batch(&BTreeSet::new()).unwrap(), first);
}

#[test]
fn files_are_the_agents_own_and_go_when_they_are_delivered() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 5);
    for file in files_of(&spool, "a") {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
    deliver(&mut spool, &mut Durable::default());
    assert_eq!(files_of(&spool, "a").len(), 1, "the one that is being written");
    let mut spool = open(dir.path(), 2_000_000);
    spool.welcome(&[LaneMark { node: "a".to_owned(), next_sequence: 50 }], &spool.names());
    assert!(files_of(&spool, "a").is_empty());
}

#[test]
fn the_spool_of_another_epoch_is_told_as_a_loss() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 1);
    drop(spool);
    let mut spool = Spool::open(dir.path(), &Epoch([8; 16]), 2_000_000, NOW).unwrap();
    spool.open_lane("a", false).unwrap();
    spool.open_lane("b", false).unwrap();
    assert_eq!(fs::read_dir(dir.path().join("spool")).unwrap().count(), 1);
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    let lost = losses(durable.lane("a"));
    assert!(lost.len() == 1 && lost[0].amount_unknown && lost[0].reason == "spool of another epoch", "{lost:?}");
    assert!(durable.lane("b").is_empty());
}

#[test]
fn what_cannot_be_written_is_counted_and_told_later() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    let folder = spool.lanes["a"].dir().to_owned();
    let away = dir.path().join("away");
    fs::rename(&folder, &away).unwrap();
    spool.append("a", &[fact(1, 10), fact(2, 10)]);
    spool.append("a", &[fact(3, 10)]);
    assert_eq!(spool.owed_ns(), Some(1));
    assert_eq!(spool.status()[0].dropped.records, 3);
    fs::rename(&away, &folder).unwrap();
    spool.append("a", &[fact(4, 10)]);
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    let lane = durable.lane("a");
    let lost = losses(lane);
    assert_eq!((lost.len(), lost[0].records, lost[0].from_ns, lost[0].to_ns), (1, 3, 1, 3));
    assert_eq!((lane.len(), lane[1].time_ns), (2, 4));
}

#[test]
fn only_lanes_in_use_have_a_share() {
    let dir = folder();
    let mut spool = Spool::open(dir.path(), &EPOCH, 1_000_000, NOW).unwrap();
    for lane in 0..100 {
        spool.open_lane(&format!("old{lane}"), false).unwrap();
    }
    spool.open_lane("a", false).unwrap();
    spool.open_lane("old0", false).unwrap();
    assert_eq!(spool.share(), 1_000_000 / 101);
    fill(&mut spool, "old0", 0, 1);
    spool.expect(&BTreeSet::from(["a".to_owned(), "not here".to_owned()]));
    assert_eq!(spool.share(), 500_000, "one is expected, one holds something");
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    assert_eq!(files_of(&spool, "old0").len(), 1, "it would be written on");
    spool.expect(&BTreeSet::from(["a".to_owned()]));
    assert_eq!((files_of(&spool, "old0").len(), spool.share()), (0, 1_000_000));

    // It comes again all the same, when the other one has everything: it has a share, and goes on where it stood.
    let next = durable.lane("old0").len() as u64;
    fill(&mut spool, "a", 0, 20);
    fill(&mut spool, "old0", 10, 1);
    assert_eq!(spool.share(), 500_000);
    assert_eq!(spool.lanes["old0"].pending(), 10);
    let batch = std::iter::from_fn(|| spool.next_batch(&BTreeSet::new())).find(|batch| batch.node == "old0").unwrap();
    assert_eq!(batch.first_sequence, next);
    spool.rewind("a");
    spool.rewind("old0");
    deliver(&mut spool, &mut durable);
    assert_eq!(durable.lane("old0").len() as u64, next + 10);
    assert_eq!(spool.dropped().keys().collect::<Vec<_>>(), ["a"]);

    // A process later the aggregator is asked, and says the same.
    spool.expect(&BTreeSet::new());
    assert_eq!((files_of(&spool, "a").len(), files_of(&spool, "old0").len()), (0, 0));
    drop(spool);
    let mut spool = Spool::open(dir.path(), &EPOCH, 1_000_000, NOW).unwrap();
    fill(&mut spool, "old0", 20, 1);
    assert_eq!(spool.next_batch(&BTreeSet::new()), None);
    deliver(&mut spool, &mut durable);
    assert_eq!(durable.lane("old0").len() as u64, next + 20);
}

#[test]
fn what_waits_for_an_acknowledgement_stays_where_nothing_is_expected() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 1);
    spool.welcome(&[], &spool.names());
    let batch = spool.next_batch(&BTreeSet::new()).unwrap();
    spool.expect(&BTreeSet::new());
    spool.acknowledge("a", batch.records.len() as u64 - 1).unwrap();
    spool.expect(&BTreeSet::new());
    assert_eq!((files_of(&spool, "a").len(), spool.lanes["a"].pending()), (1, 1));
    // Written and not synced yet.
    spool.acknowledge("a", batch.records.len() as u64).unwrap();
    spool.append("a", &[fact(10, 10)]);
    spool.expect(&BTreeSet::new());
    sync(&mut spool);
    let mut durable = Durable::default();
    durable.take(&batch);
    deliver(&mut spool, &mut durable);
    assert_eq!(durable.lane("a").last().unwrap().time_ns, 10);
}
