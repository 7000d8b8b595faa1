//! The map of watched processes, and the bitmap by which the programs find out quickly that a process is not watched
//! (`src/bpf/memory/target.h`).

use std::sync::atomic::{AtomicU32, Ordering};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError};

use super::abi::{MAX_PID, Target};
use crate::error::Error;
use crate::load::{mmap_array, take_map};
use crate::mmap_array::MmapArray;

/// `BPF_NOEXIST`: do not overwrite an element that a program has inserted.
const BPF_NOEXIST: u64 = 1;

/// Watched processes by pid. The programs insert and remove processes as well.
pub(super) struct Targets {
    entries: HashMap<MapData, u32, Target>,
    bits: MmapArray<u64>,
}

impl Targets {
    /// Takes the maps out of the loaded object.
    pub(super) fn new(bpf: &mut Ebpf) -> Result<Self, Error> {
        Ok(Self { entries: take_map(bpf, "targets")?, bits: mmap_array(bpf, "target_bits", MAX_PID / 64)? })
    }

    pub(super) fn get(&self, pid: u32) -> Option<Target> {
        self.entries.get(&pid, 0).ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Target)> {
        self.entries.iter().filter_map(Result::ok)
    }

    /// Inserts a process, unless it is there.
    pub(super) fn insert(&mut self, pid: u32, target: Target) -> Result<(), MapError> {
        self.set_bit(pid);
        let inserted = self.entries.insert(pid, target, BPF_NOEXIST);
        match inserted {
            Ok(()) => self.set_bit(pid),
            Err(_) => self.clear_bit_unless_present(pid),
        }
        inserted
    }

    /// Removes a process. It may have exited already.
    pub(super) fn remove(&mut self, pid: u32) {
        // An error means that a program has removed it.
        let _ = self.entries.remove(&pid);
        self.clear_bit_unless_present(pid);
    }

    fn clear_bit_unless_present(&self, pid: u32) {
        if let Some((word, bit)) = self.bit(pid) {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
        if self.get(pid).is_some() {
            self.set_bit(pid);
        }
    }

    fn set_bit(&self, pid: u32) {
        if let Some((word, bit)) = self.bit(pid) {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// The half of an element that has the bit of a process. x86-64 is little-endian.
    fn bit(&self, pid: u32) -> Option<(&AtomicU32, u32)> {
        let half = if pid & 32 == 0 { 0 } else { size_of::<u32>() };
        self.bits.atomic(pid / 64, half).map(|word| (word, 1 << (pid % 32)))
    }

    /// Whether the bit of a process is set.
    #[cfg(test)]
    fn has_bit(&self, pid: u32) -> bool {
        self.bit(pid).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryOptions, programs};

    /// Needs root, like every test of programs.
    #[test]
    fn exactly_the_bits_of_watched_processes_are_set() {
        let mut object = programs::load(&MemoryOptions::default()).expect("the programs");
        let mut targets = Targets::new(&mut object.bpf).expect("the maps");
        let all = [1, 31, 32, 63, 64, 4711, MAX_PID - 1];
        let target = |id| Target { id, ..Target::default() };
        for (id, pid) in (1..).zip(all) {
            targets.insert(pid, target(id)).expect("an entry");
        }
        assert!(targets.insert(31, target(9)).is_err(), "it is there");
        targets.remove(63);
        targets.remove(65);
        let set: Vec<u32> = (0..MAX_PID).filter(|pid| targets.has_bit(*pid)).collect();
        assert_eq!(set, [1, 31, 32, 64, 4711, MAX_PID - 1]);
        let mut entries: Vec<u32> = targets.iter().map(|(pid, _)| pid).collect();
        entries.sort_unstable();
        assert_eq!(entries, set);
        assert_eq!(targets.get(31), Some(target(2)));
    }
}
