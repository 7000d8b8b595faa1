//! Query strings: form pairs, read by hand so that each error names its parameter.
//!
//! As tolerant as the original where browsers and TezEdge Explorer are sloppy (`+` is a space, raw brackets and quotes, a
//! stray `%` stays one), and as strict elsewhere: a known parameter given twice or malformed is a 400, an unknown one is
//! ignored.

use std::borrow::Cow;

use super::problem::Problem;

/// The pairs of a query string.
#[derive(Debug, Default)]
pub(crate) struct Form<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Form<'a> {
    pub(crate) fn parse(query: &'a str) -> Self {
        Self { pairs: form_urlencoded::parse(query.as_bytes()).collect() }
    }

    /// The value of a parameter, if it is given; twice is an error.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Problem> {
        let mut values = self.pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| &**value);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            _ => Err(Problem::parameter(name, "given more than once")),
        }
    }

    /// An unsigned decimal number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        self.text(name)?.map(|text| number(name, text)).transpose()
    }

    /// Exactly `true` or `false`.
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, Problem> {
        match self.text(name)? {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(Problem::parameter(name, format!("{} is neither true nor false", shown(other)))),
        }
    }

    /// Whether the parameter is given at all.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.pairs.iter().any(|(key, _)| key == name)
    }
}

fn number(name: &str, text: &str) -> Result<u64, Problem> {
    let malformed = |why| Problem::parameter(name, format!("{} is {why}", shown(text)));
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(malformed("not an unsigned decimal number"));
    }
    text.parse().map_err(|_| malformed("greater than 18446744073709551615"))
}

/// A malformed value as an error shows it: quoted, escaped and cut.
pub(crate) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(80).collect();
    format!("{cut:?}{}", if cut.len() < text.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::Form;

    #[test]
    fn sloppy_queries_are_read_as_browsers_and_the_explorer_mean_them() {
        let form = Form::parse(r#"query="a+b"&remote_addr=[::ffff:1.2.3.4]:9732&x=100%%22&y=%zz&&=&z"#);
        assert_eq!(form.text("query").unwrap(), Some("\"a b\""));
        assert_eq!(form.text("remote_addr").unwrap(), Some("[::ffff:1.2.3.4]:9732"));
        assert_eq!(form.text("x").unwrap(), Some("100%\""));
        assert_eq!(form.text("y").unwrap(), Some("%zz"));
        assert_eq!(form.text("z").unwrap(), Some(""));
        assert_eq!(form.text("none").unwrap(), None);
        assert_eq!(Form::parse("a=%ff").text("a").unwrap(), Some("\u{fffd}"));
    }

    #[test]
    fn malformed_and_repeated_parameters_are_named() {
        let form = Form::parse("a=1&a=2&b=-1&c=&d=1x&e=99999999999999999999&f=1&g=TRUE&h=&i=true&j=%2B1");
        for name in ["a", "b", "c", "d", "e", "j"] {
            let problem = form.number(name).unwrap_err();
            assert_eq!((problem.status, problem.parameter.as_deref()), (400, Some(name)), "{}", problem.detail);
        }
        for name in ["f", "g", "h"] {
            assert_eq!(form.boolean(name).unwrap_err().parameter.as_deref(), Some(name));
        }
        assert_eq!(form.number("f").unwrap(), Some(1));
        assert_eq!(form.boolean("i").unwrap(), Some(true));
        assert_eq!(form.number("k").unwrap(), None);
    }
}
