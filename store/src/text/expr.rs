//! What a text query asks for, and which texts match.

use tantivy::{
    Term,
    query::{AllQuery, BooleanQuery, Occur, PhraseQuery, Query, TermQuery},
    schema::{Field, IndexRecordOption},
    tokenizer::{LowerCaser, RemoveLongFilter, SimpleTokenizer, TextAnalyzer, TokenStream as _},
};

/// A word and its position in the text.
pub(super) type Word = (usize, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expr {
    /// A word, or a phrase of several. Not empty; positions ascend.
    Words(Vec<Word>),
    /// Not empty.
    Group(Vec<(Occur, Expr)>),
}

impl Expr {
    /// A group, if there is anything in it.
    pub(super) fn group(clauses: Vec<(Occur, Self)>) -> Option<Self> {
        (!clauses.is_empty()).then_some(Self::Group(clauses))
    }

    pub(super) fn matches(&self, text: &[Word]) -> bool {
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
    pub(super) fn on_index(&self, field: Field) -> Box<dyn Query> {
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
