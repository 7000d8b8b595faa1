//! The page frames of this machine.

/// One more than the greatest page frame number: where the last zone ends.
pub(crate) fn frames() -> Option<u32> {
    frames_of(&std::fs::read_to_string("/proc/zoneinfo").ok()?)
}

fn frames_of(zoneinfo: &str) -> Option<u32> {
    let end = |zone: &str| {
        let number = |name: &str| {
            let line = zone.lines().map(str::trim).find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().parse::<u64>().ok()
        };
        let spanned = number("spanned").filter(|&spanned| spanned > 0)?;
        Some(number("start_pfn")? + spanned)
    };
    // The part before the first zone's heading has neither number.
    u32::try_from(zoneinfo.split("Node ").filter_map(end).max()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_zone_with_pages_decides() {
        let text = "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 1\n        spanned  4095\n  start_pfn:           1\n\
                    Node 0, zone   Normal\n        spanned  5505024\n  start_pfn:           1048576\n\
                    Node 0, zone  Movable\n        spanned  0\n        present  0\n";
        assert_eq!(frames_of(text), Some(1_048_576 + 5_505_024));
        assert_eq!(frames_of(""), None);
        assert!(frames().is_some_and(|frames| frames > 1000));
    }
}
