//! Readings of the probe.

use std::collections::HashSet;

use super::super::abi::{AddressSpace, Counters, FOLIO_BATCH};
use super::super::call_tree::CallTree;
use super::super::process;
use super::super::programs;
use super::super::reading::{Health, ModuleId, Reading, Resident, Scope, StackEnd, TargetId, TargetReading};
use super::{MemoryProbe, Process};
use crate::error::Error;

impl MemoryProbe {
    /// Reads nodes, counts and targets; see [`Scope`]. Takes milliseconds.
    ///
    /// # Errors
    /// A failure of a system call. Other problems are in [`Health`].
    pub fn read(&mut self, scope: Scope) -> Result<Reading, Error> {
        let at_ns = monotonic_ns();
        self.reclaim_nodes()?;
        programs::resolve_kinds(&mut self.bpf)?;
        self.inspect_folios()?;
        let last = self.last_node();
        self.tree.update(last);
        let mut targets: Vec<TargetReading> = Vec::new();
        let targets_sharing_pages = self.targets_sharing_pages();
        for (target, process) in &mut self.processes {
            let shares = targets_sharing_pages.contains(target);
            let rss = process.alive.then(|| process::resident(&self.proc, process.pid)).flatten();
            targets.push(reading_of(
                *target,
                process,
                rss.unwrap_or_default(),
                at_ns,
                self.address_spaces.get(process.mm),
                shares,
                &self.tree,
            ));
            self.address_spaces.reset_unmapped(process.mm);
        }
        let (nodes, counts) = self.tree.take(scope);
        let removed_nodes = self.tree.take_dropped();
        let removed_modules = self.remove_modules();
        let modules = self.modules.since(if scope == Scope::All { ModuleId(0) } else { self.modules_reported });
        self.modules_reported = self.modules.next();
        self.retire_nodes();
        Ok(Reading { at_ns, modules, nodes, removed_nodes, removed_modules, counts, targets, health: self.health() })
    }

    /// Inspects the large folios of all targets, some at a time.
    fn inspect_folios(&mut self) -> Result<(), Error> {
        let pfns: Vec<u32> = self.folios.keys().filter_map(Result::ok).collect();
        for batch in pfns.chunks(FOLIO_BATCH as usize) {
            (0..).zip(batch).for_each(|(index, pfn)| self.folio_batch.set(index, u64::from(*pfn)));
            programs::inspect_folios(&mut self.bpf, batch.len() as u32)?;
        }
        Ok(())
    }

    /// Targets that share pages since a fork: the kernel counts such a page for each of them.
    fn targets_sharing_pages(&self) -> HashSet<TargetId> {
        let copies = self.processes.iter().filter(|(_, process)| process.alive);
        copies.filter_map(|(target, process)| Some([*target, process.copied_from?])).flatten().collect()
    }

    fn health(&self) -> Health {
        let mut sum = Counters::default();
        for cpu in (0..self.counters.length()).filter_map(|cpu| self.counters.get(cpu)) {
            sum.beyond_owner_table += cpu.beyond_owner_table;
            sum.missed_frees += cpu.missed_frees;
            sum.tree_full += cpu.tree_full;
            sum.share_full += cpu.share_full;
            sum.folio_table_full += cpu.folio_table_full;
            sum.allocations += cpu.allocations;
            sum.frames += cpu.frames;
            sum.unwound_frames += cpu.unwound_frames;
            sum.rule_misses += cpu.rule_misses;
            sum.moved_pages += cpu.moved_pages;
            sum.verified_stacks += cpu.verified_stacks;
            sum.mismatched_stacks += cpu.mismatched_stacks;
        }
        let globals = self.globals.get(0).unwrap_or_default();
        let lost = [
            ("beyond_table", sum.beyond_owner_table),
            ("missed_free", sum.missed_frees),
            ("missed_event", programs::missed_runs(&self.bpf)),
            ("tree_full", sum.tree_full),
            ("tree_share", sum.share_full),
            ("folio", sum.folio_table_full),
            ("notice", globals.lost_notices.into()),
            ("target", globals.lost_targets.into()),
        ];
        Health {
            lost: lost.into_iter().filter(|(_, count)| *count > 0).collect(),
            nodes_used: self.tree.used(),
            nodes_max: self.nodes,
            rules: self.modules.rows(),
            moved: sum.moved_pages,
            stacks: sum.allocations,
            frames: sum.frames,
            fresh_frames: sum.unwound_frames,
            rule_misses: sum.rule_misses,
            checked: sum.verified_stacks,
            mismatches: sum.mismatched_stacks,
            refused: self.modules.refused().to_vec(),
        }
    }
}

fn reading_of(
    target: TargetId,
    process: &mut Process,
    rss: Resident,
    at_ns: u64,
    address_space: Option<AddressSpace>,
    shares_pages: bool,
    tree: &CallTree,
) -> TargetReading {
    let attributed = tree.total(target);
    let [anon, ..] = attributed;
    let mut before = process.preexisting.sample(at_ns, rss, (!shares_pages).then(|| rss.anon.saturating_sub(anon)));
    let exact = process.preexisting_roots.as_ref().map(|nodes| {
        let held = nodes.iter().map(|(node, mapping)| (mapping.clone(), tree.anonymous(*node)));
        held.filter(|(_, pages)| *pages > 0).collect::<Vec<_>>()
    });
    if let Some(exact) = &exact {
        before.anon = exact.iter().map(|(_, pages)| pages).sum();
    }
    let now = address_space.map_or([0; 8], |entry| entry.stacks);
    let stacks = StackEnd::ALL.into_iter().zip(process.past_stacks.iter().zip(now).map(|(past, now)| past + now));
    TargetReading {
        target,
        parent: process.parent,
        pid: process.pid,
        start_time: process.start_time,
        alive: process.alive,
        control: rss,
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
