//! The API server as [`Reviewer`].

use std::time::Duration;

use chainscope_hygiene::warn_limited;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::Semaphore, time::timeout};

use super::review::{Answer, GROUP, Identity, NoAnswer, Question, RESOURCE, Reviewer, Verdict};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Questions under way at a time: bad tokens must not become a flood at the API server.
const AT_ONCE: usize = 32;

/// Asks the API server that a client of the `kube` crate talks to. Needs the verb `create` on `tokenreviews`
/// (authentication.k8s.io) and `subjectaccessreviews` (authorization.k8s.io).
pub struct ApiServer {
    client: Client,
    room: Semaphore,
}

impl ApiServer {
    /// Asks through this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, room: Semaphore::new(AT_ONCE) }
    }

    /// Asks the API server of the cluster that this program runs in, or of the kubeconfig's current context.
    ///
    /// # Errors
    /// There is neither, or it cannot be used.
    pub async fn infer() -> Result<Self, NoAnswer> {
        let config = kube::Config::infer().await.map_err(|error| NoAnswer(error.to_string()))?;
        let client = Client::try_from(config).map_err(|error| NoAnswer(error.to_string()))?;
        Ok(Self::new(client))
    }

    async fn ask<R>(&self, review: &R) -> Result<R, NoAnswer>
    where
        R: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + serde::Serialize
            + serde::de::DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let asked = async {
            let _room = self.room.acquire().await.map_err(|error| NoAnswer(error.to_string()))?;
            let api: Api<R> = Api::all(self.client.clone());
            api.create(&PostParams::default(), review).await.map_err(|error| NoAnswer(error.to_string()))
        };
        let answer =
            timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(NoAnswer(format!("none within {PATIENCE:?}"))));
        if let Err(error) = &answer {
            warn_limited!(%error, kind = %R::kind(&()), "a review was not answered");
        }
        answer
    }
}

impl Reviewer for ApiServer {
    fn identify<'a>(&'a self, token: &'a str, audience: Option<&'a str>) -> Answer<'a, Option<Identity>> {
        Box::pin(async move {
            let audiences = audience.map(|audience| vec![audience.to_owned()]);
            let spec = TokenReviewSpec { audiences, token: Some(token.to_owned()) };
            let review = self.ask(&TokenReview { spec, ..TokenReview::default() }).await?;
            let status = review.status.unwrap_or_default();
            if status.authenticated != Some(true) {
                return Ok(None);
            }
            // An API server that does not know of audiences leaves them out: then the token is good for itself only.
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

    fn permits<'a>(&'a self, who: &'a Identity, what: &'a Question) -> Answer<'a, Verdict> {
        Box::pin(async move {
            let attributes = ResourceAttributes {
                group: Some(GROUP.to_owned()),
                resource: Some(RESOURCE.to_owned()),
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
            let review = self.ask(&SubjectAccessReview { spec, ..SubjectAccessReview::default() }).await?;
            let status = review.status.unwrap_or_default();
            Ok(Verdict {
                allowed: status.allowed && status.denied != Some(true),
                reason: status.reason.unwrap_or_default(),
            })
        })
    }
}
