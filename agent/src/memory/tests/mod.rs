//! Profiles from made-up readings, merged as an aggregator merges them.

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
    board::{Board, Update},
    profile::Subject,
    tree::{Call, Named},
};
use crate::{
    clock::Clock,
    symbols::{Category, Function, Place},
};

fn subject(pid: u32) -> Subject {
    Subject { node: "node".into(), label: format!("pid {pid}").into(), pid, name: "octez-node".to_owned() }
}

/// A call of the functions named by its number; every third has an inlined one.
fn call(number: u32, parent: u32) -> (u32, Call) {
    let function = |name: String| Function { name: name.into(), category: Category::NodeRust };
    let mut functions = vec![function(format!("f{number}"))];
    if number.is_multiple_of(3) {
        functions.push(function(format!("i{number}")));
    }
    let place = Place {
        executable: "octez-node".into(),
        functions: functions.into(),
        category: Category::NodeCpp,
        is_deleted: false,
    };
    (number, Call { parent, named: Named::Code { offset: u64::from(number) * 16, place: Arc::new(place) } })
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
    Reading { at_ns: 5, modules: Vec::new(), nodes: Vec::new(), counts, targets, health: Health::default() }
}

fn update(board: &Board, update: Update) {
    board.update(update, &Clock::with_offset(1_000));
}

/// A board with one profile and three calls, one below the other.
fn small() -> Board {
    let board = Board::default();
    board.begin_stream(true);
    update(
        &board,
        Update {
            calls: vec![call(1, 0), call(2, 1), call(3, 2)],
            began: vec![(7, subject(70))],
            reading: Some(reading(vec![count(7, 3, 10), count(7, 2, 5)], vec![target(7, 70, 15)])),
            ..Update::default()
        },
    );
    board
}

fn stack(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
