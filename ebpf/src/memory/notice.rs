//! Notices of the memory programs: `struct notice` of `memory.h`.

use super::reading::TargetId;

/// A notice about a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) kind: NoticeKind,
    pub(crate) pid: u32,
    pub(crate) target: TargetId,
    pub(crate) parent: Option<TargetId>,
}

/// Kind of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoticeKind {
    /// A child was forked.
    Forked,
    /// It executed a program.
    Executed,
    /// Its last thread exited.
    Exited,
    /// A stack has an address in no known mapping.
    Unmapped,
}

/// Parses a record of the ring.
pub(crate) fn parse(record: &[u8]) -> Option<Notice> {
    let word = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let kind = match word(0)? {
        1 => NoticeKind::Forked,
        2 => NoticeKind::Executed,
        3 => NoticeKind::Exited,
        4 => NoticeKind::Unmapped,
        _ => return None,
    };
    let parent = word(12)?;
    Some(Notice { kind, pid: word(4)?, target: TargetId(word(8)?), parent: (parent != 0).then_some(TargetId(parent)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parsed() {
        let bytes: Vec<u8> = [1_u32, 77, 3, 2, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let notice = Notice { kind: NoticeKind::Forked, pid: 77, target: TargetId(3), parent: Some(TargetId(2)) };
        assert_eq!(parse(&bytes), Some(notice));
        assert_eq!(parse(&bytes[..12]), None);
        assert_eq!(parse(&[9; 24]), None);
    }
}
