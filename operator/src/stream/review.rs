//! TokenReview of the API server.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::{Api, Client, api::PostParams};

/// Audience of the tokens for the config stream.
pub const AUDIENCE: &str = "chainscope";

/// The result of a successful TokenReview.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    /// Such as `system:serviceaccount:NAMESPACE:NAME`.
    pub username: String,
    /// The requested audiences that the token is valid for.
    pub audiences: Vec<String>,
    /// Extra user information, such as the pod and the node that the token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Errors of a TokenReview.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The token is invalid, with the reason.
    #[error("{0}")]
    Refused(String),
    /// The API server is unavailable, with the reason.
    #[error("{0}")]
    Unavailable(String),
    /// The token was not reviewed: too many tokens from the same address are.
    #[error("too many unknown tokens come from this address")]
    TooManyReviews,
}

/// Reviews tokens.
pub trait ReviewToken: Send + Sync + 'static {
    /// Reviews a token for [`AUDIENCE`].
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Review, ReviewError>>;
}

/// Reviews tokens with the API server's TokenReview API.
#[derive(Clone)]
pub struct TokenReviewer(Api<TokenReview>);

impl TokenReviewer {
    /// Creates a reviewer. `client` needs the verb `create` on `tokenreviews.authentication.k8s.io`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self(Api::all(client))
    }
}

impl ReviewToken for TokenReviewer {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Review, ReviewError>> {
        Box::pin(async move {
            let request = TokenReview {
                spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) },
                ..Default::default()
            };
            let response = self
                .0
                .create(&PostParams::default(), &request)
                .await
                .map_err(|error| ReviewError::Unavailable(error.to_string()))?;
            parse_response(response)
        })
    }
}

fn parse_response(response: TokenReview) -> Result<Review, ReviewError> {
    let status = response.status.unwrap_or_default();
    if !status.authenticated.unwrap_or(false) {
        return Err(ReviewError::Refused(status.error.unwrap_or_else(|| "the token is not authenticated".to_owned())));
    }
    let user = status.user.unwrap_or_default();
    let review = Review {
        username: user.username.unwrap_or_default(),
        audiences: status.audiences.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    };
    Ok(review)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};

    use super::{ReviewError, TokenReview, parse_response};

    fn response(status: TokenReviewStatus) -> TokenReview {
        TokenReview { status: Some(status), ..Default::default() }
    }

    #[test]
    fn a_response_without_authenticated_true_is_a_refusal() {
        assert!(matches!(parse_response(TokenReview::default()), Err(ReviewError::Refused(_))));
        let no = TokenReviewStatus { error: Some("token has expired".to_owned()), ..Default::default() };
        assert_eq!(parse_response(response(no)), Err(ReviewError::Refused("token has expired".to_owned())));
        let user = UserInfo { username: Some("system:serviceaccount:a:b".to_owned()), ..Default::default() };
        let yes = TokenReviewStatus { authenticated: Some(true), user: Some(user), ..Default::default() };
        let review = parse_response(response(yes)).unwrap();
        assert_eq!(review.username, "system:serviceaccount:a:b");
        assert!(review.audiences.is_empty(), "only audiences in the response are granted");
    }
}
