//! The query of a text search, and what it matches.
//!
//! ```text
//! branch head            one of the words, or both          +branch head      must have "branch"
//! branch AND head        both                               branch -head      must not have "head"; also NOT
//! "branch head"          one right after the other          a OR NOT b        one, or the other is missing
//! (a OR b) AND NOT c     groups
//! ```
//!
//! A text is split at everything that is neither letter nor digit, and case does not count; so `10.0.0.1:9732` is the phrase of its
//! five numbers, and there are no fields, ranges or patterns. Words of 40 bytes and more are not indexed and count as a
//! word of their own between others. A query of exclusions only matches all other texts; one without any word matches none.

use tantivy::{query::Query, schema::Field};

use super::{
    expr::{Expr, words},
    parse,
};
use crate::Error;

/// A query of full-text search, in the language of Lucene and Tantivy without its fields, ranges and patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextQuery(Option<Expr>);

impl TextQuery {
    /// Reads a query. Unbalanced quotes, and signs that stand alone, are text.
    ///
    /// # Errors
    /// [`Error::TextQuery`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        parse::parse(text).map(Self)
    }

    /// Whether it has no word, so that nothing matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a text is an answer.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.0.as_ref().is_some_and(|expr| expr.matches(&words(text)))
    }

    /// The query on an index, if anything can match.
    pub(super) fn on_index(&self, field: Field) -> Option<Box<dyn Query>> {
        self.0.as_ref().map(|expr| expr.on_index(field))
    }
}
