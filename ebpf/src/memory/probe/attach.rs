//! What a process has when it is watched.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::before::Before;
use super::super::kernel::{ADOPTED, Adopted, ORDER_SHIFT};
use super::super::process::{self, Area};
use super::super::programs;
use super::super::reading::{MappingKind, Resident, TargetId};
use super::super::stock::{self, Page, Stock};
use super::{MemoryProbe, last_node};
use crate::error::Error;

/// Looks at where its pages are: the process goes on meanwhile.
const LOOKS: usize = 3;
/// Mappings that are told apart.
const MOST_MAPPINGS: usize = 256;
/// Pages that nobody may account for before a process is said to share them.
const SHARED: u64 = 64;

/// Nodes of pages that were there before, and what they are mapped as.
pub(super) type Apart = Vec<(u32, MappingKind)>;

impl MemoryProbe {
    /// What is resident that was not attributed was so before.
    pub(super) fn take_stock(&mut self, target: TargetId) {
        let Some(pid) = self.processes.get(&target).map(|process| process.pid) else { return };
        let areas = process::areas(pid).unwrap_or_default();
        let control = process::resident(pid).unwrap_or_default();
        let exact = self.adopt(target, pid, &areas);
        self.tree.update(last_node(&self.numbers));
        let [anon, ..] = self.tree.total(target);
        if let Some(process) = self.processes.get_mut(&target) {
            // It allocated and freed meanwhile.
            let most = process::resident(pid).unwrap_or_default().anon.max(control.anon);
            process.at_attach = process::by_mapping(&areas);
            let cpus = self.accounts.length();
            process.before = Before::new(Resident { anon: most.saturating_sub(anon), ..control }, cpus);
            process.exact = exact;
        }
    }

    /// Enters the pages that it has under nodes of their own, by mapping; none if their frames cannot be told, or are
    /// counted for somebody else already.
    fn adopt(&mut self, target: TargetId, pid: u32, areas: &[Area]) -> Option<Apart> {
        let first = stock::of(pid, areas)?;
        let (nodes, by_area) = self.nodes_apart(target, areas)?;
        let entry =
            |page: Page| Adopted { frame: page.frame, node: by_area.get(page.area as usize).copied().unwrap_or(0) };
        let mut known = Stock::default();
        let mut now = first;
        for look in 1..=LOOKS {
            // Freed before they were entered, or moved.
            self.enter(stock::without(&known.pages, &now.pages).map(entry), true).ok()?;
            if look < LOOKS {
                let folios =
                    now.folios.iter().map(|(frame, order)| Adopted { frame: *frame, node: order << ORDER_SHIFT });
                self.enter(stock::without(&now.pages, &known.pages).map(entry).chain(folios), false).ok()?;
                known = std::mem::replace(&mut now, stock::of(pid, areas)?);
            }
        }
        self.tree.update(last_node(&self.numbers));
        let entered: u64 = nodes.iter().map(|(node, _)| self.tree.anonymous(*node)).sum();
        let [attributed, ..] = self.tree.total(target);
        let found = now.pages.len() as u64;
        if entered + attributed + found / 100 + SHARED < found {
            self.enter(known.pages.iter().copied().map(entry), true).ok()?;
            return None;
        }
        Some(nodes)
    }

    /// A node for each kind of mapping, and which one each area has.
    fn nodes_apart(&mut self, target: TargetId, areas: &[Area]) -> Option<(Apart, Vec<u32>)> {
        let mut nodes: BTreeMap<&MappingKind, u32> = BTreeMap::new();
        let mut by_area = Vec::with_capacity(areas.len());
        for area in areas {
            let is_known = nodes.len() < MOST_MAPPINGS || nodes.contains_key(&area.mapping);
            let mapping = if is_known { &area.mapping } else { &MappingKind::Anonymous };
            let node = match nodes.get(mapping) {
                Some(node) => *node,
                None => {
                    let root = self.new_root(target, &Arc::new(Vec::new())).ok()?;
                    self.tree.set_apart(root);
                    nodes.insert(mapping, root);
                    root
                }
            };
            by_area.push(node);
        }
        Some((nodes.into_iter().map(|(mapping, node)| (node, mapping.clone())).collect(), by_area))
    }

    /// Has pages entered in the kernel's table of owners, or taken off again.
    fn enter(&mut self, mut pages: impl Iterator<Item = Adopted>, is_undone: bool) -> Result<(), Error> {
        loop {
            let mut count = 0;
            for page in pages.by_ref().take(ADOPTED as usize) {
                self.adopted.set(count, page);
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            programs::adopt(&mut self.bpf, count, is_undone)?;
        }
    }
}
