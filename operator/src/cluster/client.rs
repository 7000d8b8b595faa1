//! The client of the API server: no request waits for ever for an answer.

use std::time::Duration;

use kube::{Client, Config, client::ClientBuilder};
use tokio::time::timeout;
use tower::{BoxError, util::MapFutureLayer};

/// Timeout of a request to the head of its response, which a watch has at once. Single requests have shorter ones.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a read of a response's body. Longer than that of an idle watch, which `kube::runtime::watcher` ends.
const READ_TIMEOUT: Duration = Duration::from_mins(6);
/// Timeout of a request that reads or writes a single object.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A client with timeouts.
///
/// # Errors
/// If the configuration is invalid.
pub fn client(mut config: Config) -> kube::Result<Client> {
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    Ok(ClientBuilder::try_from(config)?.with_layer(&MapFutureLayer::new(response_within_timeout)).build())
}

async fn response_within_timeout<T>(response: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    timeout(RESPONSE_TIMEOUT, response).await.unwrap_or_else(|_| Err("no response within 30 seconds".into()))
}

/// Bounds the time of a request that reads or writes a single object.
pub(crate) async fn within_timeout<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let timed_out = || kube::Error::Service("no response within 10 seconds".into());
    timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(|_| Err(timed_out()))
}

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::{Api, api::ListParams, client::Body};
    use tokio::{
        net::TcpListener,
        sync::{mpsc, oneshot},
    };
    use tonic::codegen::http::{Request, Response};

    use super::*;

    /// A client whose requests are never answered, and for each request a receiver that ends when it is cancelled.
    pub(crate) fn unanswered() -> (Client, mpsc::Receiver<oneshot::Receiver<()>>) {
        let (requests, received) = mpsc::channel(64);
        let service = tower::service_fn(move |_: Request<Body>| {
            let (alive, cancelled) = oneshot::channel::<()>();
            let _ = requests.try_send(cancelled);
            async move {
                let _alive = alive;
                std::future::pending::<kube::Result<Response<Body>>>().await
            }
        });
        (Client::new(service, "chainscope"), received)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_accepts_and_never_answers_is_an_error() {
        // The kernel accepts connections on its own.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let config = Config::new(url.parse().unwrap());
        let pods: Api<Pod> = Api::all(client(config).unwrap());
        let params = ListParams::default();
        let listed = timeout(Duration::from_hours(1), pods.list(&params)).await;
        let error = listed.expect("a request without a timeout").unwrap_err();
        assert!(format!("{error:?}").contains("within 30 seconds"), "{error:?}");
    }
}
