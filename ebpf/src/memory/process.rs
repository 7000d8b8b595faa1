//! What `/proc/<pid>` tells of a process: when it began, and what is resident.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use super::reading::{MappingKind, MappingShare, Resident};

/// Field 22 of `stat`; `None` if there is no such process, or it has ended and nobody has asked how.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// What is resident now, and in swap.
pub(crate) fn resident(pid: u32) -> Option<Resident> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pages = |name: &str| kib(status.lines().find_map(|line| line.strip_prefix(name))?).map(|kib| kib / 4);
    // A process that is ending has no such lines any more.
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

/// What is resident by mapping; takes time in proportion to the memory of the process.
pub(crate) fn by_mapping(pid: u32) -> io::Result<Vec<MappingShare>> {
    let file = std::fs::File::open(format!("/proc/{pid}/smaps"))?;
    let mut shares: BTreeMap<MappingKind, (u64, u64)> = BTreeMap::new();
    let mut kind = MappingKind::Anonymous;
    for line in BufReader::with_capacity(64 << 10, file).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(value) = line.strip_prefix("Rss:").and_then(kib) {
            shares.entry(kind.clone()).or_default().0 += value / 4;
        } else if let Some(value) = line.strip_prefix("Anonymous:").and_then(kib) {
            shares.entry(kind.clone()).or_default().1 += value / 4;
        } else if let Some(heading) = heading(&line) {
            kind = heading;
        }
    }
    let share = |(mapping, (resident, anon))| MappingShare { mapping, resident, anon };
    Ok(shares.into_iter().filter(|(_, (resident, _))| *resident > 0).map(share).collect())
}

/// The name of a mapping, if this is the first line about it.
fn heading(line: &str) -> Option<MappingKind> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    if ![start, end].iter().all(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        return None;
    }
    // Access, offset, device and inode come before the name.
    let mut name = rest;
    for _ in 0..4 {
        name = name.trim_start();
        name = name.get(name.find(' ').unwrap_or(name.len())..)?;
    }
    Some(match name.trim_start() {
        "" => MappingKind::Anonymous,
        "[heap]" => MappingKind::Heap,
        name if name.starts_with("[stack") => MappingKind::Stack,
        name if name.starts_with('/') => MappingKind::File(PathBuf::from(name)),
        name => MappingKind::Other(name.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own() {
        let pid = std::process::id();
        assert!(start_time(pid).is_some_and(|ticks| ticks > 0));
        let resident = resident(pid).expect("we are there");
        assert!(resident.anon > 0 && resident.file > 0);
        let shares = by_mapping(pid).expect("we may look");
        assert!(shares.iter().any(|share| share.mapping == MappingKind::Stack && share.anon > 0));
        assert!(shares.iter().any(|share| matches!(share.mapping, MappingKind::File(_))));
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn headings() {
        assert_eq!(heading("00400000-0040b000 r-xp 00000000 fe:01 12   /a b"), Some(MappingKind::File("/a b".into())));
        assert_eq!(heading("7ffe-8000 rw-p 00000000 00:00 0 "), Some(MappingKind::Anonymous));
        assert_eq!(heading("7ffe-8000 rw-p 00000000 00:00 0   [heap]"), Some(MappingKind::Heap));
        assert_eq!(heading("VmFlags: rd ex mr mw me sd"), None);
        assert_eq!(heading("Size:                 44 kB"), None);
    }
}
