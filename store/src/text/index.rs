//! One full-text index: the words of the rows of one segment, by id.
//!
//! It holds no row, only ids (a fast field) and words with positions. Each commit says up to which id rows are indexed, and
//! with which version of this file: an index of another version is written anew.

use std::{ops::Range, path::Path};

use tantivy::{
    DocSet as _, Index, IndexReader, IndexWriter, ReloadPolicy, Searcher, TERMINATED, TantivyDocument, TantivyError,
    indexer::IndexWriterOptions,
    query::EnableScoring,
    schema::{FAST, Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions},
};

use super::{TextQuery, expr::analyzer};
use crate::{
    Error,
    posting::{BLOCK, Bits, block_of},
    query::{Meter, Order},
};

/// Raised when words are found otherwise than before.
const VERSION: u32 = 1;

/// Memory of a writer for the words of one commit: the least that Tantivy takes. Beyond it a commit has several parts.
const WRITER_BYTES: usize = 15_000_000;

const ID: &str = "id";
const TEXT: &str = "text";
const TOKENIZER: &str = "words";

/// Matches that are examined between two looks at the budget of a query.
const MATCHES_PER_STEP: usize = 1024;

fn schema() -> Schema {
    let mut schema = Schema::builder();
    schema.add_u64_field(ID, FAST);
    // Without the lengths of texts: nothing is ranked.
    let words = TextFieldIndexing::default()
        .set_tokenizer(TOKENIZER)
        .set_fieldnorms(false)
        .set_index_option(IndexRecordOption::WithFreqsAndPositions);
    schema.add_text_field(TEXT, TextOptions::default().set_indexing_options(words));
    schema.build()
}

/// An empty index in memory.
pub(super) fn in_memory() -> Index {
    with_tokenizer(Index::create_in_ram(schema()))
}

/// Creates an index in an empty directory.
pub(super) fn create(dir: &Path) -> Result<Index, TantivyError> {
    Index::create_in_dir(dir, schema()).map(with_tokenizer)
}

/// Opens the index in a directory.
pub(super) fn open(dir: &Path) -> Result<Index, TantivyError> {
    Index::open_in_dir(dir).map(with_tokenizer)
}

fn with_tokenizer(index: Index) -> Index {
    index.tokenizers().register(TOKENIZER, analyzer());
    index
}

/// The id up to which the rows are indexed; none if that cannot be read, or for another version.
pub(super) fn indexed(index: &Index, first_id: u64) -> Option<u64> {
    let metas = index.load_metas().ok()?;
    match metas.payload {
        Some(payload) => {
            let (version, next_id) = payload.split_once(' ')?;
            (version.parse() == Ok(VERSION)).then(|| next_id.parse().ok()).flatten()
        }
        None => metas.segments.is_empty().then_some(first_id),
    }
}

/// Whether every file of an index is as it was written.
pub(super) fn is_intact(index: &Index) -> bool {
    index.validate_checksum().is_ok_and(|damaged| damaged.is_empty()) && reader(index).is_ok()
}

/// A reader of what is committed, moved on by [`IndexReader::reload`] only.
pub(super) fn reader(index: &Index) -> Result<IndexReader, TantivyError> {
    index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()
}

/// Writes to an index.
pub(super) struct Writer {
    writer: IndexWriter,
    id: Field,
    text: Field,
}

impl Writer {
    pub(super) fn new(index: &Index) -> Result<Self, TantivyError> {
        let options = IndexWriterOptions::builder()
            .num_worker_threads(1)
            .num_merge_threads(1)
            .memory_budget_per_thread(WRITER_BYTES)
            .build();
        let schema = index.schema();
        let (id, text) = (schema.get_field(ID)?, schema.get_field(TEXT)?);
        Ok(Self { writer: index.writer_with_options(options)?, id, text })
    }

    pub(super) fn add(&self, id: u64, text: &str) -> Result<(), TantivyError> {
        let mut document = TantivyDocument::default();
        document.add_u64(self.id, id);
        document.add_text(self.text, text);
        self.writer.add_document(document).map(drop)
    }

    /// Makes what was added durable: all rows below `next_id`.
    pub(super) fn commit(&mut self, next_id: u64) -> Result<(), TantivyError> {
        let mut commit = self.writer.prepare_commit()?;
        commit.set_payload(&format!("{VERSION} {next_id}"));
        commit.commit().map(drop)
    }

    /// Ends it when the merges that run are done.
    pub(super) fn close(self) -> Result<(), TantivyError> {
        self.writer.wait_merging_threads()
    }
}

/// Rows of a segment that may match a query, by block: those whose words do, and those that are not indexed.
pub(crate) struct Candidates {
    first_block: u64,
    blocks: Vec<Bits>,
}

impl Candidates {
    /// The rows `ids` of a segment, of which those below `indexed` are in the index.
    pub(super) fn find(
        searcher: &Searcher,
        indexed: u64,
        ids: Range<u64>,
        query: &TextQuery,
        meter: &mut Meter<'_>,
    ) -> Result<Self, FindError> {
        let first_block = block_of(ids.start);
        let blocks = (first_block..ids.end).step_by(BLOCK as usize);
        let mut found =
            Self { first_block, blocks: blocks.map(|block| Bits::between(block, indexed, ids.end)).collect() };
        let Some(query) = query.on_index(searcher.schema().get_field(TEXT)?) else { return Ok(found) };
        let weight = query.weight(EnableScoring::disabled_from_searcher(searcher))?;
        for segment in searcher.segment_readers() {
            let row_ids = segment.fast_fields().u64(ID)?;
            // Rows were added in order, so that most parts lie outside of a narrow range as a whole.
            if row_ids.max_value() < ids.start || row_ids.min_value() >= ids.end {
                continue;
            }
            let mut matches = weight.scorer(segment, 1.0)?;
            let mut count: usize = 0;
            let mut document = matches.doc();
            while document != TERMINATED {
                if count.is_multiple_of(MATCHES_PER_STEP) {
                    meter.step().map_err(FindError::Ended)?;
                }
                count += 1;
                if let Some(id) = row_ids.first(document).filter(|id| ids.contains(id)) {
                    found.insert(id);
                }
                document = matches.advance();
            }
        }
        Ok(found)
    }

    fn insert(&mut self, id: u64) {
        if let Some(bits) = self.blocks.get_mut(((block_of(id) - self.first_block) / BLOCK) as usize) {
            bits.insert(id);
        }
    }

    /// The nearest block at or behind `block` in an order, and its rows.
    pub(crate) fn seek(&self, block: u64, order: Order) -> Option<(u64, &Bits)> {
        let at = usize::try_from(block.checked_sub(self.first_block)? / BLOCK).ok()?;
        let has_rows = |at: &usize| self.blocks.get(*at).is_some_and(|bits| !bits.is_empty());
        let at = match order {
            Order::OldestFirst => (at..self.blocks.len()).find(has_rows),
            Order::NewestFirst => (0..=at).rev().find(has_rows),
        }?;
        Some((self.first_block + at as u64 * BLOCK, self.blocks.get(at)?))
    }
}

/// Why candidates were not found.
pub(super) enum FindError {
    /// The index cannot be read.
    Index(TantivyError),
    /// The budget of the query is used up.
    Ended(Error),
}

impl From<TantivyError> for FindError {
    fn from(error: TantivyError) -> Self {
        Self::Index(error)
    }
}
