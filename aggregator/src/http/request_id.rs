//! Ids of requests: the response has it as a header, a problem as a member, and the audit log in the request's line.

use std::fmt;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};

use super::problem::Problem;

/// The header of requests and responses.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that a client may give, in bytes.
const MAX_LENGTH: usize = 128;

/// The id of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    /// The id that the client gave, as a proxy in front of it may do, if it is well-formed; else a random one. It is written to
    /// logs: only letters, digits, `.`, `_` and `-` are.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(X_REQUEST_ID).iter();
        match (given.next(), given.next()) {
            (Some(id), None) if is_well_formed(id.as_bytes()) => Self(id.clone()),
            _ => Self::random(),
        }
    }

    fn random() -> Self {
        let text = format!("{:032x}", rand::random::<u128>());
        // Hex digits are valid in a header.
        Self(HeaderValue::from_maybe_shared(text).unwrap_or(HeaderValue::from_static("0")))
    }

    /// The value of the header.
    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }

    /// The response with this id in its header, and in its body if it is a problem.
    pub(crate) fn attach(&self, mut response: Response) -> Response {
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            // That of the body without the id.
            response.headers_mut().remove(header::CONTENT_LENGTH);
            *response.body_mut() = Body::from(problem.with_request_id(self).json());
        }
        response.headers_mut().insert(X_REQUEST_ID, self.header());
        response
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

fn is_well_formed(id: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (1..=MAX_LENGTH).contains(&id.len()) && id.iter().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue};

    use super::{MAX_LENGTH, RequestId, X_REQUEST_ID};

    fn of(ids: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for id in ids {
            headers.append(X_REQUEST_ID, HeaderValue::from_bytes(id.as_bytes()).unwrap());
        }
        RequestId::of(&headers).to_string()
    }

    #[test]
    fn a_well_formed_id_is_accepted_and_others_are_replaced() {
        let longest = "x".repeat(MAX_LENGTH);
        for id in ["7", "f3b1c2d4-0000-4000-8000-0123456789ab", "a.B_c-9", &longest] {
            assert_eq!(of(&[id]), id);
        }
        let too_long = "x".repeat(MAX_LENGTH + 1);
        let refused: [&[&str]; 7] = [&[], &[""], &["a b"], &["a\u{e9}"], &["a\tb"], &[&too_long], &["one", "another"]];
        for ids in refused {
            let random = of(ids);
            assert!(random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit()), "{ids:?}: {random}");
            assert_ne!(random, of(ids));
        }
    }
}
