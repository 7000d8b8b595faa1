//! Memory at 5,000 messages a second stays flat and bounded: 15 seconds' messages in `make test`, those of 5 minutes in `make soak`.
//!
//! The store's block cache fills slowly up to its configured limit and is measured separately.

use std::time::Instant;

use chainscope_e2e::harness::api::Api;
use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::{free_port, soak, usage, wait};

const RATE: u64 = 5_000;
/// Agent and aggregator in one process, without the block cache: 150 MiB each. The ring counts twice: it is mapped
/// twice in a row, so that no record wraps.
const MAX_RESIDENT: u64 = (150 + 150) << 20;
/// `StoreOptions::block_cache_bytes` and the overhead of the cache.
const MAX_CACHE: u64 = 70 << 20;
/// What the allocator may take in addition while a machine with other work lets queues grow for a moment.
const ALLOWANCE: u64 = 3 << 20;
/// Samples of the memory, after equal numbers of messages.
const SAMPLES: u64 = 30;

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
    let pid = chainscope.program.pid();
    let sample = || {
        let (resident, anonymous) = (usage::memory(pid, "VmRSS"), usage::memory(pid, "RssAnon"));
        Sample { resident, anonymous, ..Sample::of_store(&chainscope.api) }
    };
    let started = Instant::now();
    let samples: Vec<Sample> = (1..=SAMPLES)
        .map(|number| {
            wait::until("more messages", || {
                (chainscope.api.count("node") >= RATE * seconds * number / SAMPLES).then_some(())
            });
            sample()
        })
        .collect();
    let rate = chainscope.api.count("node") as f64 / started.elapsed().as_secs_f64();
    local.terminate();
    remote.terminate();
    let account = Account::wait_settled(&chainscope.api, "node");
    account.assert_conserved();
    let mib = |bytes: u64| bytes >> 20;
    assert!(samples.iter().all(|sample| sample.block_cache <= MAX_CACHE), "{samples:?}");
    let without_cache = |sample: &Sample| sample.resident.saturating_sub(sample.block_cache);
    // The ring buffer is no anonymous memory; its pages become resident with their first use. The allocator keeps what write
    // buffers free, so that their size at one moment says nothing: the greatest of a third of the time has full ones.
    let own = |samples: &[Sample]| {
        let own = samples.iter().map(|sample| sample.anonymous.saturating_sub(sample.block_cache));
        own.max().expect("a sample")
    };
    let most = samples.iter().map(without_cache).max().expect("a sample");
    let (third, last) = (&samples[samples.len() / 3], &samples[samples.len() - 1]);
    eprintln!(
        "{rate:.0} messages/s: resident {} MiB and block cache {} MiB after a third, {} and {} MiB at the end; at most {} MiB \
         without the cache; {account:?}",
        mib(without_cache(third)),
        mib(third.block_cache),
        mib(without_cache(last)),
        mib(last.block_cache),
        mib(most),
    );
    assert_eq!((account.bytes_dropped, account.messages_dropped), (0, 0), "{account:?}");
    assert!(most <= MAX_RESIDENT, "{} MiB", mib(most));
    // Nothing but the block cache grows.
    let (middle, last) =
        (own(&samples[samples.len() / 3..samples.len() * 2 / 3]), own(&samples[samples.len() * 2 / 3..]));
    assert!(last <= middle + middle / 10 + ALLOWANCE, "{} MiB became {} MiB: {samples:?}", mib(middle), mib(last));
}

/// Memory in bytes.
#[derive(Debug, Default)]
struct Sample {
    resident: u64,
    anonymous: u64,
    block_cache: u64,
}

impl Sample {
    /// The memory of the store, from `/metrics`.
    fn of_store(api: &Api) -> Self {
        let (status, text) = api.request("/metrics").expect("an answer");
        assert_eq!(status, 200, "{text}");
        let metric = |name: &str| -> u64 {
            let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
            let value = line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or_else(|| panic!("no {name}"));
            value.parse().expect("a number")
        };
        let block_cache = metric("chainscope_store_block_cache_bytes");
        Self { block_cache, ..Self::default() }
    }
}
