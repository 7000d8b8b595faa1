//! What the probe says when it is asked.

use std::collections::HashSet;

use super::super::kernel::{Account, Layout};
use super::super::programs;
use super::super::reading::{Health, Reading, Resident, Scope, StackEnd, TargetId, TargetReading};
use super::super::{process, tree::Tree};
use super::{MemoryProbe, Process, last_node};
use crate::error::Error;

impl MemoryProbe {
    /// What is held now, by whom and where; see [`Scope`]. Takes milliseconds.
    ///
    /// # Errors
    /// A failure of the system call; what cannot be read otherwise shows in [`Health`].
    pub fn read(&mut self, scope: Scope) -> Result<Reading, Error> {
        let at_ns = monotonic_ns();
        self.free_nodes()?;
        programs::inspect(&mut self.bpf)?;
        let last = last_node(&self.numbers);
        self.tree.update(last);
        let mut targets: Vec<TargetReading> = Vec::new();
        let sharing = self.sharing();
        for (target, process) in &mut self.processes {
            let attributed = self.tree.total(*target);
            let shares = sharing.contains(target);
            targets.push(reading_of(
                *target,
                process,
                at_ns,
                attributed,
                self.layouts.get(process.image),
                shares,
                &self.tree,
            ));
            self.layouts.ask_again(process.image);
        }
        targets.sort_by_key(|reading| reading.target);
        let (nodes, counts) = self.tree.take(scope);
        let modules = self.modules.since(if scope == Scope::All { 0 } else { self.modules_reported });
        self.modules_reported = self.modules.count();
        Ok(Reading { at_ns, modules, nodes, counts, targets, health: self.health() })
    }

    /// Processes that share pages since a fork: the kernel counts such a page for each of them.
    fn sharing(&self) -> HashSet<TargetId> {
        let copies = self.processes.iter().filter(|(_, process)| process.alive);
        copies.filter_map(|(target, process)| Some([*target, process.copied_from?])).flatten().collect()
    }

    fn health(&self) -> Health {
        let mut sum = Account::default();
        for cpu in (0..self.accounts.length()).filter_map(|cpu| self.accounts.get(cpu)) {
            sum.beyond_table += cpu.beyond_table;
            sum.stale += cpu.stale;
            sum.no_node += cpu.no_node;
            sum.no_folio += cpu.no_folio;
            sum.allocations += cpu.allocations;
            sum.frames += cpu.frames;
            sum.fresh_frames += cpu.fresh_frames;
            sum.rule_misses += cpu.rule_misses;
            sum.moved += cpu.moved;
            sum.checked += cpu.checked;
            sum.mismatches += cpu.mismatches;
        }
        let numbers = self.numbers.get(0).unwrap_or_default();
        let lost = [
            ("beyond_table", sum.beyond_table),
            ("missed_free", sum.stale),
            ("missed_event", programs::missed_runs(&self.bpf)),
            ("tree_full", sum.no_node),
            ("folio", sum.no_folio),
            ("notice", numbers.lost_notices.into()),
            ("target", numbers.lost_targets.into()),
        ];
        Health {
            lost: lost.into_iter().filter(|(_, count)| *count > 0).collect(),
            nodes_used: self.tree.used(),
            nodes_room: self.nodes,
            rules: self.modules.rows(),
            moved: sum.moved,
            stacks: sum.allocations,
            frames: sum.frames,
            fresh_frames: sum.fresh_frames,
            rule_misses: sum.rule_misses,
            checked: sum.checked,
            mismatches: sum.mismatches,
            refused: self.modules.refused().to_vec(),
        }
    }
}

fn reading_of(
    target: TargetId,
    process: &mut Process,
    at_ns: u64,
    attributed: [u64; 3],
    layout: Option<Layout>,
    shares_pages: bool,
    tree: &Tree,
) -> TargetReading {
    let control = if process.alive { process::resident(process.pid).unwrap_or_default() } else { Resident::default() };
    let [anon, ..] = attributed;
    let mut before = process.before.look(at_ns, control, (!shares_pages).then(|| control.anon.saturating_sub(anon)));
    let exact = process.exact.as_ref().map(|nodes| {
        let held = nodes.iter().map(|(node, mapping)| (mapping.clone(), tree.anonymous(*node)));
        held.filter(|(_, pages)| *pages > 0).collect::<Vec<_>>()
    });
    if let Some(exact) = &exact {
        before.anon = exact.iter().map(|(_, pages)| pages).sum();
    }
    let now = layout.map_or([0; 8], |layout| layout.stacks);
    let stacks = StackEnd::ALL.into_iter().zip(process.past_stacks.iter().zip(now).map(|(past, now)| past + now));
    TargetReading {
        target,
        parent: process.parent,
        pid: process.pid,
        start_time: process.start_time,
        alive: process.alive,
        control,
        attributed,
        before_attach: before,
        at_attach: process.at_attach.clone(),
        before_exact: exact,
        shares_pages,
        stacks: stacks.filter(|(_, count)| *count > 0).collect(),
    }
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
