//! Bounds of the memory for what is held.

use std::collections::HashMap;

use super::HeldProcess;
use crate::targets::ProcessGroup;

/// Memory for what is held of the processes of one group.
pub(super) const GROUP_BYTES: usize = 8 << 20;
/// Memory for what is held of all processes.
pub(super) const ALL_BYTES: usize = 64 << 20;
/// Payload leaves this part of both limits to openings and endings: connections that begin later can still be held.
const RESERVED_PART: usize = 8;

/// Memory in use.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) all: usize,
    /// Of each group; of provisional processes together.
    pub(super) groups: HashMap<Option<ProcessGroup>, usize>,
}

impl Memory {
    /// Whether a connection fits, or another item without payload.
    pub(super) fn fits(&self, group: &Option<ProcessGroup>, bytes: usize) -> bool {
        self.is_within(group, bytes, (GROUP_BYTES, ALL_BYTES))
    }

    /// Whether payload fits, with its item.
    pub(super) fn fits_payload(&self, group: &Option<ProcessGroup>, bytes: usize) -> bool {
        let limits = (GROUP_BYTES - GROUP_BYTES / RESERVED_PART, ALL_BYTES - ALL_BYTES / RESERVED_PART);
        self.is_within(group, bytes, limits)
    }

    fn is_within(&self, group: &Option<ProcessGroup>, bytes: usize, (of_group, of_all): (usize, usize)) -> bool {
        let used = self.groups.get(group).copied().unwrap_or(0);
        used + bytes <= of_group && self.all + bytes <= of_all
    }

    /// Charges a process with what is held of it.
    pub(super) fn charge(&mut self, held: &mut HeldProcess, bytes: usize) {
        held.memory += bytes;
        self.add(&held.group, bytes);
    }

    pub(super) fn add(&mut self, group: &Option<ProcessGroup>, bytes: usize) {
        self.all += bytes;
        *self.groups.entry(group.clone()).or_default() += bytes;
    }

    pub(super) fn subtract(&mut self, group: &Option<ProcessGroup>, bytes: usize) {
        self.all -= bytes;
        if let Some(sum) = self.groups.get_mut(group) {
            *sum -= bytes;
            if *sum == 0 {
                self.groups.remove(group);
            }
        }
    }
}
