//! Query strings, deserialized into the structs that describe them in the OpenAPI documents.
//!
//! As tolerant as the original where browsers and TezEdge Explorer are sloppy (`+` is a space, raw brackets and quotes, a
//! stray `%` is literal), and as strict elsewhere: a known parameter that is repeated or malformed is a 400 that names it,
//! an unknown one is ignored.

use std::{borrow::Cow, str::FromStr};

use axum::{extract::FromRequestParts, http::request::Parts};
use chainscope_hygiene::Escaped;
use chainscope_store::Order;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use utoipa::IntoParams;

use super::problem::Problem;

/// The node that a request is about.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct NodeParameters {
    /// The node: its name, `namespace/name`, or an alias such as its P2P port. Default: the node called `tezedge`, else
    /// the only node. Ignored below `/nodes/…`.
    #[serde(default)]
    pub(crate) node_name: Option<String>,
}

/// The parameters of a request, deserialized from its query string.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parse(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

/// Deserializes a query string.
pub(crate) fn parse<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(pairs)).map_err(|error| {
        let path = error.path().to_string();
        let reason = error.into_inner().to_string();
        // Errors of a value have the path of its field. A repeated field is an error of the whole struct, with the name in
        // the text that serde defines for it.
        match reason.strip_prefix("duplicate field `").and_then(|rest| rest.strip_suffix('`')) {
            Some(name) => Problem::parameter(name, "given more than once"),
            // serde's text of an unknown variant has the value as it came.
            None => Problem::parameter(&path, Escaped(&reason).to_string()),
        }
    })
}

/// The order of a list: oldest first if the direction is `forward`.
pub(crate) fn order(direction: Option<&str>) -> Order {
    if direction == Some("forward") { Order::OldestFirst } else { Order::NewestFirst }
}

/// The value of a parameter with two names, of which one may be given.
pub(crate) fn either<T>(
    (name, value): (&str, Option<T>),
    (old, other): (&str, Option<T>),
) -> Result<Option<T>, Problem> {
    match (value, other) {
        (Some(_), Some(_)) => Err(Problem::parameter(old, format!("given beside {name}, which means the same"))),
        (value, other) => Ok(value.or(other)),
    }
}

/// Deserializes an unsigned decimal number, without a sign.
pub(crate) fn number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    let text = Cow::<str>::deserialize(value)?;
    if !is_decimal(&text) {
        return Err(D::Error::custom(format!("{} is not an unsigned decimal number", shown(&text))));
    }
    let too_great = |_| D::Error::custom(format!("{} is greater than {}", shown(&text), u64::MAX));
    text.parse().map(Some).map_err(too_great)
}

/// Deserializes exactly `true` or `false`.
pub(crate) fn boolean<'de, D: Deserializer<'de>>(value: D) -> Result<Option<bool>, D::Error> {
    from_str(value, "neither true nor false")
}

/// Deserializes a value with [`FromStr`]; `defect` completes the error: "`value` is …".
pub(crate) fn from_str<'de, D: Deserializer<'de>, T: FromStr>(value: D, defect: &str) -> Result<Option<T>, D::Error> {
    let text = Cow::<str>::deserialize(value)?;
    text.parse().map(Some).map_err(|_| D::Error::custom(format!("{} is {defect}", shown(&text))))
}

/// Deserializes a list whose items are separated by commas.
pub(crate) fn list<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(
    value: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let text = Cow::<str>::deserialize(value)?;
    let items = text.split(',').filter(|item| !item.is_empty());
    let parse = |item: &str| item.parse().map_err(|cause| D::Error::custom(format!("{}: {cause}", shown(item))));
    items.map(parse).collect::<Result<_, _>>().map(Some)
}

/// Whether the text consists of decimal digits.
pub(crate) fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A malformed value for an error text: quoted, escaped and truncated.
pub(crate) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(80).collect();
    format!("{cut:?}{}", if cut.len() < text.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::parse;

    #[test]
    fn sloppy_queries_are_read_as_browsers_and_the_explorer_mean_them() {
        #[derive(Deserialize)]
        struct Sloppy {
            query: Option<String>,
            remote_addr: Option<String>,
            x: Option<String>,
            y: Option<String>,
            z: Option<String>,
            a: Option<String>,
            none: Option<String>,
        }
        let sloppy: Sloppy =
            parse(r#"query="a+b"&remote_addr=[::ffff:1.2.3.4]:9732&x=100%%22&y=%zz&&=&z&a=%ff"#).unwrap();
        assert_eq!(sloppy.query.unwrap(), "\"a b\"");
        assert_eq!(sloppy.remote_addr.unwrap(), "[::ffff:1.2.3.4]:9732");
        assert_eq!(sloppy.x.unwrap(), "100%\"");
        assert_eq!(sloppy.y.unwrap(), "%zz");
        assert_eq!(sloppy.z.unwrap(), "");
        assert_eq!(sloppy.none, None);
        assert_eq!(sloppy.a.unwrap(), "\u{fffd}");
    }

    #[test]
    fn malformed_and_repeated_parameters_are_named() {
        #[derive(Debug, Default, Deserialize)]
        #[serde(default)]
        struct Strict {
            #[serde(deserialize_with = "super::number")]
            number: Option<u64>,
            #[serde(deserialize_with = "super::boolean")]
            boolean: Option<bool>,
        }
        for value in ["-1", "", "1x", "99999999999999999999", "%2B1"] {
            let problem = parse::<Strict>(&format!("number={value}")).unwrap_err();
            assert_eq!((problem.status, problem.parameter.as_deref()), (400, Some("number")), "{}", problem.detail);
        }
        for value in ["1", "TRUE", ""] {
            let problem = parse::<Strict>(&format!("boolean={value}")).unwrap_err();
            assert_eq!((problem.status, problem.parameter.as_deref()), (400, Some("boolean")), "{}", problem.detail);
        }
        let repeated = parse::<Strict>("other=1&other=2&number=1&number=2").unwrap_err();
        assert_eq!((repeated.status, repeated.parameter.as_deref()), (400, Some("number")));
        assert_eq!(parse::<Strict>("number=1").unwrap().number, Some(1));
        assert_eq!(parse::<Strict>("boolean=true").unwrap().boolean, Some(true));
        assert_eq!(parse::<Strict>("k=1").unwrap().number, None);
    }

    #[test]
    fn an_unknown_variant_is_escaped() {
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Side {
            Local,
        }
        #[derive(Debug, Deserialize)]
        struct Sided {
            side: Side,
        }
        let problem = parse::<Sided>("side=lo%00cal").map(|sided| sided.side).unwrap_err();
        assert!(problem.detail.contains("`lo\\u{0}cal`"), "{}", problem.detail);
        assert!(matches!(parse::<Sided>("side=local").unwrap().side, Side::Local));
    }
}
