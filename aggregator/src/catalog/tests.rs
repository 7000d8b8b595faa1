use std::{sync::Arc, time::Duration};

use chainscope_proto::v1::{
    CatalogNode, CatalogUpdate, LatencyBlock, LogMessage, LogRetention, Loss, Record, TraceEvent, record::Kind,
};
use chainscope_store::{Retention, Store, StoreOptions};
use proptest::prelude::*;

use super::{Catalog, CatalogConfig, EVICT_ALL, UpdateError, persisted::PersistedCatalog};
use crate::nodes::{Nodes, ResolveError};

const HOUR: i64 = 3_600_000_000_000;

fn node(name: &str, aliases: &[&str], hosts: &[&str]) -> CatalogNode {
    let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    CatalogNode {
        node: name.into(),
        aliases: list(aliases),
        keep_rows: Some(7),
        memory_snapshots: None,
        log_retention: Some(LogRetention { keep_rows: None, keep_bytes: Some(9), keep_seconds: Some(30) }),
        trace_retention: None,
        keep_bytes: None,
        keep_seconds: Some(60),
        hosts: list(hosts),
    }
}

fn update(snapshot: bool, nodes: Vec<CatalogNode>, removed: &[&str]) -> CatalogUpdate {
    let removed = removed.iter().map(|&name| name.into()).collect();
    CatalogUpdate { version: 1, generation: 1, snapshot, nodes, removed, more: false }
}

struct Fixture {
    dir: tempfile::TempDir,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store =
            Store::open(dir.path().join("db"), StoreOptions { ballast_bytes: 0, ..StoreOptions::default() }).unwrap();
        Self { dir, store }
    }

    fn catalog(&self) -> (Catalog, Arc<Nodes>) {
        let nodes = Arc::new(Nodes::new(&[], [], 3, Retention::default()).unwrap());
        let config = CatalogConfig {
            operator: "http://localhost:1".into(),
            ca_file: None,
            token_file: None,
            file: self.dir.path().join("catalog.json"),
            deleted_retention: Duration::from_secs(3600),
        };
        (Catalog::open(&config, Arc::clone(&nodes), self.store.clone(), 0).unwrap(), nodes)
    }
}

#[test]
fn a_snapshot_replaces_the_catalog_and_changes_follow() {
    let fixture = Fixture::new();
    let (catalog, nodes) = fixture.catalog();
    assert!(!catalog.is_known());
    assert_eq!(catalog.apply(update(false, vec![], &[]), 0), Err(UpdateError::NoSnapshot));
    assert_eq!(
        catalog.apply(CatalogUpdate { version: 9, ..update(true, vec![], &[]) }, 0),
        Err(UpdateError::Version(9))
    );
    catalog.apply(update(true, vec![node("a/x", &["main"], &["h1"]), node("a/y", &[], &[])], &[]), 0).unwrap();
    assert!(catalog.is_known() && catalog.lists("a/x", "h1"));
    assert!(!catalog.lists("a/x", "h2") && !catalog.lists("a/y", "h1") && !catalog.lists("b/z", "h1"));
    assert_eq!(nodes.find(Some("main"), None), Ok("a/x".into()));
    catalog.apply(update(false, vec![node("a/x", &["other"], &["h2"])], &["a/y"]), 5).unwrap();
    assert!(catalog.lists("a/x", "h2") && !catalog.lists("a/x", "h1"));
    assert_eq!(nodes.find(Some("main"), None), Err(ResolveError::Unknown("main".into())));
    assert_eq!(nodes.find(Some("other"), None), Ok("a/x".into()));
    let all = nodes.all();
    assert_eq!((all[0].1.configured, all[0].1.deleted_ns), (true, None));
    assert_eq!((all[1].1.configured, all[1].1.deleted_ns), (false, Some(5)));
    let wanted = Retention { rows: Some(7), bytes: None, age: Some(Duration::from_secs(60)) };
    assert_eq!(all[0].1.retention, Some(wanted));
    let wanted = Retention { rows: None, bytes: Some(9), age: Some(Duration::from_secs(30)) };
    assert_eq!(all[0].1.log_retention, Some(wanted));
}

#[test]
fn the_catalog_survives_a_restart_and_a_damaged_file_is_ignored() {
    let fixture = Fixture::new();
    let (catalog, _) = fixture.catalog();
    catalog.apply(update(true, vec![node("a/x", &["main"], &["h1"])], &[]), 0).unwrap();
    drop(catalog);
    let (catalog, nodes) = fixture.catalog();
    assert!(catalog.is_known() && catalog.lists("a/x", "h1"));
    assert_eq!(nodes.find(Some("main"), None), Ok("a/x".into()));
    drop(catalog);
    std::fs::write(fixture.dir.path().join("catalog.json"), b"{\"nodes\":").unwrap();
    let (catalog, _) = fixture.catalog();
    assert!(!catalog.is_known());
}

#[test]
fn a_deleted_node_expires_unless_it_is_created_again() {
    let fixture = Fixture::new();
    let (catalog, nodes) = fixture.catalog();
    let both = || vec![node("a/x", &[], &[]), node("a/y", &[], &[])];
    catalog.apply(update(true, both(), &[]), 0).unwrap();
    catalog.apply(update(false, vec![], &["a/x", "a/y"]), HOUR).unwrap();
    catalog.expire_deleted(2 * HOUR - 1);
    assert!(nodes.knows("a/x") && nodes.knows("a/y"));
    catalog.apply(update(false, vec![node("a/x", &[], &[])], &[]), 2 * HOUR - 1).unwrap();
    // The time of the deletion is persisted. (A node with records is added from the store.)
    drop(catalog);
    let (catalog, nodes) = fixture.catalog();
    nodes.register("a/y").unwrap();
    catalog.expire_deleted(2 * HOUR - 1);
    assert!(nodes.knows("a/y"));
    catalog.expire_deleted(2 * HOUR);
    assert!(nodes.knows("a/x") && !nodes.knows("a/y"));
    assert_ne!(nodes.all()[0].1.retention, Some(EVICT_ALL));
    assert_eq!(nodes.all()[0].1.deleted_ns, None);
    catalog.expire_deleted(9 * HOUR);
    assert!(nodes.knows("a/x"), "what the operator lists stays");
}

#[test]
fn the_records_of_a_deleted_node_are_evicted_before_it_is_removed() {
    let latency = LatencyBlock { run_id: vec![7; 16], ..LatencyBlock::default() };
    let kinds = [
        Kind::Loss(Loss::default()),
        Kind::LogMessage(LogMessage::default()),
        Kind::TraceEvent(TraceEvent::default()),
        Kind::LatencyBlock(latency),
    ];
    for kind in kinds {
        let fixture = Fixture::new();
        let record = Record { kind: Some(kind.clone()), ..Record::default() };
        fixture.store.append("a/x", "host", b"epoch", 0, &[record]).unwrap();
        fixture.store.sync().unwrap();
        let (catalog, nodes) = fixture.catalog();
        catalog.apply(update(true, vec![node("a/x", &[], &[]), node("a/y", &[], &[])], &[]), 0).unwrap();
        catalog.apply(update(false, vec![], &["a/x"]), HOUR).unwrap();
        catalog.expire_deleted(2 * HOUR);
        assert!(nodes.knows("a/x"), "{kind:?}");
        let facts = || fixture.store.nodes().iter().find(|node| node.name == "a/x").unwrap().facts;
        assert_eq!(facts(), 1, "{kind:?}");
        fixture.store.evict(i64::MAX).unwrap();
        fixture.store.evict(i64::MAX).unwrap();
        assert_eq!(facts(), 0, "{kind:?}");
        catalog.expire_deleted(2 * HOUR);
        assert!(!nodes.knows("a/x"), "{kind:?}");
    }
}

#[test]
fn nodes_that_vanish_together_are_kept_until_snapshots_over_a_time_confirm_it() {
    let fixture = Fixture::new();
    let (catalog, nodes) = fixture.catalog();
    let all = || ["a/1", "a/2", "a/3"].map(|name| node(name, &[], &["h"])).to_vec();
    catalog.apply(update(true, all(), &[]), 0).unwrap();
    // An operator that lost its nodes: records are still accepted, and nothing expires.
    catalog.apply(update(true, vec![], &[]), HOUR).unwrap();
    assert_eq!(catalog.unconfirmed(), 3);
    catalog.expire_deleted(100 * HOUR);
    assert!(catalog.lists("a/1", "h") && nodes.all().iter().all(|(_, node)| node.deleted_ns.is_none()));
    drop(catalog);
    let (catalog, nodes) = fixture.catalog();
    assert_eq!(catalog.unconfirmed(), 3, "after a restart, too");
    // Two of them come back; the third one is missing in two more snapshots, too early and late enough.
    let two = || all()[..2].to_vec();
    catalog.apply(update(true, two(), &[]), HOUR + 1).unwrap();
    catalog.apply(update(true, two(), &[]), 2 * HOUR - 1).unwrap();
    assert!(catalog.lists("a/3", "h") && catalog.unconfirmed() == 1);
    catalog.apply(update(true, two(), &[]), 2 * HOUR).unwrap();
    assert!(!catalog.lists("a/3", "h") && catalog.unconfirmed() == 0);
    catalog.expire_deleted(2 * HOUR);
    assert_eq!(nodes.candidates(None), ["a/1", "a/2"]);
    // A smaller share is deleted at once, and so is what the operator says to be removed.
    catalog.apply(update(true, all(), &[]), 3 * HOUR).unwrap();
    catalog.apply(update(true, two(), &[]), 4 * HOUR).unwrap();
    catalog.apply(update(false, vec![], &["a/1", "a/2"]), 4 * HOUR).unwrap();
    assert!(catalog.unconfirmed() == 0 && nodes.all().iter().all(|(_, node)| node.deleted_ns == Some(4 * HOUR)));
}

#[test]
fn stored_nodes_that_the_first_snapshot_lacks_are_kept() {
    let fixture = Fixture::new();
    let (catalog, nodes) = fixture.catalog();
    nodes.register("a/x").unwrap();
    catalog.apply(update(true, vec![], &[]), 0).unwrap();
    catalog.expire_deleted(9 * HOUR);
    assert!(nodes.knows("a/x") && catalog.unconfirmed() == 1);
}

#[test]
fn invalid_names_and_nodes_beyond_the_limit_are_ignored() {
    let fixture = Fixture::new();
    let (catalog, nodes) = fixture.catalog();
    let many = ["a/b/c", "..", "a/1", "a/2", "a/3", "a/4", "a\u{1b}"].map(|name| node(name, &[], &["h"])).to_vec();
    catalog.apply(update(true, many, &[]), 0).unwrap();
    assert_eq!(nodes.candidates(None), ["a/1", "a/2", "a/3"]);
}

proptest! {
    #[test]
    fn changes_result_in_the_final_snapshot(
        steps in proptest::collection::vec((proptest::collection::vec((0u8..6, 0u8..3), 0..4), proptest::collection::vec(0u8..6, 0..3)), 0..8)
    ) {
        let name = |number: &u8| format!("a/{number}");
        let mut changed_catalog = PersistedCatalog::updated(None, update(true, vec![], &[]), 100).unwrap().0;
        let mut model = std::collections::BTreeMap::new();
        for (changed, removed) in steps {
            let removed: Vec<String> = removed.iter().map(name).collect();
            removed.iter().for_each(|name| { model.remove(name); });
            let changed: Vec<_> = changed.iter().map(|(number, host)| {
                let node = node(&name(number), &[], &[&host.to_string()]);
                model.insert(node.node.clone(), node.clone());
                node
            }).collect();
            let step = CatalogUpdate { removed, ..update(false, changed, &[]) };
            changed_catalog = PersistedCatalog::updated(Some(&changed_catalog), step, 100).unwrap().0;
        }
        let snapshot = PersistedCatalog::updated(None, update(true, model.into_values().collect(), &[]), 100).unwrap().0;
        prop_assert_eq!(changed_catalog.nodes, snapshot.nodes);
    }
}
