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

use tantivy::{
    Term,
    query::{AllQuery, BooleanQuery, Occur, PhraseQuery, Query, TermQuery},
    schema::{Field, IndexRecordOption},
    tokenizer::{LowerCaser, RemoveLongFilter, SimpleTokenizer, TextAnalyzer, TokenStream as _},
};

use super::parse;
use crate::Error;

/// A query of full-text search, in the language of Lucene and Tantivy without its fields, ranges and patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextQuery(Option<Expr>);

/// A word and its position in the text.
pub(super) type Word = (usize, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expr {
    /// A word, or a phrase of several. Not empty; positions ascend.
    Words(Vec<Word>),
    /// Not empty.
    Group(Vec<(Occur, Expr)>),
}

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

impl Expr {
    /// A group, if there is anything in it.
    pub(super) fn group(clauses: Vec<(Occur, Self)>) -> Option<Self> {
        (!clauses.is_empty()).then_some(Self::Group(clauses))
    }

    fn matches(&self, text: &[Word]) -> bool {
        match self {
            Self::Words(wanted) => {
                let Some(((origin, first), rest)) = wanted.split_first() else { return false };
                text.iter().filter(|(_, word)| word == first).any(|(start, _)| {
                    rest.iter().all(|(position, wanted)| {
                        let at = text.binary_search_by_key(&(start + position - origin), |(position, _)| *position);
                        at.is_ok_and(|at| text[at].1 == *wanted)
                    })
                })
            }
            Self::Group(clauses) => {
                let of = |occur| clauses.iter().filter(move |clause| clause.0 == occur).map(|(_, expr)| expr);
                let is_one_needed = of(Occur::Must).next().is_none() && of(Occur::Should).next().is_some();
                of(Occur::Must).all(|expr| expr.matches(text))
                    && !of(Occur::MustNot).any(|expr| expr.matches(text))
                    && (!is_one_needed || of(Occur::Should).any(|expr| expr.matches(text)))
            }
        }
    }

    fn has_phrase(&self) -> bool {
        match self {
            Self::Words(words) => words.len() > 1,
            Self::Group(clauses) => clauses.iter().any(|(_, expr)| expr.has_phrase()),
        }
    }

    /// A query that matches at least every text that matches. Exclusions with a phrase are left to the texts: Tantivy 0.27
    /// asks an excluded phrase for documents before its first match, which its own debug assertion forbids.
    fn on_index(&self, field: Field) -> Box<dyn Query> {
        let term = |word: &str| Term::from_field_text(field, word);
        match self {
            Self::Words(words) => match words.as_slice() {
                [(_, word)] => Box::new(TermQuery::new(term(word), IndexRecordOption::Basic)),
                words => Box::new(PhraseQuery::new_with_offset(
                    words.iter().map(|(position, word)| (*position, term(word))).collect(),
                )),
            },
            Self::Group(clauses) => {
                let mut queries: Vec<_> = clauses
                    .iter()
                    .filter(|(occur, expr)| *occur != Occur::MustNot || !expr.has_phrase())
                    .map(|(occur, expr)| (*occur, expr.on_index(field)))
                    .collect();
                if queries.iter().all(|(occur, _)| *occur == Occur::MustNot) {
                    queries.push((Occur::Must, Box::new(AllQuery)));
                }
                Box::new(BooleanQuery::new(queries))
            }
        }
    }
}

/// What splits texts and queries into words: Tantivy's tokenizer `default`.
pub(super) fn analyzer() -> TextAnalyzer {
    TextAnalyzer::builder(SimpleTokenizer::default()).filter(RemoveLongFilter::limit(40)).filter(LowerCaser).build()
}

/// The words of a text.
pub(super) fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    analyzer().token_stream(text).process(&mut |token| words.push((token.position, token.text.clone())));
    words
}
