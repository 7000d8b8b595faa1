//! Start time and resident memory of a process, from `/proc/<pid>`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use super::reading::{MappingKind, MappingShare, Resident};

/// Field 22 of `stat`; `None` if there is no such process, or it is a zombie.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any character.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Resident and swapped pages.
pub(crate) fn resident(pid: u32) -> Option<Resident> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pages = |name: &str| kib(status.lines().find_map(|line| line.strip_prefix(name))?).map(|kib| kib / 4);
    // A process that is exiting has no such lines.
    let anon = pages("RssAnon:")?;
    Some(Resident {
        anon,
        file: pages("RssFile:").unwrap_or(0),
        shmem: pages("RssShmem:").unwrap_or(0),
        swap: pages("VmSwap:").unwrap_or(0),
    })
}

fn kib(text: &str) -> Option<u64> {
    text.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// A mapping with resident pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) mapping: MappingKind,
    /// Resident pages of the mapping, and those of them that are anonymous.
    pub(crate) resident: u64,
    pub(crate) anon: u64,
}

/// Resident pages of each mapping, from `smaps`; takes time in proportion to the memory of the process.
pub(crate) fn areas(pid: u32) -> io::Result<Vec<Area>> {
    let file = std::fs::File::open(format!("/proc/{pid}/smaps"))?;
    let mut areas: Vec<Area> = Vec::new();
    for line in BufReader::with_capacity(64 << 10, file).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(area) = heading(&line) {
            areas.push(area);
        } else if let Some(area) = areas.last_mut() {
            if let Some(value) = line.strip_prefix("Rss:").and_then(kib) {
                area.resident = value / 4;
            } else if let Some(value) = line.strip_prefix("Anonymous:").and_then(kib) {
                area.anon = value / 4;
            }
        }
    }
    areas.retain(|area| area.resident > 0);
    Ok(areas)
}

/// Sums of areas by kind of mapping.
pub(crate) fn by_mapping(areas: &[Area]) -> Vec<MappingShare> {
    let mut shares: BTreeMap<&MappingKind, (u64, u64)> = BTreeMap::new();
    for area in areas {
        let share = shares.entry(&area.mapping).or_default();
        *share = (share.0 + area.resident, share.1 + area.anon);
    }
    let share =
        |(mapping, (resident, anon)): (&MappingKind, _)| MappingShare { mapping: mapping.clone(), resident, anon };
    shares.into_iter().map(share).collect()
}

/// Parses the first line of a mapping; `None` for other lines.
fn heading(line: &str) -> Option<Area> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    // Access, offset, device and inode come before the name.
    let mut name = rest;
    for _ in 0..4 {
        name = name.trim_start();
        name = name.get(name.find(' ').unwrap_or(name.len())..)?;
    }
    let mapping = match name.trim_start() {
        "" => MappingKind::Anonymous,
        "[heap]" => MappingKind::Heap,
        name if name.starts_with("[stack") => MappingKind::Stack,
        name if name.starts_with('/') => MappingKind::File(PathBuf::from(name)),
        name => MappingKind::Other(name.to_owned()),
    };
    Some(Area { start, end, mapping, resident: 0, anon: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process() {
        let pid = std::process::id();
        assert!(start_time(pid).is_some_and(|ticks| ticks > 0));
        let resident = resident(pid).expect("this process");
        assert!(resident.anon > 0 && resident.file > 0);
        let areas = areas(pid).expect("permission");
        let shares = by_mapping(&areas);
        assert_eq!(shares.iter().map(|share| share.anon).sum::<u64>(), areas.iter().map(|area| area.anon).sum::<u64>());
        assert!(shares.iter().any(|share| share.mapping == MappingKind::Stack && share.anon > 0));
        assert!(shares.iter().any(|share| matches!(share.mapping, MappingKind::File(_))));
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn first_lines_of_mappings() {
        let mapping = |line: &str| heading(line).map(|area| area.mapping);
        assert_eq!(mapping("00400000-0040b000 r-xp 00000000 fe:01 12   /a b"), Some(MappingKind::File("/a b".into())));
        assert_eq!(mapping("7ffe-8000 rw-p 00000000 00:00 0 "), Some(MappingKind::Anonymous));
        assert_eq!(mapping("7ffe-8000 rw-p 00000000 00:00 0   [heap]"), Some(MappingKind::Heap));
        let area = heading("7ffe-8000 rw-p 00000000 00:00 0 ").expect("a mapping");
        assert_eq!((area.start, area.end), (0x7ffe, 0x8000));
        assert_eq!(heading("VmFlags: rd ex mr mw me sd"), None);
        assert_eq!(heading("Size:                 44 kB"), None);
    }
}
