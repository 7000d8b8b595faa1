//! The parameter `query` of log messages, as TezEdge Explorer and the scripts of the original send it.
//!
//! The Explorer puts what a person typed between quotes and escapes nothing; the browser ends the parameter at a `&` and the
//! URL at a `#`. Such a query is a phrase of plain text, whatever characters are in it. All others are in the query language of
//! the store.

use std::borrow::Cow;

use chainscope_store::{Error, TextQuery};

use super::super::problem::Problem;

/// What the parameter searches for; none if it has no text.
pub(super) fn text_query(query: &str, no_quotes: Option<bool>) -> Result<Option<TextQuery>, Problem> {
    in_query_language(query, no_quotes).map(|query| TextQuery::parse(&query)).transpose().map_err(|error| {
        let mut problem = Problem::parameter("query", &error);
        if let Error::TextQuery { position, .. } = error {
            problem.position = Some(position);
        }
        problem
    })
}

/// The parameter in the query language. Characters are replaced, not removed, so that positions in errors are its own.
fn in_query_language(query: &str, no_quotes: Option<bool>) -> Option<Cow<'_, str>> {
    if query.chars().all(|character| character.is_whitespace() || character == '"') {
        return None;
    }
    let is_quoted = || query.starts_with('"') && (query.ends_with('"') || query.matches('"').count() == 1);
    Some(match no_quotes {
        Some(true) => Cow::Owned(query.replace('"', " ")),
        None if !is_quoted() => Cow::Borrowed(query),
        _ => Cow::Owned(format!("\"{}\"", query.strip_prefix('"').unwrap_or(query).replace('"', " "))),
    })
}

/// A query string in which a `+` before a word of the parameter `query` is the operator of the query language instead of a space:
/// no client encodes a space as `+` at the start of a value or after one that it encoded as `%20`.
pub(super) fn keep_operators(parameters: &str) -> Cow<'_, str> {
    let is_query = |pair: &&str| pair.starts_with("query=");
    if !parameters.split('&').any(|pair| is_query(&pair) && pair.contains('+')) {
        return Cow::Borrowed(parameters);
    }
    let keep = |pair: &str| match pair.strip_prefix("query=+") {
        Some(rest) => format!("query=%2B{rest}"),
        None => pair.to_owned(),
    };
    let pairs = parameters.split('&').map(|pair| match is_query(&pair) {
        true => keep(pair).replace("%20+", "%20%2B"),
        false => pair.to_owned(),
    });
    Cow::Owned(pairs.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{in_query_language, keep_operators, text_query};

    fn read(query: &str) -> Option<String> {
        in_query_language(query, None).map(|query| query.trim_end().to_owned())
    }

    #[test]
    fn what_the_explorer_sends_is_a_phrase() {
        for (sent, phrase) in [
            ("\"peer\"", "\"peer \""),
            ("\"read identity\"", "\"read identity \""),
            ("\"a", "\"a\""),
            ("\"100%\"", "\"100% \""),
            ("\"-a +b (c AND\"", "\"-a +b (c AND \""),
            ("\"say \"hi\" twice\"", "\"say  hi  twice \""),
            ("\"größe 日本\"", "\"größe 日本 \""),
        ] {
            assert_eq!(read(sent).as_deref(), Some(phrase), "{sent}");
        }
        for empty in ["", "\"\"", "\"", " ", "\" \"", "\"\"\""] {
            assert_eq!(read(empty), None, "{empty}");
            assert_eq!(in_query_language(empty, Some(true)), None, "{empty}");
        }
    }

    #[test]
    fn other_queries_are_in_the_query_language() {
        for query in ["peer -branch", "+ip +address", "\"a b\" -c", "+\"a b\" +\"c d\"", "(a OR b) AND c", "peer \"a"] {
            assert_eq!(read(query).as_deref(), Some(query));
        }
        assert_eq!(in_query_language("peer -branch", Some(false)).as_deref(), Some("\"peer -branch\""));
        assert_eq!(in_query_language("\"peer -branch\"", Some(true)).as_deref(), Some(" peer -branch "));
    }

    #[test]
    fn an_error_says_where() {
        let problem = text_query("(peer", None).unwrap_err();
        assert_eq!((problem.status, problem.parameter.as_deref(), problem.position), (400, Some("query"), Some(0)));
        assert_eq!(text_query("\"a\" AND", None).unwrap_err().position, Some(7));
    }

    #[test]
    fn a_plus_before_a_word_is_an_operator() {
        for (sent, kept) in [
            ("query=+ip%20+address&limit=16", "query=%2Bip%20%2Baddress&limit=16"),
            ("query=a+b", "query=a+b"),
            ("query=%22a+b%22", "query=%22a+b%22"),
            ("x=+1&query=a&y=%20+", "x=+1&query=a&y=%20+"),
            ("query=+", "query=%2B"),
        ] {
            assert_eq!(keep_operators(sent), kept, "{sent}");
        }
    }

    proptest! {
        #[test]
        fn a_quoted_query_is_never_an_error(query in "[a\"\\\\ +%é()-]{0,12}|.{0,60}") {
            let quoted = format!("\"{query}\"");
            prop_assert!(text_query(&quoted, None).is_ok());
            prop_assert!(text_query(&query, Some(false)).is_ok());
        }
    }
}
