//! Memory that a process has when it is watched.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::abi::{ORDER_SHIFT, PREEXISTING_BATCH, PreexistingPage};
use super::super::pagemap::{self, Page, PagemapScan};
use super::super::preexisting::PreexistingPages;
use super::super::process::{self, Area};
use super::super::programs;
use super::super::reading::{MappingKind, Resident, TargetId};
use super::MemoryProbe;
use crate::error::Error;

/// Number of scans of the pages; the process continues to run.
const SCANS: usize = 3;
/// Maximum number of mappings with a root of their own.
const MAX_MAPPINGS: usize = 256;
/// Maximum number of unaccounted pages; with more, the pages are considered shared with another process.
const MAX_UNACCOUNTED: u64 = 64;

/// Roots of preexisting pages, by mapping.
pub(super) type PreexistingRoots = Vec<(u32, MappingKind)>;

impl MemoryProbe {
    /// Determines the preexisting pages of a new target: resident pages that are not attributed.
    pub(super) fn scan_preexisting(&mut self, target: TargetId) {
        let Some(pid) = self.processes.get(&target).map(|process| process.pid) else { return };
        let proc = self.proc.clone();
        let areas = self.call_of(pid, move || process::areas(&proc, pid).unwrap_or_default());
        let areas: Arc<[Area]> = areas.unwrap_or_default().into();
        let control = process::resident(&self.proc, pid).unwrap_or_default();
        let roots = self.add_preexisting(target, pid, &areas);
        self.tree.update(self.last_node());
        let [anon, ..] = self.tree.total(target);
        if let Some(process) = self.processes.get_mut(&target) {
            // The process has allocated and freed in the meantime.
            let most = process::resident(&self.proc, pid).unwrap_or_default().anon.max(control.anon);
            process.at_attach = process::by_mapping(&areas);
            let cpus = self.counters.length();
            process.preexisting = PreexistingPages::new(Resident { anon: most.saturating_sub(anon), ..control }, cpus);
            process.preexisting_roots = roots;
        }
    }

    /// Counts the pages under roots of their own, by mapping; `None` if their pfns are unknown, or if they have another owner
    /// already.
    fn add_preexisting(&mut self, target: TargetId, pid: u32, areas: &Arc<[Area]>) -> Option<PreexistingRoots> {
        let first = self.scan_pages(pid, areas)?;
        let (nodes, by_area) = self.new_preexisting_roots(target, areas)?;
        let entry =
            |page: Page| PreexistingPage { pfn: page.pfn, node: by_area.get(page.area as usize).copied().unwrap_or(0) };
        let mut known = PagemapScan::default();
        let mut now = first;
        for scan in 1..=SCANS {
            // Freed before they got an owner, or migrated.
            self.set_owners(pagemap::difference(&known.pages, &now.pages).map(entry), true).ok()?;
            if scan < SCANS {
                let folios =
                    now.folios.iter().map(|(pfn, order)| PreexistingPage { pfn: *pfn, node: order << ORDER_SHIFT });
                self.set_owners(pagemap::difference(&now.pages, &known.pages).map(entry).chain(folios), false).ok()?;
                known = std::mem::replace(&mut now, self.scan_pages(pid, areas)?);
            }
        }
        self.tree.update(self.last_node());
        let entered: u64 = nodes.iter().map(|(node, _)| self.tree.anonymous(*node)).sum();
        let [attributed, ..] = self.tree.total(target);
        let found = now.pages.len() as u64;
        if entered + attributed + found / 100 + MAX_UNACCOUNTED < found {
            self.set_owners(known.pages.iter().copied().map(entry), true).ok()?;
            return None;
        }
        Some(nodes)
    }

    fn scan_pages(&self, pid: u32, areas: &Arc<[Area]>) -> Option<PagemapScan> {
        let (proc, areas) = (self.proc.clone(), Arc::clone(areas));
        self.call_of(pid, move || pagemap::scan(&proc, pid, &areas))?
    }

    /// Allocates a root for each kind of mapping; returns them, and the root of each area.
    fn new_preexisting_roots(&mut self, target: TargetId, areas: &[Area]) -> Option<(PreexistingRoots, Vec<u32>)> {
        let mut nodes: BTreeMap<&MappingKind, u32> = BTreeMap::new();
        let mut by_area = Vec::with_capacity(areas.len());
        for area in areas {
            let is_known = nodes.len() < MAX_MAPPINGS || nodes.contains_key(&area.mapping);
            let mapping = if is_known { &area.mapping } else { &MappingKind::Anonymous };
            let node = match nodes.get(mapping) {
                Some(node) => *node,
                None => {
                    let root = self.new_root(target, &Arc::new(Vec::new())).ok()?;
                    self.tree.exclude_root(root);
                    nodes.insert(mapping, root);
                    root
                }
            };
            by_area.push(node);
        }
        Some((nodes.into_iter().map(|(mapping, node)| (node, mapping.clone())).collect(), by_area))
    }

    /// Sets the owner of pages in the kernel, or removes it again.
    fn set_owners(&mut self, mut pages: impl Iterator<Item = PreexistingPage>, is_removal: bool) -> Result<(), Error> {
        loop {
            let mut count = 0;
            for page in pages.by_ref().take(PREEXISTING_BATCH as usize) {
                self.preexisting_pages.set(count, page);
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            programs::add_preexisting(&mut self.bpf, count, is_removal)?;
        }
    }
}
