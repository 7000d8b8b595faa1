//! Measures log messages: intake and indexing of lines, size of the index, and the time of a 100-row page for level filters and
//! text queries.
//!
//! `log_bench [rows] [directory]`, by default 10,000,000 and a temporary directory.

#![expect(clippy::print_stdout, reason = "prints its results")]

use std::{
    fs,
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};

use chainscope_proto::v1::{LogEncoding, LogLevel, LogMessage, Record, record::Kind};
use chainscope_store::{LogQuery, Order, Store, StoreOptions, TextQuery};
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

const NODE: &str = "9732";
const BATCH: u64 = 1000;
const ROUNDS: usize = 500;
/// Nanoseconds since 1970 of the first line; the others follow a millisecond apart.
const START_NS: i64 = 1_700_000_000_000_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rows = arguments.next().map_or(10_000_000, |text| text.parse().expect("a number of rows"));
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = arguments.next().map_or_else(|| temporary.path().to_owned(), Into::into);
    let store = Store::open(&dir, StoreOptions::default()).expect("opens");
    fill(&store, &dir, rows);
    pages(&store, rows);
}

/// The level and the text of a line, as an Octez node writes them.
fn line(id: u64, rng: &mut SmallRng) -> (LogLevel, String) {
    let block = format!("BL{:016x}{:016x}", rng.random::<u64>(), rng.random::<u64>());
    let peer = rng.random_range(0..64);
    match rng.random_range(0..1000) {
        0 => (LogLevel::Error, format!("p2p.maintenance: connection to peer idpeer{peer:024} was refused, code {id}")),
        1..20 => (LogLevel::Warning, format!("p2p.pool: too many connections, peer idpeer{peer:024} is disconnected")),
        20..300 => (
            LogLevel::Debug,
            format!("p2p.io: read {} bytes from 10.0.{peer}.7:9732 ({block})", rng.random_range(10..9000)),
        ),
        300..600 => (LogLevel::Info, format!("validator.block: block {block} validated in {} ms", id % 977)),
        600..800 => (LogLevel::Info, format!("validator.chain: update current head to {block}, level {}", id / 20)),
        _ => (LogLevel::Info, format!("prevalidator: operation {block} classified as applied, {} pending", id % 313)),
    }
}

fn record(id: u64, rng: &mut SmallRng) -> Record {
    let (level, text) = line(id, rng);
    let message = LogMessage {
        raw: format!("Apr  8 16:49:28.172 - {text}").into_bytes(),
        encoding: LogEncoding::Plain.into(),
        level: level.into(),
        source: "stdout".to_owned(),
        ..LogMessage::default()
    };
    let time_ns = START_NS + id as i64 * 1_000_000;
    Record { time_ns, target: "pid 4711".to_owned(), kind: Some(Kind::LogMessage(message)) }
}

fn fill(store: &Store, dir: &Path, rows: u64) {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut raw_bytes = 0;
    let (started, mut appending) = (Instant::now(), Duration::ZERO);
    let mut mark = store.high_water_mark(NODE, "host", b"epoch");
    let new = rows.saturating_sub(mark);
    while mark < rows {
        let records: Vec<Record> = (mark..rows.min(mark + BATCH)).map(|id| record(id, &mut rng)).collect();
        raw_bytes += records.iter().map(raw_len).sum::<u64>();
        let began = Instant::now();
        mark = store.append(NODE, "host", b"epoch", mark, &records).expect("appends");
        store.sync().expect("syncs");
        appending += began.elapsed();
    }
    let behind = store.text_index(NODE).pending;
    while store.text_index(NODE).pending > 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let searchable = started.elapsed();
    let rate = |time: Duration| new as f64 / time.as_secs_f64();
    let index_bytes = size(&dir.join("text"));
    println!("| {new} lines of {:.0} bytes | |", raw_bytes as f64 / new as f64);
    println!("| --- | --- |");
    println!("| stored, synced every {BATCH} | {:.0} lines/s |", rate(appending));
    println!("| stored and indexed, on this machine's CPUs together | {:.0} lines/s |", rate(searchable));
    println!("| not indexed yet when the last was stored | {behind} lines |");
    println!(
        "| full-text index | {:.0} MB, {:.2} of the raw lines |",
        mb(index_bytes),
        index_bytes as f64 / raw_bytes as f64
    );
    let rows_bytes = store.disk_bytes(NODE);
    println!(
        "| rows and their indexes, compressed | {:.0} MB, {:.2} |",
        mb(rows_bytes),
        rows_bytes as f64 / raw_bytes as f64
    );
    println!("| resident | {:.0} MB |\n", resident_mb());
}

fn raw_len(record: &Record) -> u64 {
    match &record.kind {
        Some(Kind::LogMessage(message)) => message.raw.len() as u64,
        _ => 0,
    }
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Bytes of the files below a directory.
fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    entries
        .map(
            |entry| {
                if entry.path().is_dir() { size(&entry.path()) } else { entry.metadata().map_or(0, |meta| meta.len()) }
            },
        )
        .sum()
}

/// p50 and p99 of a page of 100 rows.
fn pages(store: &Store, rows: u64) {
    let mut rng = SmallRng::seed_from_u64(2);
    type Fill<'a> = &'a dyn Fn(&mut SmallRng, &mut LogQuery);
    let text = |text: &str| Some(TextQuery::parse(text).expect("a query"));
    let cases: [(&str, Fill<'_>); 12] = [
        ("newest", &|_, query| query.cursor = None),
        ("from a cursor", &|_, _| ()),
        ("level, one in 50", &|_, query| query.levels = vec![LogLevel::Warning]),
        ("level, one in 1,000", &|_, query| query.levels = vec![LogLevel::Error]),
        ("two levels and a time", &|rng, query| {
            query.cursor = None;
            query.levels = vec![LogLevel::Warning, LogLevel::Error];
            query.to_ns = Some(START_NS + rng.random_range(0..rows) as i64 * 1_000_000);
        }),
        ("frequent word", &|_, query| query.text = text("validated")),
        ("word of one line", &|rng, query| {
            query.cursor = None;
            query.text = text(&format!("\"level {}\" AND current", rng.random_range(0..rows / 20)));
        }),
        ("word of no line", &|_, query| query.text = text("nowhere")),
        ("two words", &|rng, query| query.text = text(&format!("+validated +{}", rng.random_range(0..977)))),
        ("phrase", &|rng, query| query.text = text(&format!("\"10.0.{}.7:9732\"", rng.random_range(0..64)))),
        ("exclusions only", &|_, query| query.text = text("-validated -operation")),
        ("word and level", &|_, query| {
            query.text = text("refused");
            query.levels = vec![LogLevel::Error];
        }),
    ];
    println!("| 100-row page of {rows} lines | p50, ms | p99, ms |");
    println!("| --- | --- | --- |");
    for (name, fill) in cases {
        let mut times: Vec<Duration> = (0..ROUNDS)
            .map(|round| {
                let order = if round % 2 == 0 { Order::NewestFirst } else { Order::OldestFirst };
                let mut query = LogQuery { cursor: Some(rng.random_range(0..rows)), order, ..LogQuery::default() };
                fill(&mut rng, &mut query);
                let started = Instant::now();
                black_box(store.log_messages(NODE, &query).expect("answers"));
                started.elapsed()
            })
            .collect();
        times.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!("| {name} | {:.2} | {:.2} |", ms(times[ROUNDS / 2]), ms(times[ROUNDS * 99 / 100]));
    }
}

fn resident_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = status.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    pages * 4096.0 / 1e6
}
