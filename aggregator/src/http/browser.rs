//! Which web pages may read responses.
//!
//! A browser reaches whatever its user reaches, and runs pages of anybody. Two rules keep these from reading the API:
//!
//! - CORS: a response is readable by pages of loopback origins and of those in `cors_origins`.
//! - DNS rebinding: a page whose host name its owner points at this machine is of the same origin, so that CORS does not
//!   apply. A request is refused unless its `Host` is `localhost`, an IP address, or in `hosts`. A rebound name is never an
//!   IP address.
//!
//! With authentication every host is accepted unless `hosts` is given: a page has no token.

use std::{collections::BTreeSet, net::IpAddr};

use axum::{
    body::Body,
    http::{
        HeaderMap, HeaderName, HeaderValue, Request, Uri, header,
        uri::{Authority, Scheme},
    },
    response::{IntoResponse as _, Response},
};
use chainscope_hygiene::EscapedTruncated;

use super::{code::Code, problem::Problem};
use crate::Error;

/// Origins and hosts that are allowed beside loopback.
#[derive(Debug, Clone)]
pub(crate) struct BrowserPolicy {
    origins: Allowed,
    hosts: Allowed,
}

#[derive(Debug, Clone)]
enum Allowed {
    All,
    Listed(BTreeSet<String>),
}

impl Allowed {
    /// `normalize` returns the form in which a value is compared; none if it is malformed.
    fn parse(
        option: &'static str,
        list: &[String],
        why: &'static str,
        normalize: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        if list.iter().any(|text| text == "*") {
            return Ok(Self::All);
        }
        let malformed = |text: &String| Error::Option { option, value: text.clone(), why };
        let listed = list.iter().map(|text| normalize(text).ok_or_else(|| malformed(text)));
        Ok(Self::Listed(listed.collect::<Result<_, _>>()?))
    }
}

impl BrowserPolicy {
    /// The policy of a configuration; `is_open`: without authentication.
    pub(crate) fn new(cors_origins: &[String], hosts: &[String], is_open: bool) -> Result<Self, Error> {
        let origins =
            Allowed::parse("cors_origins", cors_origins, "not of the form https://host:port", normalize_origin)?;
        let hosts = match hosts.is_empty() && !is_open {
            true => Allowed::All,
            false => Allowed::parse("hosts", hosts, "not a host name without a port", normalize_host)?,
        };
        Ok(Self { origins, hosts })
    }

    /// The policy of a listener that serves no records: any host, as its clients are scrapers.
    pub(crate) fn any_host(&self) -> Self {
        Self { hosts: Allowed::All, ..self.clone() }
    }

    /// The response to a request for a host that is not allowed.
    pub(crate) fn refuse_host(&self, request: &Request<Body>) -> Option<Response> {
        let Allowed::Listed(listed) = &self.hosts else { return None };
        let in_uri = request.uri().authority().map(Authority::as_str);
        let in_headers = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
        let refused = in_uri.into_iter().chain(in_headers).find(|host| !is_allowed_host(listed, host))?;
        let detail = format!(
            "the host {} is not allowed here: add its name to the option `hosts`, or use an IP address",
            EscapedTruncated(refused)
        );
        Some(Problem::new(Code::HostNotAllowed, detail).into_response())
    }

    /// Adds the headers that let an allowed origin read the response.
    pub(crate) fn allow_origin(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
        let Allowed::Listed(listed) = &self.origins else {
            allow(headers, HeaderValue::from_static("*"));
            return;
        };
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        let Some(origin) = origin else { return };
        let normal = origin.to_str().ok().and_then(normalize_origin);
        if normal.is_some_and(|normal| is_loopback_origin(&normal) || listed.contains(&normal)) {
            allow(headers, origin.clone());
        }
    }
}

/// Lets pages of the origin read the response, with those of its headers that are not for all pages anyway.
fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    let readable = HeaderValue::from_static("etag, retry-after, x-request-id");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, readable);
}

/// `scheme://host` or `scheme://host:port` in lower case, as browsers send it.
fn normalize_origin(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    let (scheme, authority) = (uri.scheme()?, uri.authority()?);
    if *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS {
        return None;
    }
    let origin = format!("{scheme}://{authority}");
    (origin.eq_ignore_ascii_case(text) && !authority.as_str().contains('@')).then(|| origin.to_ascii_lowercase())
}

fn is_loopback_origin(origin: &str) -> bool {
    let uri = origin.parse::<Uri>().ok();
    uri.as_ref().and_then(Uri::host).is_some_and(|host| {
        host == "localhost" || address(host).is_some_and(|address| address.to_canonical().is_loopback())
    })
}

/// A host name in lower case, without a port.
fn normalize_host(text: &str) -> Option<String> {
    let authority: Authority = text.parse().ok()?;
    (authority.host() == text).then(|| text.to_ascii_lowercase())
}

fn is_allowed_host(listed: &BTreeSet<String>, text: &str) -> bool {
    let Ok(authority) = text.parse::<Authority>() else { return false };
    let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
    !text.contains('@') && (host == "localhost" || address(&host).is_some() || listed.contains(&host))
}

/// The address that the host of a URI is, if it is one.
fn address(host: &str) -> Option<IpAddr> {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).parse().ok()
}

#[cfg(test)]
mod tests {
    use axum::{
        body::Body,
        http::{HeaderMap, HeaderValue, Request},
    };
    use proptest::prelude::*;

    use super::BrowserPolicy;

    fn policy(origins: &[&str], hosts: &[&str], is_open: bool) -> BrowserPolicy {
        let list = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        BrowserPolicy::new(&list(origins), &list(hosts), is_open).unwrap()
    }

    fn is_readable(policy: &BrowserPolicy, origin: &str) -> bool {
        let mut headers = HeaderMap::new();
        policy.allow_origin(HeaderValue::from_bytes(origin.as_bytes()).ok().as_ref(), &mut headers);
        headers.get("access-control-allow-origin").is_some_and(|allowed| allowed == origin || allowed == "*")
    }

    fn is_served(policy: &BrowserPolicy, host: &str) -> bool {
        let Ok(request) = Request::builder().uri("/").header("host", host).body(Body::empty()) else { return false };
        policy.refuse_host(&request).is_none()
    }

    #[test]
    fn loopback_and_listed_origins_may_read() {
        let default = policy(&[], &[], true);
        for origin in
            ["http://localhost", "http://localhost:8080", "https://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:80"]
        {
            assert!(is_readable(&default, origin), "{origin}");
        }
        let alien = [
            "http://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://evil.example:80@localhost",
            "http://localhost@evil.example",
            "http://10.0.0.1",
            "ftp://localhost",
            "http://localhost/",
            "null",
            "",
        ];
        for origin in alien {
            assert!(!is_readable(&default, origin), "{origin}");
        }
        let listed = policy(&["https://Explorer.example:8443"], &[], true);
        assert!(is_readable(&listed, "https://explorer.example:8443") && is_readable(&listed, "http://localhost"));
        assert!(
            !is_readable(&listed, "https://explorer.example") && !is_readable(&listed, "http://explorer.example:8443")
        );
        assert!(is_readable(&policy(&["*"], &[], true), "http://evil.example"));
    }

    #[test]
    fn loopback_addresses_and_listed_hosts_are_served() {
        let default = policy(&[], &[], true);
        for host in ["localhost", "LOCALHOST:17732", "localhost.", "127.0.0.1:17732", "10.1.2.3:80", "[fd00::1]:17732"]
        {
            assert!(is_served(&default, host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:80", "a@localhost", "127.0.0.1.nip.io", "", "x y"] {
            assert!(!is_served(&default, host), "{host}");
        }
        let listed = policy(&[], &["Chain.example"], true);
        assert!(is_served(&listed, "chain.example:17732") && !is_served(&listed, "other.example"));
        assert!(is_served(&policy(&[], &["*"], true), "evil.example"));
        assert!(is_served(&policy(&[], &[], false), "chain.example"), "a page has no token");
        assert!(!is_served(&policy(&[], &["chain.example"], false), "evil.example"));
        assert!(is_served(&default.any_host(), "metrics.example"));
        let both = Request::builder().uri("http://evil.example/").header("host", "localhost").body(Body::empty());
        assert!(default.refuse_host(&both.unwrap()).is_some());
    }

    #[test]
    fn a_malformed_option_is_named() {
        for (origins, hosts, name) in [
            (vec!["explorer.example".to_owned()], vec![], "cors_origins"),
            (vec!["http://a/path".to_owned()], vec![], "cors_origins"),
            (vec![], vec!["a:80".to_owned()], "hosts"),
            (vec![], vec!["http://a".to_owned()], "hosts"),
        ] {
            let error = BrowserPolicy::new(&origins, &hosts, true).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_origin_and_no_host_panics(text in "\\PC{0,40}") {
            let default = policy(&[], &[], true);
            let _ = (is_readable(&default, &text), is_served(&default, &text));
        }
    }
}
