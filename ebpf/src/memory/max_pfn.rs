//! The greatest page frame number of this machine.

/// Greatest page frame number plus 1: the end of the last zone.
pub(crate) fn max_pfn() -> Option<u32> {
    parse_zoneinfo(&std::fs::read_to_string("/proc/zoneinfo").ok()?)
}

fn parse_zoneinfo(zoneinfo: &str) -> Option<u32> {
    let end = |zone: &str| {
        let number = |name: &str| {
            let line = zone.lines().map(str::trim).find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().parse::<u64>().ok()
        };
        let spanned = number("spanned").filter(|&spanned| spanned > 0)?;
        Some(number("start_pfn")? + spanned)
    };
    // The part before the heading of the first zone has neither number.
    u32::try_from(zoneinfo.split("Node ").filter_map(end).max()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_zone_with_pages_counts() {
        let text = "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 1\n        spanned  4095\n  start_pfn:           1\n\
                    Node 0, zone   Normal\n        spanned  5505024\n  start_pfn:           1048576\n\
                    Node 0, zone  Movable\n        spanned  0\n        present  0\n";
        assert_eq!(parse_zoneinfo(text), Some(1_048_576 + 5_505_024));
        assert_eq!(parse_zoneinfo(""), None);
        assert!(max_pfn().is_some_and(|pfn| pfn > 1000));
    }
}
