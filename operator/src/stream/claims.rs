//! Unverified claims of a service-account token. They are checked before the TokenReview, so that tokens that cannot be
//! valid do not cause requests to the API server; only the TokenReview authenticates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;

/// The used claims of a JSON web token (RFC 7519 §4.1).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    /// Expiry time (`exp`).
    pub(crate) expires: SystemTime,
}

#[derive(Deserialize)]
struct Payload {
    exp: Option<u64>,
    #[serde(default)]
    aud: Audiences,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

impl Default for Audiences {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Claims {
    /// Parses the claims without verifying the signature.
    ///
    /// # Errors
    /// Why the token cannot be valid.
    pub(crate) fn parse(token: &str, audience: &str, now: SystemTime) -> Result<Self, &'static str> {
        let mut parts = token.split('.');
        let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return Err("the token is not a service-account token");
        };
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| "the token's claims are not base64")?;
        let payload: Payload = serde_json::from_slice(&payload).map_err(|_| "the token's claims are not JSON")?;
        let is_for_audience = match &payload.aud {
            Audiences::One(one) => one == audience,
            Audiences::Several(several) => several.iter().any(|one| one == audience),
        };
        if !is_for_audience {
            return Err("the token is not for the audience chainscope");
        }
        let expires = payload.exp.ok_or("the token has no expiry")?;
        let expires =
            UNIX_EPOCH.checked_add(Duration::from_secs(expires)).ok_or("the token's expiry is out of range")?;
        if expires <= now { Err("the token has expired") } else { Ok(Self { expires }) }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::{Claims, Duration, UNIX_EPOCH, URL_SAFE_NO_PAD};

    fn read(payload: &str) -> Result<u64, &'static str> {
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload));
        let claims = Claims::parse(&token, "chainscope", UNIX_EPOCH + Duration::from_secs(1000))?;
        Ok(claims.expires.duration_since(UNIX_EPOCH).unwrap().as_secs())
    }

    #[test]
    fn valid_claims_are_parsed() {
        assert_eq!(read(r#"{"aud":["chainscope"],"exp":1001}"#), Ok(1001));
        assert_eq!(read(r#"{"aud":"chainscope","exp":2000,"iss":"x"}"#), Ok(2000));
        assert_eq!(read(r#"{"aud":["other","chainscope"],"exp":2000}"#), Ok(2000));
    }

    #[test]
    fn tokens_that_cannot_be_valid_are_refused() {
        for (payload, reason) in [
            (r#"{"aud":["chainscope"],"exp":1000}"#, "expired"),
            (r#"{"aud":["chainscope"],"exp":18446744073709551615}"#, "out of range"),
            (r#"{"aud":["chainscope"],"exp":-1}"#, "not JSON"),
            (r#"{"aud":["chainscope"]}"#, "no expiry"),
            (r#"{"aud":["https://kubernetes.default.svc"],"exp":2000}"#, "not for the audience"),
            (r#"{"exp":2000}"#, "not for the audience"),
            (r#"{"aud":7,"exp":2000}"#, "not JSON"),
            ("[]", "not JSON"),
        ] {
            let error = read(payload).unwrap_err();
            assert!(error.contains(reason), "{payload}: {error}");
        }
        for token in ["", ".", "a.b", "a.b.c.d", "a.!.c", "e30.e30.x"] {
            assert!(Claims::parse(token, "chainscope", UNIX_EPOCH).is_err(), "{token}");
        }
    }
}
