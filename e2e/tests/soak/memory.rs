//! Memory at 5,000 messages a second stays flat and bounded: 15 seconds in `make test`, 5 minutes in `make soak`.
//!
//! The store's block cache fills slowly up to its configured limit and is measured separately.

use std::time::{Duration, Instant};

use chainscope_e2e::harness::api::Api;
use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::{free_port, soak, wait};

const RATE: u64 = 5_000;
/// Agent and aggregator in one process, without the block cache: 150 MiB each. The ring counts twice: it is mapped
/// twice in a row, so that no record wraps.
const MAX_RESIDENT: u64 = (150 + 150) << 20;
/// `StoreOptions::block_cache_bytes` and the overhead of the cache.
const MAX_CACHE: u64 = 70 << 20;

#[test]
fn memory_is_flat_at_5000_messages_a_second() {
    let _running = crate::exclusive();
    let seconds = if soak() { 300 } else { 15 };
    let mut machine = Machine::new("auto");
    let (port, peer) = (free_port(), free_port());
    machine.observe("node", port);
    let chainscope = machine.start();
    // 10 connections in both directions.
    let options = format!("--rate {}", RATE / 20);
    let remote = DemoNode::new("load").listen(peer).with(&options).with("--no-verify --seed 2").start();
    let local = DemoNode::new("load").listen(port).peer(peer).identity(&machine.identity("node"));
    let local = local.with(&options).with("--no-verify --connections 10").start_observed(&chainscope.api, "node");
    let resident = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", chainscope.program.pid())).expect("chainscope runs");
        let field = |name: &str| -> u64 {
            let line = status.lines().find(|l| l.starts_with(name)).expect("a field");
            line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number") << 10
        };
        field("VmRSS:")
    };
    let sample = || (resident(), block_cache(&chainscope.api));
    let started = Instant::now();
    let mut samples: Vec<(u64, u64)> = Vec::new();
    wait::until_within(Duration::from_secs(seconds + 60), "the end of the measurement", || {
        if started.elapsed().as_secs() > samples.len() as u64 {
            samples.push(sample());
        }
        (started.elapsed().as_secs() >= seconds).then_some(())
    });
    let count = chainscope.api.count("node");
    let rate = count as f64 / started.elapsed().as_secs_f64();
    local.terminate();
    remote.terminate();
    let account = Account::wait_settled(&chainscope.api, "node");
    account.assert_conserved();
    let mib = |bytes: u64| bytes >> 20;
    assert!(samples.iter().all(|(_, cache)| *cache <= MAX_CACHE), "{samples:?}");
    let own = |(resident, cache): &(u64, u64)| resident.saturating_sub(*cache);
    let most = samples.iter().map(own).max().expect("a sample");
    let (third, last) = (&samples[samples.len() / 3], &samples[samples.len() - 1]);
    eprintln!(
        "{rate:.0} messages/s over {seconds} s: resident {} MiB and block cache {} MiB after a third, {} and {} MiB at the \
         end; at most {} MiB without the cache; {account:?}",
        mib(own(third)),
        mib(third.1),
        mib(own(last)),
        mib(last.1),
        mib(most),
    );
    assert!(rate > RATE as f64 * 0.8, "only {rate:.0} messages/s");
    assert_eq!((account.bytes_dropped, account.messages_dropped), (0, 0), "{account:?}");
    assert!(most <= MAX_RESIDENT, "{} MiB", mib(most));
    // RocksDB fills its memtables for the first half minute; after that nothing but the cache grows.
    let (third, last) = (own(third), own(last));
    assert!(!soak() || last <= third + third / 10, "{} MiB became {} MiB", mib(third), mib(last));
}

/// Bytes in the store's block cache, from `/metrics`.
fn block_cache(api: &Api) -> u64 {
    let (status, text) = api.request("/metrics").expect("response");
    assert_eq!(status, 200, "{text}");
    let line = text.lines().find(|line| line.starts_with("chainscope_store_block_cache_bytes "));
    let value = line.and_then(|line| line.split_whitespace().nth(1)).expect("the block cache in /metrics");
    value.parse().expect("a number")
}
