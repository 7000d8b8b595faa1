//! Tests on synthetic readings, merged as by an aggregator.

mod bounds;
mod calls;
mod merged;
mod property;
mod stream;
mod watcher;

use std::{collections::BTreeMap, sync::Arc};

use chainscope_ebpf::memory::{Count, Health, Kind, NodeId, Reading, Resident, StackEnd, TargetId, TargetReading};
use merged::{Merged, ack, drain, only};

use super::{
    profile::Subject,
    profile_store::{ProfileStore, SymbolizedUpdate},
    tree::{Call, ResolvedFrame},
};
use crate::{
    clock::Clock,
    symbols::{Category, Function, Location},
};

fn subject(pid: u32) -> Subject {
    Subject { node: "node".into(), label: format!("pid {pid}").into(), pid, name: "octez-node".to_owned() }
}

/// A call of functions named after its number; every third one has an inlined function.
fn call(number: u32, parent: u32) -> (u32, Call) {
    let function = |name: String| Function { name: name.into(), category: Category::NodeRust };
    let mut functions = vec![function(format!("f{number}"))];
    if number.is_multiple_of(3) {
        functions.push(function(format!("i{number}")));
    }
    let location = Location {
        executable: "octez-node".into(),
        functions: functions.into(),
        category: Category::NodeCpp,
        is_deleted: false,
    };
    (
        number,
        Call { parent, frame: ResolvedFrame::Code { offset: u64::from(number) * 16, location: Arc::new(location) } },
    )
}

fn count(target: u32, node: u32, pages: u64) -> Count {
    Count { target: TargetId(target), node: NodeId(node), kind: Kind::Anonymous, pages }
}

fn target(target: u32, pid: u32, anon: u64) -> TargetReading {
    TargetReading {
        target: TargetId(target),
        parent: None,
        pid,
        start_time: 1,
        alive: true,
        shares_pages: false,
        control: Resident { anon, ..Resident::default() },
        attributed: [anon, 0, 0],
        before_attach: Resident::default(),
        at_attach: Vec::new(),
        before_exact: None,
        stacks: vec![(StackEnd::Complete, anon)],
    }
}

fn reading(counts: Vec<Count>, targets: Vec<TargetReading>) -> Reading {
    Reading {
        at_ns: 5,
        modules: Vec::new(),
        nodes: Vec::new(),
        removed_nodes: Vec::new(),
        removed_modules: Vec::new(),
        counts,
        targets,
        health: Health::default(),
    }
}

fn update(store: &ProfileStore, update: SymbolizedUpdate) {
    store.update(update, &Clock::with_offset(1_000));
}

/// A store with one profile and a chain of three calls.
fn small_store() -> ProfileStore {
    let store = ProfileStore::default();
    store.begin_stream(true);
    update(
        &store,
        SymbolizedUpdate {
            calls: vec![call(1, 0), call(2, 1), call(3, 2)],
            started: vec![(7, subject(70))],
            reading: Some(reading(vec![count(7, 3, 10), count(7, 2, 5)], vec![target(7, 70, 15)])),
            ..SymbolizedUpdate::default()
        },
    );
    store
}

fn stack(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
