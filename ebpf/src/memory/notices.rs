//! What the kernel tells at once: `struct notice` of `memory.h`.

use super::reading::TargetId;

/// A notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) what: What,
    pub(crate) pid: u32,
    pub(crate) target: TargetId,
    pub(crate) parent: Option<TargetId>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Forked,
    Executed,
    Exited,
    /// An address in no mapping that is known.
    Unmapped,
}

/// A record of the ring.
pub(crate) fn parse(record: &[u8]) -> Option<Notice> {
    let word = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let what = match word(0)? {
        1 => What::Forked,
        2 => What::Executed,
        3 => What::Exited,
        4 => What::Unmapped,
        _ => return None,
    };
    let parent = word(12)?;
    Some(Notice { what, pid: word(4)?, target: TargetId(word(8)?), parent: (parent != 0).then_some(TargetId(parent)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records() {
        let bytes: Vec<u8> = [1_u32, 77, 3, 2, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let notice = Notice { what: What::Forked, pid: 77, target: TargetId(3), parent: Some(TargetId(2)) };
        assert_eq!(parse(&bytes), Some(notice));
        assert_eq!(parse(&bytes[..12]), None);
        assert_eq!(parse(&[9; 24]), None);
    }
}
