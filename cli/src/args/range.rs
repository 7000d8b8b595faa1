//! Arguments that select by time, and a number of the newest.

use clap::Args;

use crate::time;

/// From when until when.
#[derive(Debug, Args)]
pub(crate) struct Period {
    /// Only those of this time or later: 10m (ago), 2026-11-23T17:00:00Z, or seconds or milliseconds since 1970
    #[arg(long, global = true, visible_alias = "from", value_name = "TIME", value_parser = time::parse)]
    pub(crate) since: Option<u64>,
    /// Only those of this time or earlier, as for --since
    #[arg(long, global = true, visible_alias = "to", value_name = "TIME", value_parser = time::parse)]
    pub(crate) until: Option<u64>,
}

impl Period {
    /// As parameters of a request.
    pub(crate) fn query(&self) -> impl Iterator<Item = (&'static str, String)> {
        let times = [("from", self.since), ("to", self.until)].into_iter();
        times.filter_map(|(name, time)| Some((name, time?.to_string())))
    }
}

/// From when until when, and how many.
#[derive(Debug, Args)]
pub(crate) struct Range {
    #[command(flatten)]
    pub(crate) period: Period,
    /// Number of past ones to begin with [default: 100; with --since all]
    #[arg(long, visible_alias = "last", value_name = "N")]
    pub(crate) limit: Option<u64>,
}

impl Range {
    /// Number of past ones to begin with.
    pub(crate) fn limit(&self, default: u64) -> Option<u64> {
        self.limit.or(self.period.since.is_none().then_some(default))
    }
}
