//! The API server as [`Reviewer`].

use std::time::Duration;

use chainscope_hygiene::warn_limited;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::Semaphore, time::timeout};

use super::review::{AccessDecision, AccessReview, GROUP, Identity, ReviewError, ReviewFuture, Reviewer};

/// Timeout of a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of concurrent reviews: invalid tokens must not overload the API server.
const MAX_CONCURRENT_REVIEWS: usize = 32;

/// The API server, through a client of the `kube` crate. Needs the verb `create` on `tokenreviews`
/// (authentication.k8s.io) and `subjectaccessreviews` (authorization.k8s.io).
pub struct ApiServer {
    client: Client,
    permits: Semaphore,
}

impl ApiServer {
    /// Reviews through this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, permits: Semaphore::new(MAX_CONCURRENT_REVIEWS) }
    }

    /// Reviews by the API server of the cluster that this program runs in, or of the kubeconfig's current context.
    ///
    /// # Errors
    /// There is neither, or it cannot be used.
    pub async fn infer() -> Result<Self, ReviewError> {
        let config = kube::Config::infer().await.map_err(|error| ReviewError(error.to_string()))?;
        let client = Client::try_from(config).map_err(|error| ReviewError(error.to_string()))?;
        Ok(Self::new(client))
    }

    /// Another one with the same client and concurrent reviews of its own.
    #[must_use]
    pub fn separate(&self) -> Self {
        Self::new(self.client.clone())
    }

    async fn review<R>(&self, review: &R) -> Result<R, ReviewError>
    where
        R: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + serde::Serialize
            + serde::de::DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let created = async {
            let _permit = self.permits.acquire().await.map_err(|error| ReviewError(error.to_string()))?;
            let api: Api<R> = Api::all(self.client.clone());
            api.create(&PostParams::default(), review).await.map_err(|error| ReviewError(error.to_string()))
        };
        let answer = timeout(REVIEW_TIMEOUT, created)
            .await
            .unwrap_or_else(|_| Err(ReviewError(format!("none within {REVIEW_TIMEOUT:?}"))));
        if let Err(error) = &answer {
            warn_limited!(%error, kind = %R::kind(&()), "a review failed");
        }
        answer
    }
}

impl Reviewer for ApiServer {
    fn authenticate<'a>(&'a self, token: &'a str, audience: Option<&'a str>) -> ReviewFuture<'a, Option<Identity>> {
        Box::pin(async move {
            let audiences = audience.map(|audience| vec![audience.to_owned()]);
            let spec = TokenReviewSpec { audiences, token: Some(token.to_owned()) };
            let review = self.review(&TokenReview { spec, ..TokenReview::default() }).await?;
            let status = review.status.unwrap_or_default();
            if status.authenticated != Some(true) {
                return Ok(None);
            }
            // An API server without support of audiences omits them: the token is valid for the API server only then.
            if let Some(wanted) = audience
                && !status.audiences.unwrap_or_default().iter().any(|audience| audience == wanted)
            {
                return Ok(None);
            }
            let user = status.user.unwrap_or_default();
            Ok(user.username.filter(|name| !name.is_empty()).map(|name| Identity {
                user: name,
                uid: user.uid.unwrap_or_default(),
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            }))
        })
    }

    fn authorize<'a>(&'a self, who: &'a Identity, what: &'a AccessReview) -> ReviewFuture<'a, AccessDecision> {
        Box::pin(async move {
            let attributes = ResourceAttributes {
                group: Some(GROUP.to_owned()),
                resource: Some(what.resource.name().to_owned()),
                subresource: Some(what.subresource.to_owned()),
                verb: Some("get".to_owned()),
                namespace: Some(what.namespace.clone()).filter(|namespace| !namespace.is_empty()),
                name: Some(what.name.clone()).filter(|name| !name.is_empty()),
                ..ResourceAttributes::default()
            };
            let spec = SubjectAccessReviewSpec {
                user: Some(who.user.clone()),
                uid: Some(who.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(who.groups.clone()).filter(|groups| !groups.is_empty()),
                extra: Some(who.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(attributes),
                non_resource_attributes: None,
            };
            let review = self.review(&SubjectAccessReview { spec, ..SubjectAccessReview::default() }).await?;
            let status = review.status.unwrap_or_default();
            Ok(AccessDecision {
                allowed: status.allowed && status.denied != Some(true),
                reason: status.reason.unwrap_or_default(),
            })
        })
    }
}
