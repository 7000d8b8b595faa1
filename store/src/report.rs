//! What a check of the database found.

/// Problems listed in words; more are only counted.
const MAX_LISTED: usize = 100;

/// What a check of the database found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Nodes checked.
    pub nodes: u64,
    /// Segments of records and of log messages checked.
    pub segments: u64,
    /// Rows checked, of every kind that is found by id.
    pub rows: u64,
    /// Postings checked.
    pub postings: u64,
    /// Chunks stored.
    pub chunks: u64,
    /// Chunks that rows name and that never came: lost before the store.
    pub chunks_absent: u64,
    /// Contradictions found.
    pub problem_count: u64,
    /// The first of them, in words.
    pub problems: Vec<String>,
}

impl Report {
    /// Whether nothing contradicts anything.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    pub(crate) fn problem(&mut self, text: String) {
        self.problem_count += 1;
        if self.problems.len() < MAX_LISTED {
            self.problems.push(text);
        }
    }
}
