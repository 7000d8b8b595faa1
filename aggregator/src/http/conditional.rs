//! Conditional requests (RFC 9110, section 13): a response with an entity tag is not sent again to a client that has it.
//!
//! Tags are weak, because the same response may be compressed or not. What a tag stands for never changes; still clients have
//! to ask each time (`no-cache`), so that a permission that was withdrawn takes effect.

use std::{convert::Infallible, sync::Arc};

use axum::{
    extract::FromRequestParts,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use sha2::{Digest as _, Sha256};

use super::app::App;

/// Bytes of a tag's digest.
const TAG_BYTES: usize = 16;

/// The entity tag of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntityTag(String);

impl EntityTag {
    /// The tag of a response that these parts determine.
    pub(crate) fn new(parts: &[&[u8]]) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        Self(format!("\"{}\"", hex::encode(digest.finalize().get(..TAG_BYTES).unwrap_or_default())))
    }

    /// Sets the tag of a response.
    fn set(&self, response: &mut Response, cache_control: HeaderValue) {
        let headers = response.headers_mut();
        // Hex digits in quotes are valid in a header.
        headers.extend(HeaderValue::from_maybe_shared(format!("W/{}", self.0)).ok().map(|tag| (header::ETAG, tag)));
        headers.insert(header::CACHE_CONTROL, cache_control);
    }
}

/// The responses that a client has.
#[derive(Debug, Clone, Default)]
pub(crate) struct IfNoneMatch {
    tags: Vec<HeaderValue>,
    /// The build, which decides how a response is written, and path and query of the request: clients have tags of this
    /// resource only.
    resource: String,
}

impl FromRequestParts<Arc<App>> for IfNoneMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Infallible> {
        let tags = parts.headers.get_all(header::IF_NONE_MATCH).iter().cloned().collect();
        Ok(Self { tags, resource: format!("{} {}", app.build(), parts.uri) })
    }
}

impl IfNoneMatch {
    /// The tag of a response that the request and these parts determine.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> EntityTag {
        let mut all = vec![self.resource.as_bytes()];
        all.extend(parts);
        EntityTag::new(&all)
    }

    /// Whether the client has the response with this tag.
    pub(crate) fn has(&self, tag: &EntityTag) -> bool {
        let lists = self.tags.iter().filter_map(|list| list.to_str().ok());
        // A tag of others may contain commas, but no quotes: none of its pieces is one of ours.
        let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
        tags.any(|given| given == "*" || given.strip_prefix("W/").unwrap_or(given) == tag.0)
    }
}

/// Who may keep a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Any cache.
    Public,
    /// Those of the caller.
    Caller,
}

impl Audience {
    fn cache_control(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Public => "no-cache",
            Self::Caller => "private, no-cache",
        })
    }
}

/// The response with its tag, which the client may keep.
pub(crate) fn tagged(mut response: Response, tag: &EntityTag, audience: Audience) -> Response {
    tag.set(&mut response, audience.cache_control());
    response
}

/// The response to a client that has it.
pub(crate) fn not_modified(tag: &EntityTag, audience: Audience) -> Response {
    tagged(StatusCode::NOT_MODIFIED.into_response(), tag, audience)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::{EntityTag, IfNoneMatch};

    #[test]
    fn tags_differ_with_their_parts_and_are_found_in_lists() {
        let tag = EntityTag::new(&[b"a", b"bc"]);
        for other in [&[&b"ab"[..], b"c"][..], &[b"abc"], &[b"a", b"bc", b""], &[b"a"]] {
            assert_ne!(tag, EntityTag::new(other));
        }
        let EntityTag(text) = &tag;
        let has = |lists: &[&str]| {
            let tags = lists.iter().map(|list| HeaderValue::from_str(list).unwrap()).collect();
            IfNoneMatch { tags, ..IfNoneMatch::default() }.has(&tag)
        };
        for list in [text.as_str(), &format!("W/{text}"), &format!("\"x,y\" , W/{text},\"z\""), "*"] {
            assert!(has(&[list]) && has(&["\"other\"", list]), "{list}");
        }
        let unquoted = text.trim_matches('"');
        for list in ["", "\"\"", "W/", unquoted, &text[1..], &format!("\"{unquoted}x\""), "\"*\""] {
            assert!(!has(&[list]), "{list}");
        }
    }

    #[test]
    fn a_tag_is_of_one_resource() {
        let of = |uri: &str| IfNoneMatch { resource: uri.to_owned(), ..IfNoneMatch::default() }.tag(&[b"row"]);
        assert_ne!(of("/v2/p2p/1"), of("/v2/p2p/2"));
        assert_eq!(of("/v2/p2p/1"), of("/v2/p2p/1"));
    }
}
