//! What restarts of agents and nodes leave behind: streams, agents, accounts.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use chainscope_proto::v1::{NetworkAccount, ReasonCount, Record, record::Kind};

use super::support::*;
use crate::{
    Account, Store, StoreOptions,
    engine::{Engine, memory::MemoryEngine},
    keys,
    network::MAX_ACCOUNTS,
    schema::KINDS,
    streams::{MAX_IDLE_NS, MAX_STREAMS, Streams},
};

const DAY: i64 = 24 * 60 * 60 * 1_000_000_000;

/// A store whose clock is `now`.
fn store(engine: &Arc<MemoryEngine>, now: &Arc<AtomicI64>) -> Store {
    let now = Arc::clone(now);
    let options = StoreOptions { clock: Arc::new(move || now.load(Ordering::Relaxed)), ..options() };
    Store::with_engine(Arc::clone(engine) as Arc<dyn Engine>, options, KINDS).unwrap()
}

/// Rows of the node that belong to no segment.
fn state_rows(engine: &MemoryEngine) -> usize {
    let range = keys::segments(1, keys::STATE..keys::STATE + 1);
    let snapshot = engine.snapshot();
    let mut cursor = snapshot.cursor(&range.start..&range.end);
    let mut rows = 0;
    cursor.first().unwrap();
    while cursor.entry().is_some() {
        rows += 1;
        cursor.next().unwrap();
    }
    rows
}

fn terms(account: &Account) -> &NetworkAccount {
    match &account.record.kind {
        Some(Kind::NetworkAccount(terms)) => terms,
        other => panic!("{other:?}"),
    }
}

/// Messages, dropped bytes and open connections over all accounts.
fn totals(store: &Store) -> (u64, u64, u64) {
    let accounts = store.accounts(NODE).unwrap();
    let sum = |of: fn(&NetworkAccount) -> u64| accounts.iter().map(|account| of(terms(account))).sum();
    let dropped = sum(|terms| terms.bytes_dropped.iter().map(|dropped| dropped.count).sum());
    (sum(|terms| terms.messages), dropped, sum(|terms| terms.connections_open))
}

#[test]
fn ten_thousand_restarts_leave_a_bounded_number_of_rows_and_exact_totals() {
    const RESTARTS: u64 = 10_000;
    let (engine, now) = (Arc::new(MemoryEngine::new(u64::MAX)), Arc::new(AtomicI64::new(0)));
    let mut open = store(&engine, &now);
    let mut messages = 0;
    for restart in 0..RESTARTS {
        // Each time another process on another host.
        let (agent, epoch) = (format!("host-{restart}"), restart.to_be_bytes());
        let dropped = ReasonCount { reason: format!("reason {}", restart % 3), count: 2 };
        let account = NetworkAccount {
            messages: restart,
            bytes_dropped: vec![dropped],
            connections_open: 1,
            ..NetworkAccount::default()
        };
        let account = Record {
            time_ns: restart as i64,
            target: format!("pid {restart}"),
            kind: Some(Kind::NetworkAccount(account)),
        };
        let beginning = Record { kind: Some(Kind::NetworkAccount(NetworkAccount::default())), ..account.clone() };
        open.append(NODE, &agent, &epoch, 0, &[beginning, account]).unwrap();
        open.sync().unwrap();
        messages += restart;
        now.fetch_add(1, Ordering::Relaxed);
        if restart % 500 == 499 {
            open.evict(now.load(Ordering::Relaxed)).unwrap();
            assert_eq!((totals(&open).0, totals(&open).1), (messages, 2 * (restart + 1)));
            open = store(&engine, &now);
        }
    }
    let rows = state_rows(&engine);
    // The node itself; an agent for each stream; the sum of the retired accounts.
    assert!(rows <= 1 + 2 * MAX_STREAMS + MAX_ACCOUNTS + 1, "{rows} rows");
    let accounts = open.accounts(NODE).unwrap();
    assert_eq!(accounts.len(), MAX_ACCOUNTS + 1);
    let (retired, kept) = accounts.split_last().unwrap();
    assert!(retired.agent.is_empty() && retired.epoch.is_empty() && retired.record.target.is_empty());
    assert_eq!(terms(retired).bytes_dropped.len(), 3);
    assert!(kept.iter().all(|account| account.record.time_ns >= (RESTARTS as i64) - MAX_ACCOUNTS as i64));
    assert_eq!(totals(&open), (messages, 2 * RESTARTS, MAX_ACCOUNTS as u64), "no connection of a retired one is open");
    // The latest streams are known, the first one is not.
    let mark = |restart: u64| open.high_water_mark(NODE, &format!("host-{restart}"), &restart.to_be_bytes());
    assert_eq!((mark(RESTARTS - 1), mark(RESTARTS - MAX_STREAMS as u64), mark(0)), (2, 2, 0));
}

#[test]
fn a_stream_is_forgotten_a_month_after_its_last_record() {
    let (engine, now) = (Arc::new(MemoryEngine::new(u64::MAX)), Arc::new(AtomicI64::new(0)));
    let open = store(&engine, &now);
    let append = |agent: &str, first: u64| {
        open.append(NODE, agent, EPOCH, first, &traffic(1, first / 2, 1)).unwrap();
        open.sync().unwrap();
    };
    append("gone", 0);
    append("here", 0);
    now.store(20 * DAY, Ordering::Relaxed);
    append("here", 2);
    let marks = |store: &Store, day: i64| {
        store.evict(day * DAY).unwrap();
        ["gone", "here"].map(|agent| store.high_water_mark(NODE, agent, EPOCH))
    };
    assert_eq!(MAX_IDLE_NS, 30 * DAY);
    assert_eq!(marks(&open, 29), [2, 4]);
    let rows = state_rows(&engine);
    assert_eq!(marks(&open, 31), [0, 4]);
    assert_eq!(state_rows(&engine), rows - 2, "the stream and its agent");
    drop(open);
    let open = store(&engine, &now);
    assert_eq!(marks(&open, 31), [0, 4]);
    // It can come back.
    open.append(NODE, "gone", EPOCH, 0, &traffic(2, 0, 1)).unwrap();
    open.sync().unwrap();
    assert_eq!(marks(&open, 49), [2, 4]);
    assert_eq!(marks(&open, 51), [0, 0]);
    assert_sound(&open);
}

#[test]
fn a_stream_of_an_older_build_is_idle_from_now_on() {
    let mut streams = Streams::default();
    streams.load(b"key", &7u64.to_be_bytes()).unwrap();
    assert_eq!(streams.load(b"cut", &[0; 7]), None);
    assert_eq!(streams.forget(100 * DAY), Vec::<Vec<u8>>::new());
    assert_eq!(streams.mark(streams.find(b"key").unwrap()).durable, 7);
    assert_eq!(streams.forget(131 * DAY), [b"key".to_vec()]);
}
