//! Reads a text query: a list of tokens, then groups of clauses by recursive descent.

use std::{iter::Peekable, vec};

use tantivy::query::Occur;

use super::expr::{Expr, Word, words};
use crate::Error;

/// Longest query, in characters.
const MAX_LENGTH: usize = 4096;
/// Most words in a query.
const MAX_WORDS: usize = 128;
/// Greatest depth of parentheses.
const MAX_DEPTH: usize = 16;

/// Reads a query; none if it has no words.
pub(super) fn parse(text: &str) -> Result<Option<Expr>, Error> {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() > MAX_LENGTH {
        return Err(error(MAX_LENGTH, format!("a query has at most {MAX_LENGTH} characters")));
    }
    let mut parser = Parser { tokens: tokens(&chars)?.into_iter().peekable(), end: chars.len() };
    let query = parser.group(0)?;
    match parser.tokens.next() {
        Some((position, _)) => Err(error(position, "this parenthesis was not opened")),
        None => Ok(query),
    }
}

fn error(position: usize, reason: impl Into<String>) -> Error {
    Error::TextQuery { position, reason: reason.into() }
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    And,
    Or,
    Plus,
    /// `-` or `NOT`.
    Minus,
    /// A word or a phrase; without words, as `%`, it has no effect.
    Text(Vec<Word>),
}

/// The tokens with their positions.
fn tokens(chars: &[char]) -> Result<Vec<(usize, Token)>, Error> {
    let mut tokens = Vec::new();
    let (mut at, mut count) = (0, 0);
    while let Some(&first) = chars.get(at) {
        let start = at;
        at += 1;
        let rest = chars.get(at..).unwrap_or_default();
        let next = rest.first().copied().unwrap_or(' ');
        let token = match first {
            '(' => Token::Open,
            ')' => Token::Close,
            '"' => {
                // One without its counterpart is text.
                let Some(length) = rest.iter().position(|char| *char == '"') else { continue };
                at += length + 1;
                text(rest.get(..length))
            }
            '+' | '-' if !next.is_whitespace() && !"+-)".contains(next) => {
                if first == '+' {
                    Token::Plus
                } else {
                    Token::Minus
                }
            }
            first if first.is_whitespace() => continue,
            _ => {
                let is_end = |char: &char| char.is_whitespace() || "()\"".contains(*char);
                at += rest.iter().position(is_end).unwrap_or(rest.len());
                match chars.get(start..at) {
                    Some(['A', 'N', 'D']) => Token::And,
                    Some(['O', 'R']) => Token::Or,
                    Some(['N', 'O', 'T']) => Token::Minus,
                    word => text(word),
                }
            }
        };
        if let Token::Text(words) = &token {
            count += words.len();
            if count > MAX_WORDS {
                return Err(error(start, format!("a query has at most {MAX_WORDS} words")));
            }
        }
        tokens.push((start, token));
    }
    Ok(tokens)
}

fn text(chars: Option<&[char]>) -> Token {
    Token::Text(words(&chars.unwrap_or_default().iter().collect::<String>()))
}

struct Parser {
    tokens: Peekable<vec::IntoIter<(usize, Token)>>,
    /// Length of the query.
    end: usize,
}

/// A clause; none if it has no words.
type Clause = Option<(Occur, Expr)>;

impl Parser {
    fn next_if(&mut self, wanted: &Token) -> Option<usize> {
        self.tokens.next_if(|(_, token)| token == wanted).map(|(position, _)| position)
    }

    /// Clauses up to the end, or to a closing parenthesis.
    fn group(&mut self, depth: usize) -> Result<Option<Expr>, Error> {
        let mut clauses = Vec::new();
        let mut is_behind_or = false;
        while self.tokens.peek().is_some_and(|(_, token)| *token != Token::Close) {
            let clause = self.conjunction(depth)?;
            let is_before_or = self.next_if(&Token::Or).is_some();
            if is_before_or {
                self.expect_operand("OR")?;
            }
            clauses.extend(clause.map(|clause| match clause {
                // An alternative of its own, not an exclusion from the others.
                (Occur::MustNot, _) if is_behind_or || is_before_or => (Occur::Should, Expr::Group(vec![clause])),
                clause => clause,
            }));
            is_behind_or = is_before_or;
        }
        Ok(Expr::group(clauses))
    }

    /// A clause, or several with AND between them.
    fn conjunction(&mut self, depth: usize) -> Result<Clause, Error> {
        let first = self.clause(depth)?;
        if self.tokens.peek().is_none_or(|(_, token)| *token != Token::And) {
            return Ok(first);
        }
        let mut all: Vec<_> = first.into_iter().collect();
        while self.next_if(&Token::And).is_some() {
            self.expect_operand("AND")?;
            all.extend(self.clause(depth)?);
        }
        for (occur, _) in &mut all {
            if *occur == Occur::Should {
                *occur = Occur::Must;
            }
        }
        Ok(Expr::group(all).map(|expr| (Occur::Should, expr)))
    }

    fn clause(&mut self, depth: usize) -> Result<Clause, Error> {
        let occur = if self.next_if(&Token::Plus).is_some() {
            Occur::Must
        } else if self.next_if(&Token::Minus).is_some() {
            Occur::MustNot
        } else {
            Occur::Should
        };
        let expr = match self.tokens.next() {
            Some((_, Token::Text(words))) => (!words.is_empty()).then_some(Expr::Words(words)),
            Some((position, Token::Open)) => {
                if depth == MAX_DEPTH {
                    return Err(error(position, format!("parentheses are at most {MAX_DEPTH} deep")));
                }
                let group = self.group(depth + 1)?;
                if self.next_if(&Token::Close).is_none() {
                    return Err(error(position, "this parenthesis is not closed"));
                }
                group
            }
            // A sign before a quote that is text.
            None => None,
            Some((position, _)) => return Err(error(position, "a word, a phrase or a group is missing before this")),
        };
        Ok(expr.map(|expr| (occur, expr)))
    }

    /// Something has to follow an operator.
    fn expect_operand(&mut self, operator: &str) -> Result<(), Error> {
        match self.tokens.peek() {
            None | Some((_, Token::Close)) => {
                let position = self.tokens.peek().map_or(self.end, |(position, _)| *position);
                Err(error(position, format!("a word, a phrase or a group is missing after {operator}")))
            }
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::TextQuery;

    fn matches(query: &str, text: &str) -> bool {
        TextQuery::parse(query).unwrap_or_else(|error| panic!("{query}: {error}")).matches(text)
    }

    #[test]
    fn a_query_means_what_lucene_means_by_it() {
        let text = "Head of branch-7: 10.0.0.1:9732 (peer idqÄ) changed";
        for query in [
            "head",
            "HEAD nothing",
            "nothing head",
            "+head nothing",
            "head AND changed",
            "head AND changed OR nothing AND never",
            "nothing AND head OR changed",
            "\"head of branch\"",
            "branch-7",
            "10.0.0.1",
            "10.0.0.1:9732",
            "idqä",
            "head -nothing",
            "-nothing",
            "NOT nothing",
            "-(nothing never) head",
            "(nothing OR head) AND (changed never)",
            "head:of",
            // Unbalanced quotes, signs and marks that stand alone.
            "\"head of branch",
            "head\"",
            "head %",
            "\"head%\"",
            "- head",
            "+ head",
            "head -",
            "--head",
            "head -\"",
            "head AND %",
            "nothing OR NOT never",
            "-head OR changed",
            "nothing OR -head OR changed",
            "and or not head",
        ] {
            assert!(matches(query, text), "{query}");
        }
        for query in [
            "",
            " ",
            "%",
            "\"\"",
            "\"%%\"",
            "()",
            "nothing",
            "hea",
            "heads",
            "+nothing head",
            "head AND nothing",
            "-head",
            "head -changed",
            "NOT head",
            "\"of head\"",
            "\"head branch\"",
            "7-branch",
            "10.0.0.2",
            "level:info",
            "-nothing -head",
            "head:branch",
            "-(head nothing)",
            "nothing OR NOT head",
            "nothing NOT never -head",
            "nothing AND head OR never",
            "\"-head\" AND nothing",
        ] {
            assert!(!matches(query, text), "{query}");
        }
    }

    #[test]
    fn a_word_that_is_too_long_is_not_found_and_keeps_its_place() {
        let long = "x".repeat(40);
        let text = format!("before {long} after");
        assert!(!matches(&long, &text));
        assert!(matches(&"x".repeat(39), &format!("before {}", "x".repeat(39))));
        assert!(!matches("\"before after\"", &text));
        assert!(matches(&format!("\"before {long} after\""), &text));
    }

    #[test]
    fn an_error_says_where_and_why() {
        let deep = format!("{}a{}", "(".repeat(17), ")".repeat(17));
        let (long, many) = ("a".repeat(4097), "a ".repeat(129));
        for (query, expected, why) in [
            ("a)", 1, "not opened"),
            ("(ä (b)", 0, "not closed"),
            ("ä AND", 5, "after AND"),
            ("(a OR ) b", 6, "after OR"),
            ("AND a", 0, "before this"),
            ("OR a", 0, "before this"),
            ("a OR OR b", 5, "before this"),
            ("a AND NOT OR b", 10, "before this"),
            ("NOT NOT a", 4, "before this"),
            (&deep, 16, "16 deep"),
            (&long, 4096, "4096 characters"),
            (&many, 256, "128 words"),
        ] {
            match TextQuery::parse(query) {
                Err(Error::TextQuery { position, reason }) => {
                    assert!(position == expected && reason.contains(why), "{query}: {position} {reason}");
                }
                other => panic!("{query}: {other:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_query_or_an_error_within_it(text in "[ab \"()+%:ANDORT-]{0,40}|.{0,60}") {
            if let Err(error) = TextQuery::parse(&text) {
                let Error::TextQuery { position, .. } = error else { panic!("{error}") };
                prop_assert!(position <= text.chars().count());
            }
        }

        #[test]
        fn a_quoted_text_is_found_in_itself(text in "[a-zA-Z0-9äÖ ,.;:%'()/-]{0,60}") {
            let has_words = !words(&text).is_empty();
            prop_assert_eq!(matches(&format!("\"{text}\""), &text), has_words);
        }
    }
}
