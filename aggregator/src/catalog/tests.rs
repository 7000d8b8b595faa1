use std::{sync::Arc, time::Duration};

use chainscope_proto::v1::{CatalogNode, CatalogUpdate};
use chainscope_store::{Retention, Store, StoreOptions};
use proptest::prelude::*;

use super::{Catalog, CatalogConfig, NOTHING, UpdateError, kept::Kept};
use crate::nodes::{Nodes, Unclear};

const HOUR: i64 = 3_600_000_000_000;

fn node(name: &str, aliases: &[&str], hosts: &[&str]) -> CatalogNode {
    let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    CatalogNode {
        node: name.into(),
        aliases: list(aliases),
        keep_rows: Some(7),
        memory_snapshots: None,
        keep_bytes: None,
        keep_seconds: Some(60),
        hosts: list(hosts),
    }
}

fn update(snapshot: bool, nodes: Vec<CatalogNode>, removed: &[&str]) -> CatalogUpdate {
    let removed = removed.iter().map(|&name| name.into()).collect();
    CatalogUpdate { version: 1, generation: 1, snapshot, nodes, removed, more: false }
}

struct Room {
    dir: tempfile::TempDir,
    store: Store,
}

impl Room {
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
            keep_deleted: Duration::from_secs(3600),
        };
        (Catalog::open(&config, Arc::clone(&nodes), self.store.clone(), 0).unwrap(), nodes)
    }
}

#[test]
fn a_snapshot_is_all_there_is_and_changes_follow() {
    let room = Room::new();
    let (catalog, nodes) = room.catalog();
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
    assert_eq!(nodes.find(Some("main"), None), Err(Unclear::Unknown("main".into())));
    assert_eq!(nodes.find(Some("other"), None), Ok("a/x".into()));
    let all = nodes.all();
    assert_eq!((all[0].1.configured, all[0].1.deleted_ns), (true, None));
    assert_eq!((all[1].1.configured, all[1].1.deleted_ns), (false, Some(5)));
    let wanted = Retention { rows: Some(7), bytes: None, age: Some(Duration::from_secs(60)) };
    assert_eq!(all[0].1.retention, Some(wanted));
}

#[test]
fn it_outlives_the_program_and_a_damaged_file_is_none() {
    let room = Room::new();
    let (catalog, _) = room.catalog();
    catalog.apply(update(true, vec![node("a/x", &["main"], &["h1"])], &[]), 0).unwrap();
    drop(catalog);
    let (catalog, nodes) = room.catalog();
    assert!(catalog.is_known() && catalog.lists("a/x", "h1"));
    assert_eq!(nodes.find(Some("main"), None), Ok("a/x".into()));
    drop(catalog);
    std::fs::write(room.dir.path().join("catalog.json"), b"{\"nodes\":").unwrap();
    let (catalog, _) = room.catalog();
    assert!(!catalog.is_known());
}

#[test]
fn a_deleted_node_goes_after_its_time_unless_it_comes_back() {
    let room = Room::new();
    let (catalog, nodes) = room.catalog();
    let both = || vec![node("a/x", &[], &[]), node("a/y", &[], &[])];
    catalog.apply(update(true, both(), &[]), 0).unwrap();
    catalog.apply(update(true, vec![], &[]), HOUR).unwrap();
    catalog.tick(2 * HOUR - 1);
    assert!(nodes.knows("a/x") && nodes.knows("a/y"));
    catalog.apply(update(false, vec![node("a/x", &[], &[])], &[]), 2 * HOUR - 1).unwrap();
    // Also across a restart: the time runs on. (What has records comes back from the store.)
    drop(catalog);
    let (catalog, nodes) = room.catalog();
    nodes.register("a/y").unwrap();
    catalog.tick(2 * HOUR - 1);
    assert!(nodes.knows("a/y"));
    catalog.tick(2 * HOUR);
    assert!(nodes.knows("a/x") && !nodes.knows("a/y"));
    assert_ne!(nodes.all()[0].1.retention, Some(NOTHING));
    assert_eq!(nodes.all()[0].1.deleted_ns, None);
    catalog.tick(9 * HOUR);
    assert!(nodes.knows("a/x"), "what the operator lists stays");
}

#[test]
fn names_that_cannot_be_and_too_many_are_left_out() {
    let room = Room::new();
    let (catalog, nodes) = room.catalog();
    let many = ["a/b/c", "..", "a/1", "a/2", "a/3", "a/4", "a\u{1b}"].map(|name| node(name, &[], &["h"])).to_vec();
    catalog.apply(update(true, many, &[]), 0).unwrap();
    assert_eq!(nodes.candidates(None), ["a/1", "a/2", "a/3"]);
}

proptest! {
    #[test]
    fn changes_add_up_to_the_snapshot_of_the_end(
        steps in proptest::collection::vec((proptest::collection::vec((0u8..6, 0u8..3), 0..4), proptest::collection::vec(0u8..6, 0..3)), 0..8)
    ) {
        let name = |number: &u8| format!("a/{number}");
        let mut kept = Kept::updated(None, update(true, vec![], &[]), 100).unwrap().0;
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
            kept = Kept::updated(Some(&kept), step, 100).unwrap().0;
        }
        let whole = Kept::updated(None, update(true, model.into_values().collect(), &[]), 100).unwrap().0;
        prop_assert_eq!(kept.nodes, whole.nodes);
    }
}
