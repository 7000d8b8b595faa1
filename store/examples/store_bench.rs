//! Measures the store: writes with all indexes against a bare RocksDB write of the same rows, which syncs each batch before it
//! writes the next, and the time of a 100-row page for each filter, small database against large.
//!
//! ```text
//! store_bench [small rows] [large rows] [directory]    by default 100,000, 10,000,000 and a temporary directory
//! store_bench pages ROWS DIRECTORY                     pages only, of a database that is filled unless it is there
//! store_bench growth ROWS [DIRECTORY]                  points for growth_plot: pages of 100,000 rows, of ten times as many, up to ROWS
//! store_bench ratios                                   samples for the regression gate
//! ```

#![expect(clippy::print_stdout, reason = "prints its results")]

use std::{
    collections::HashMap,
    hint::black_box,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use chainscope_proto::v1::{Chunk, Initiator, Message, Record, SocketAddress, record::Kind};
use chainscope_store::{MessageQuery, Order, Store, StoreOptions};
use prost::Message as _;
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::SmallRng};
use rocksdb::{DB, Options, WriteBatch, WriteOptions};
use rustix::time::{ClockId, clock_gettime};

const NODE: &str = "9732";
const PEERS: u64 = 64;
const KINDS: [&str; 8] = [
    "operation",
    "current_head",
    "get_operations",
    "operations_for_blocks",
    "get_block_headers",
    "block_header",
    "advertise",
    "get_current_branch",
];
const BATCH: u64 = 1000;

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    match arguments.peek().map(String::as_str) {
        Some("ratios") => return print_ratios(),
        Some("pages") => {
            let rows = arguments.nth(1).and_then(|text| text.parse().ok()).expect("a number of rows");
            let dir = arguments.next().expect("a directory");
            println!("{:<22}{:>9}{:>9}{:>11}", "", "p50", "p99", "p99 CPU");
            fill(Path::new(&dir), rows);
            for (name, page) in pages(Path::new(&dir), rows) {
                println!("{name:<22}{:>9}{:>9}{:>11}", ms(page.p50), ms(page.p99), ms(page.p99_cpu));
            }
            return;
        }
        Some("growth") => {
            let most = arguments.nth(1).and_then(|text| text.parse().ok()).expect("a number of rows");
            let temporary = tempfile::tempdir().expect("a directory");
            return print_growth(&arguments.next().map_or_else(|| temporary.path().to_owned(), Into::into), most);
        }
        _ => {}
    }
    let mut rows = |default: u64| arguments.next().map_or(default, |text| text.parse().expect("a number of rows"));
    let (small, large) = (rows(100_000), rows(10_000_000));
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = arguments.next().map_or_else(|| temporary.path().to_owned(), Into::into);

    // First, while the memory that it prints is the store's alone.
    let [pages_small, pages_large] = [("small", small), ("large", large)].map(|(name, rows)| {
        fill(&dir.join(name), rows);
        pages(&dir.join(name), rows)
    });
    writes(&dir, 200_000);
    println!(
        "\n100-row page, ms              {small:>18} rows          {large:>18} rows    p99 grows, in time and on the CPU"
    );
    println!("{:<22}{:>9}{:>9}{:>11}{:>9}{:>9}{:>11}", "", "p50", "p99", "p99 CPU", "p50", "p99", "p99 CPU");
    for ((name, small), (_, large)) in pages_small.iter().zip(&pages_large) {
        print!("{name:<22}");
        for page in [small, large] {
            print!("{:>9}{:>9}{:>11}", ms(page.p50), ms(page.p99), ms(page.p99_cpu));
        }
        let growth = |of: fn(&Page) -> Duration| of(large).as_secs_f64() / of(small).as_secs_f64();
        println!("{:>9.2} x{:>7.2} x", growth(|page| page.p99), growth(|page| page.p99_cpu));
    }
}

/// Prints points of the time that a row and a page take. One database grows.
fn print_growth(dir: &Path, most: u64) {
    for rows in (5..).map(|power| 10_u64.pow(power)).take_while(|rows| *rows <= most) {
        if let Some(row) = fill(dir, rows) {
            println!("growth\trows\ttime of storing a row, µs\t{rows}\t{}", row.as_secs_f64() * 1e6);
        }
        for (name, page) in pages(dir, rows) {
            if ["newest", "kind", "rare kind", "peer", "time"].contains(&name) {
                println!("growth\trows\tp99 of a page by {name}, ms\t{rows}\t{}", page.p99.as_secs_f64() * 1e3);
            }
        }
    }
}

/// How long a page takes. On a machine that does other things, too, its time on the CPU is what can be compared.
struct Page {
    p50: Duration,
    p99: Duration,
    p99_cpu: Duration,
}

impl Page {
    fn of(mut times: Vec<(Duration, Duration)>) -> Self {
        let (half, most) = (times.len() / 2, times.len() * 99 / 100);
        times.sort();
        let (p50, p99) = (times[half].0, times[most].0);
        times.sort_by_key(|(_, cpu)| *cpu);
        Self { p50, p99, p99_cpu: times[most].1 }
    }
}

fn ms(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}

/// Time that this thread was on a CPU.
fn cpu_time() -> Duration {
    time_of_clock(ClockId::ThreadCPUTime)
}

/// Time that all threads of this process were on a CPU.
fn process_cpu_time() -> Duration {
    time_of_clock(ClockId::ProcessCPUTime)
}

fn time_of_clock(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn message(id: u64, rng: &mut SmallRng) -> Record {
    let peer = rng.random_range(0..PEERS);
    // One kind in a thousand messages, besides the usual ones.
    let kind = if rng.random_ratio(1, 1000) { "protocol" } else { KINDS[(rng.random::<u64>() % 8) as usize] };
    let mut sha256 = [0; 32];
    rng.fill_bytes(&mut sha256);
    let message = Message {
        connection: peer,
        incoming: rng.random(),
        protocol: "tezos".to_owned(),
        category: "p2p".to_owned(),
        kind: kind.to_owned(),
        first_chunk: id,
        last_chunk: id,
        length: rng.random_range(10..2000),
        sha256: sha256.to_vec().into(),
        preview: Some(format!(
            r#"{{"type":"{kind}","level":{},"predecessor":"BL{:x}{:x}"}}"#,
            id,
            rng.next_u64(),
            rng.next_u64()
        )),
        initiator: if peer % 2 == 0 { Initiator::Local } else { Initiator::Remote }.into(),
        remote: Some(SocketAddress { ip: vec![10, 0, 0, peer as u8], port: 9732 }),
        peer_id: format!("idpeer{peer:024}"),
        ..Message::default()
    };
    Record { time_ns: time_of(id), target: "pid 4711".to_owned(), kind: Some(Kind::Message(message)) }
}

fn time_of(id: u64) -> i64 {
    1_600_000_000_000_000_000 + id as i64 * 1_000_000
}

fn chunk(message: &Record, rng: &mut SmallRng) -> Record {
    let Some(Kind::Message(of)) = &message.kind else { unreachable!("made above") };
    let mut plain = vec![0; 600];
    rng.fill_bytes(&mut plain);
    let chunk = Chunk {
        connection: of.connection,
        incoming: of.incoming,
        counter: of.first_chunk,
        wire: plain.clone().into(),
        plain: plain.into(),
        ..Chunk::default()
    };
    Record { time_ns: message.time_ns, target: message.target.clone(), kind: Some(Kind::Chunk(chunk)) }
}

/// Prints rows/s of the store and of RocksDB alone.
fn writes(dir: &Path, count: u64) {
    for with_chunks in [false, true] {
        let records = records(count, with_chunks);
        let bare_time = write_bare(&dir.join(format!("bare {with_chunks}")), &records, with_chunks);
        let store_time = write_store(&dir.join(format!("indexed {with_chunks}")), &records, with_chunks);
        let rate = |time: Duration| count as f64 / time.as_secs_f64();
        println!(
            "writes{}: store {:.0} messages/s, bare RocksDB {:.0} messages/s, ratio {:.2}",
            if with_chunks { " with a chunk of 2 x 600 B each" } else { ", rows only" },
            rate(store_time),
            rate(bare_time),
            bare_time.as_secs_f64() / store_time.as_secs_f64(),
        );
    }
}

/// Prints a line for each ratio: its name and its samples.
fn print_ratios() {
    const PAIRS: u64 = 9;
    const ROWS: u64 = 30_000;
    let print = |name: &str, samples: Vec<f64>| {
        let samples: Vec<String> = samples.iter().map(|sample| format!("{sample:.5}")).collect();
        println!("store/{name} {}", samples.join(" "));
    };
    for (name, with_chunks) in [("rows", false), ("rows_and_chunks", true)] {
        let records = records(ROWS, with_chunks);
        let samples = (0..PAIRS).map(|_| {
            let dir = tempfile::tempdir().expect("a directory");
            // Processor time of the process: other load affects it least, and that of the disk not at all.
            let start = process_cpu_time();
            write_bare(&dir.path().join("bare"), &records, with_chunks);
            let between = process_cpu_time();
            write_store(&dir.path().join("store"), &records, with_chunks);
            (between - start).as_secs_f64() / (process_cpu_time() - between).as_secs_f64()
        });
        print(name, samples.collect());
    }
    let dir = tempfile::tempdir().expect("a directory");
    let records = records(2 * ROWS, false);
    write_bare(&dir.path().join("bare"), &records, false);
    write_store(&dir.path().join("store"), &records, false);
    let bare = DB::open(&bare_options(), dir.path().join("bare")).expect("opens");
    let store = Store::open(dir.path().join("store"), StoreOptions::default()).expect("opens");
    settle();
    let mut rng = SmallRng::seed_from_u64(3);
    let samples = (0..2 * PAIRS).map(|_| {
        let times: [Duration; 2] = (0..20).fold([Duration::ZERO; 2], |[gets, pages], _| {
            let began = cpu_time();
            for _ in 0..60 {
                let row = bare.get(bare_key(rng.random_range(0..2 * ROWS))).expect("reads").expect("a row");
                black_box(Record::decode(&*row).expect("a record"));
            }
            let between = cpu_time();
            let query = MessageQuery { kinds: vec!["protocol".to_owned()], limit: 60, ..MessageQuery::default() };
            black_box(store.messages(NODE, &query).expect("answers"));
            [gets + (between - began), pages + (cpu_time() - between)]
        });
        times[0].as_secs_f64() / times[1].as_secs_f64()
    });
    print("rare_page", samples.collect());
}

fn records(count: u64, with_chunks: bool) -> Vec<Record> {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut next = HashMap::new();
    (0..count)
        .flat_map(|id| {
            let mut message = message(id, &mut rng);
            number(&mut message, &mut next);
            with_chunks.then(|| chunk(&message, &mut rng)).into_iter().chain([message])
        })
        .collect()
}

/// Gives a message the next chunk of its side of the connection.
fn number(message: &mut Record, next: &mut HashMap<(u64, bool), u64>) {
    let Some(Kind::Message(message)) = &mut message.kind else { unreachable!("made as a message") };
    let next = next.entry((message.connection, message.incoming)).or_default();
    (message.first_chunk, message.last_chunk) = (*next, *next);
    *next += 1;
}

/// Records of a batch: a thousand messages, with their chunks.
fn per_batch(with_chunks: bool) -> usize {
    BATCH as usize * if with_chunks { 2 } else { 1 }
}

fn bare_options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(rocksdb::DBCompressionType::Lz4);
    options.set_write_buffer_size(8 << 20);
    options
}

fn bare_key(number: u64) -> [u8; 17] {
    let mut key = [0; 17];
    key[9..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Time that RocksDB alone takes for the rows; its log is synced after each batch.
fn write_bare(dir: &Path, records: &[Record], with_chunks: bool) -> Duration {
    let encoded: Vec<Vec<u8>> = records.iter().map(Record::encode_to_vec).collect();
    let bare = DB::open(&bare_options(), dir).expect("opens");
    let mut synced = WriteOptions::default();
    synced.set_sync(true);
    let started = Instant::now();
    let mut number = 0;
    for rows in encoded.chunks(per_batch(with_chunks)) {
        let mut batch = WriteBatch::default();
        for row in rows {
            batch.put(bare_key(number), row);
            number += 1;
        }
        bare.write_opt(batch, &synced).expect("writes");
    }
    started.elapsed()
}

/// Time that the store takes for the records, each batch synced by a second thread, as the aggregator does.
fn write_store(dir: &Path, records: &[Record], with_chunks: bool) -> Duration {
    let store = Store::open(dir, StoreOptions::default()).expect("opens");
    let started = Instant::now();
    let (written, to_sync) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            for () in to_sync {
                store.sync_written().expect("syncs");
            }
        });
        let mut mark = 0;
        for rows in records.chunks(per_batch(with_chunks)) {
            mark = store.append(NODE, "host", b"epoch", mark, rows).expect("appends");
            store.write_appended().expect("writes");
            written.send(()).expect("the thread that syncs runs");
        }
        drop(written);
    });
    started.elapsed()
}

/// Stores rows until the database has `count`, waiting for compaction as the aggregator does. Returns the time per stored row; none if
/// the database had them.
fn fill(dir: &Path, count: u64) -> Option<Duration> {
    let store = Store::open(dir, StoreOptions::default()).expect("opens");
    let mut rng = SmallRng::seed_from_u64(2);
    let started = Instant::now();
    let first = store.high_water_mark(NODE, "host", b"epoch");
    let mut mark = first;
    while mark < count {
        let rows: Vec<Record> = (mark..count.min(mark + BATCH)).map(|id| message(id, &mut rng)).collect();
        let pause = |interval| {
            thread::sleep(interval);
            false
        };
        store.wait_for_compaction(pause).expect("waits");
        mark = store.append(NODE, "host", b"epoch", mark, &rows).expect("appends");
        store.sync().expect("syncs");
    }
    let elapsed = started.elapsed();
    println!(
        "filled to {count} rows in {:.1} s, {} segments, {:.0} bytes a row on disk, {:.0} MB resident",
        elapsed.as_secs_f64(),
        store.nodes()[0].segments,
        store.disk_bytes(NODE) as f64 / count as f64,
        resident_megabytes(),
    );
    settle();
    (mark > first).then(|| elapsed.div_f64((mark - first) as f64))
}

/// p50 and p99 of a 100-row page for each filter, of a database of `count` rows that is in the page cache.
fn pages(dir: &Path, count: u64) -> Vec<(&'static str, Page)> {
    let mut rng = SmallRng::seed_from_u64(3);
    // Opened anew, so that all rows are in files, and nothing is in the cache.
    let store = Store::open(dir, StoreOptions::default()).expect("opens");
    settle();
    read_files(dir);
    let peer = |rng: &mut SmallRng| rng.random_range(0..PEERS);
    type Fill<'a> = &'a dyn Fn(&mut SmallRng, &mut MessageQuery);
    let cases: [(&str, Fill<'_>); 11] = [
        ("newest", &|_, query| query.cursor = None),
        ("cursor", &|_, _| ()),
        ("kind", &|_, query| query.kinds = vec!["operation".to_owned()]),
        ("two kinds", &|_, query| query.kinds = vec!["operation".to_owned(), "advertise".to_owned()]),
        ("rare kind", &|_, query| query.kinds = vec!["protocol".to_owned()]),
        ("incoming", &|_, query| query.incoming = Some(true)),
        ("initiator", &|_, query| query.initiator = Some(Initiator::Local)),
        ("remote", &|rng, query| query.remote = format!("10.0.0.{}:9732", peer(rng)).parse().ok()),
        ("peer", &|rng, query| query.peer_id = Some(format!("idpeer{:024}", peer(rng)))),
        ("peer, kind, incoming", &|rng, query| {
            query.peer_id = Some(format!("idpeer{:024}", peer(rng)));
            query.kinds = vec!["operation".to_owned()];
            query.incoming = Some(false);
        }),
        ("time", &|rng, query| {
            query.cursor = None;
            query.to_ns = Some(time_of(rng.random_range(0..count)));
        }),
    ];
    cases
        .iter()
        .map(|(name, fill)| {
            let times = (0..1000)
                .map(|round| {
                    let order = if round % 2 == 0 { Order::NewestFirst } else { Order::OldestFirst };
                    let mut query =
                        MessageQuery { cursor: Some(rng.random_range(0..count)), order, ..MessageQuery::default() };
                    fill(&mut rng, &mut query);
                    let (started, cpu) = (Instant::now(), cpu_time());
                    black_box(store.messages(NODE, &query).expect("answers"));
                    (started.elapsed(), cpu_time() - cpu)
                })
                .collect();
            (*name, Page::of(times))
        })
        .collect()
}

/// Reads the database once, so that it lies in the page cache as far as that is large enough: what is measured is the store, not
/// the disk.
fn read_files(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten().filter(|entry| entry.path().is_file()) {
        // A file that a compaction has just removed is not read.
        let _ = std::fs::File::open(entry.path()).and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
    }
}

/// Waits until the compactions that follow a burst of writes are over: the process uses no CPU any more.
fn settle() {
    let used = || clock_gettime(ClockId::ProcessCPUTime);
    let mut before = used();
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = used();
        if (now - before).tv_sec == 0 && (now - before).tv_nsec < 20_000_000 {
            return;
        }
        before = now;
    }
}

fn resident_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = status.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    pages * 4096.0 / 1e6
}
