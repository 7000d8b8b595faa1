//! The parameter `query` of log messages, as TezEdge Explorer and the scripts of the original send it.
//!
//! The Explorer puts what a person typed between quotes and escapes nothing; the browser ends the parameter at a `&` and the
//! URL at a `#`. Such a query is a phrase of plain text, whatever characters are in it, and never an error. All others are in
//! the query language of the store.

use std::borrow::Cow;

use chainscope_store::{Error, TextQuery};

use super::super::problem::Problem;

/// What the parameter searches for; none if it has no text.
pub(super) fn text_query(query: &str, no_quotes: Option<bool>) -> Result<Option<TextQuery>, Problem> {
    if query.chars().all(|character| character.is_whitespace() || character == '"') {
        return Ok(None);
    }
    let is_quoted = || query.starts_with('"') && (query.ends_with('"') || query.matches('"').count() == 1);
    let read = match no_quotes {
        Some(true) => TextQuery::parse(&query.replace('"', " ")),
        Some(false) => TextQuery::parse(&phrase(query)),
        None if is_quoted() => TextQuery::parse(&phrase(query)),
        None => match TextQuery::parse(query) {
            Err(_) if query.starts_with('"') => TextQuery::parse(&phrase(query)),
            read => read,
        },
    };
    read.map(Some).map_err(|error| {
        let mut problem = Problem::parameter("query", &error);
        if let Error::TextQuery { position, .. } = error {
            problem.position = u32::try_from(position).ok();
        }
        problem
    })
}

/// All of a text as a phrase in the query language. Quotes are replaced, not removed, so that positions in errors stay the same.
fn phrase(text: &str) -> String {
    format!("\"{}\"", text.strip_prefix('"').unwrap_or(text).replace('"', " "))
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

    use chainscope_store::TextQuery;

    use super::{keep_operators, text_query};

    fn read(query: &str) -> Option<TextQuery> {
        text_query(query, None).unwrap()
    }

    /// In the query language.
    fn meant(query: &str) -> Option<TextQuery> {
        Some(TextQuery::parse(query).unwrap())
    }

    #[test]
    fn what_the_explorer_sends_is_a_phrase() {
        for (sent, phrase) in [
            ("\"peer\"", "\"peer\""),
            ("\"read identity\"", "\"read identity\""),
            ("\"a", "\"a\""),
            ("\"100%\"", "\"100%\""),
            ("\"-a +b (c AND\"", "\"a b c AND\""),
            ("\"say \"hi\" twice\"", "\"say hi twice\""),
            ("\"größe 日本\"", "\"größe 日本\""),
            ("\"\"(a b", "\"a b\""),
        ] {
            assert_eq!(read(sent), meant(phrase), "{sent}");
        }
        for empty in ["", "\"\"", "\"", " ", "\" \"", "\"\"\""] {
            assert_eq!(read(empty), None, "{empty}");
            assert_eq!(text_query(empty, Some(true)).unwrap(), None, "{empty}");
        }
    }

    #[test]
    fn other_queries_are_in_the_query_language() {
        for query in ["peer -branch", "+ip +address", "\"a b\" -c", "+\"a b\" +\"c d\"", "(a OR b) AND c", "peer \"a"] {
            assert_eq!(read(query), meant(query), "{query}");
        }
        assert_eq!(text_query("peer -branch", Some(false)).unwrap(), meant("\"peer branch\""));
        assert_eq!(text_query("\"peer -branch\"", Some(true)).unwrap(), meant("peer -branch"));
        assert_ne!(meant("peer -branch"), meant("\"peer branch\""));
    }

    #[test]
    fn an_error_says_where() {
        for (query, position) in [("(peer", 0), ("peer AND", 8), ("ä \"b\" )", 6)] {
            let problem = text_query(query, None).unwrap_err();
            let expected = (400, Some("query"), Some(position));
            assert_eq!((problem.status, problem.parameter.as_deref(), problem.position), expected, "{query}");
        }
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
            let open = format!("\"{query}");
            prop_assert!(text_query(&open, None).is_ok());
            prop_assert!(text_query(&query, Some(false)).is_ok());
        }
    }
}
