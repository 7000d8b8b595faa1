//! Tests of the certificate manager with a fake API server that stores objects by path.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use axum::body::Body as ResponseBody;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::{Method, Request, Response, StatusCode, Uri};

use super::{
    CertificateError, CertificateManager, ExpiryGauges, ServingCertificate,
    ca::{CA_LIFETIME, DAY, SERVER_LIFETIME},
};
use crate::cluster::client::tests::unanswered;

const START: i64 = 1_790_000_000;

/// Body of a watch, by its parts.
type EventSender = UnboundedSender<Result<Vec<u8>, Infallible>>;

#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    writes: Vec<String>,
    version: u64,
    /// Simulates a concurrent write of the CA before the next write.
    conflicts: bool,
    /// Open watches, by the path of their object.
    watches: Vec<(String, EventSender)>,
}

type Shared = Arc<parking_lot::Mutex<Server>>;

const CA: &str = "/api/v1/namespaces/chainscope/secrets/rel-ca";
const OPERATOR: &str = "/api/v1/namespaces/chainscope/secrets/rel-operator-tls";
const AGGREGATOR: &str = "/api/v1/namespaces/chainscope/secrets/rel-aggregator-tls";
const BUNDLE: &str = "/api/v1/namespaces/chainscope/configmaps/rel-ca";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/chainscope/deployments/rel-operator";
/// All objects of the manager.
const ALL: [&str; 4] = [CA, BUNDLE, AGGREGATOR, OPERATOR];

impl Server {
    fn bump(&mut self, path: &str) {
        self.version += 1;
        let version = self.version.to_string();
        if let Some(object) = self.objects.get_mut(path) {
            object["metadata"]["resourceVersion"] = json!(version);
            let event = json!({"type": "MODIFIED", "object": object});
            self.notify(path, &event);
        }
    }

    fn delete(&mut self, path: &str) {
        let object = self.objects.remove(path).unwrap();
        self.notify(path, &json!({"type": "DELETED", "object": object}));
    }

    fn notify(&mut self, path: &str, event: &Value) {
        let line = format!("{event}\n").into_bytes();
        self.watches.retain(|(watched, sender)| watched != path || sender.unbounded_send(Ok(line.clone())).is_ok());
    }

    /// The list or the watch of a single object, if the request is one.
    fn collection(&mut self, uri: &Uri) -> Option<ResponseBody> {
        let query = uri.query().filter(|query| query.contains("fieldSelector="))?;
        let (_, name) = query.split_once("metadata.name%3D").unwrap();
        let path = format!("{}/{}", uri.path(), name.split('&').next().unwrap());
        if query.contains("watch=true") {
            let (sender, lines) = unbounded();
            self.watches.push((path, sender));
            return Some(ResponseBody::from_stream(lines));
        }
        let items: Vec<_> = self.objects.get(&path).into_iter().collect();
        let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": self.version.to_string()}, "items": items});
        Some(ResponseBody::from(list.to_string()))
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Result<Value, (StatusCode, &'static str)> {
        if *method == Method::GET {
            return self.objects.get(path).cloned().ok_or((StatusCode::NOT_FOUND, "NotFound"));
        }
        assert_eq!(*method, Method::PATCH, "objects are applied");
        if self.conflicts {
            self.conflicts = false;
            self.bump(CA);
        }
        let mut object: Value = serde_json::from_slice(body).unwrap();
        let held = self.objects.get(path).map(|held| held["metadata"]["resourceVersion"].clone());
        match (&object["metadata"]["resourceVersion"], held) {
            (Value::Null, _) => {}
            (version, Some(held)) if *version == held => {}
            _ => return Err((StatusCode::CONFLICT, "Conflict")),
        }
        object["metadata"]["uid"] = json!(path);
        self.objects.insert(path.to_owned(), object);
        self.bump(path);
        self.writes.push(path.to_owned());
        Ok(self.objects[path].clone())
    }
}

fn client(server: &Shared) -> kube::Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let collection = server.lock().collection(&head.uri);
            if let Some(body) = collection {
                return Ok(Response::new(body));
            }
            let answer = server.lock().answer(&head.method, head.uri.path(), &body);
            let (status, value) = match answer {
                Ok(value) => (StatusCode::OK, value),
                Err((status, reason)) => {
                    let code = status.as_u16();
                    let value = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": reason, "reason": reason, "code": code});
                    (status, value)
                }
            };
            let body = ResponseBody::from(value.to_string());
            Ok::<_, kube::Error>(Response::builder().status(status).body(body).unwrap())
        }
    });
    kube::Client::new(service, "chainscope")
}

fn rig() -> (Shared, Arc<ServingCertificate>, CertificateManager) {
    let (server, serving, ends) = (Shared::default(), Arc::new(ServingCertificate::default()), ExpiryGauges::default());
    let manager = CertificateManager::new(client(&server), "chainscope", "rel", Arc::clone(&serving), ends.clone());
    (server, serving, manager)
}

/// Creates the operator's Deployment.
fn deploy(server: &Shared) {
    let deployment = json!({"kind": "Deployment", "apiVersion": "apps/v1",
        "metadata": {"name": "rel-operator", "uid": "deployment-uid"}});
    server.lock().objects.insert(DEPLOYMENT.to_owned(), deployment);
}

/// Runs the manager as the leader until the certificates exist. The senders stop it when they are dropped.
async fn run(server: &Shared, manager: CertificateManager) -> (watch::Sender<bool>, CancellationToken) {
    let (leader, is_leader) = watch::channel(true);
    let stop = CancellationToken::new();
    tokio::spawn(manager.run(is_leader, stop.clone()));
    exist(server, &ALL, Duration::from_secs(5)).await;
    (leader, stop)
}

/// Waits until the objects exist and are watched.
async fn exist(server: &Shared, paths: &[&str], within: Duration) {
    let exist = async {
        while !paths.iter().all(|path| {
            let server = server.lock();
            server.objects.contains_key(*path) && server.watches.iter().any(|(watched, _)| watched == path)
        }) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(within, exist).await.unwrap_or_else(|_| panic!("{paths:?} do not exist within {within:?}"));
}

#[tokio::test(start_paused = true)]
async fn deleted_objects_are_recreated_within_seconds_and_the_ca_as_it_was() {
    let (server, _, manager) = rig();
    deploy(&server);
    let _running = run(&server, manager).await;
    let content = |path: &str| server.lock().objects[path]["data"].clone();
    let (ca, bundle) = (content(CA), content(BUNDLE));
    server.lock().delete(CA);
    exist(&server, &[CA], Duration::from_secs(5)).await;
    assert_eq!(content(CA), ca, "clients keep trusting it");
    ALL.iter().for_each(|path| server.lock().delete(path));
    exist(&server, &ALL, Duration::from_secs(5)).await;
    assert_eq!((content(CA), content(BUNDLE)), (ca.clone(), bundle));

    // An emptied CA is not restored.
    server.lock().objects.get_mut(CA).unwrap()["data"] = json!({});
    server.lock().bump(CA);
    sleep(Duration::from_secs(5)).await;
    assert!(content(CA)["tls.key"].is_string() && content(CA) != ca);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_recreated_while_the_release_is_uninstalled() {
    let (server, _, manager) = rig();
    deploy(&server);
    let _running = run(&server, manager).await;
    server.lock().delete(DEPLOYMENT);
    ALL.iter().for_each(|path| server.lock().delete(path));
    sleep(Duration::from_mins(30)).await;
    assert!(server.lock().objects.is_empty());
}

#[tokio::test]
async fn objects_of_another_owner_are_adopted() {
    let (server, _, mut manager) = rig();
    manager.reconcile(true, START).await.unwrap();
    let lease =
        json!([{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "rel-operator", "uid": "lease"}]);
    for path in ALL {
        server.lock().objects.get_mut(path).unwrap()["metadata"]["ownerReferences"] = lease.clone();
    }
    let before = server.lock().objects.clone();
    deploy(&server);
    manager.reconcile(true, START).await.unwrap();
    for path in ALL {
        let now = server.lock().objects[path].clone();
        assert_eq!(now["metadata"]["ownerReferences"][0]["uid"], "deployment-uid", "{path}");
        assert_eq!(now["data"], before[path]["data"], "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_are_cancelled_with_the_leadership() {
    let (client, mut requests) = unanswered();
    let manager = CertificateManager::new(client, "chainscope", "rel", Arc::default(), ExpiryGauges::default());
    let (leader, is_leader) = watch::channel(true);
    tokio::spawn(manager.run(is_leader, CancellationToken::new()));
    let in_flight = requests.recv().await.unwrap();
    leader.send_replace(false);
    // Long before the timeout of a reconciliation.
    timeout(Duration::from_secs(1), in_flight).await.expect("cancelled at once").expect_err("not answered");
}

#[tokio::test]
async fn the_leader_creates_the_certificates_and_followers_load_them() {
    let (server, serving, mut manager) = rig();
    deploy(&server);
    manager.reconcile(false, START).await.unwrap();
    assert!(server.lock().writes.is_empty() && !serving.is_loaded(), "only the leader writes");

    manager.reconcile(true, START).await.unwrap();
    assert_eq!(server.lock().writes, [CA, BUNDLE, AGGREGATOR, OPERATOR]);
    assert!(serving.is_loaded());
    manager.reconcile(true, START + DAY).await.unwrap();
    assert_eq!(server.lock().writes.len(), 4, "no write is due");
    for path in ALL {
        let object = server.lock().objects[path].clone();
        let owner = &object["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["uid"]), (&"Deployment".into(), &"deployment-uid".into()), "{path}");
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/instance"], "rel", "{path}");
    }
    assert_eq!(server.lock().objects[OPERATOR]["type"], "kubernetes.io/tls");
    let bundle = server.lock().objects[BUNDLE]["data"]["ca.crt"].to_string();
    assert!(bundle.contains("BEGIN CERTIFICATE") && !bundle.contains("PRIVATE"));

    let other = Arc::new(ServingCertificate::default());
    let expiry = ExpiryGauges::default();
    let mut follower =
        CertificateManager::new(client(&server), "chainscope", "rel", Arc::clone(&other), expiry.clone());
    follower.reconcile(false, START + DAY).await.unwrap();
    let end = |name: &str| expiry.get_or_create(&[("certificate", name.to_owned())]).get();
    assert_eq!((end("ca"), end("rel-operator")), (START + CA_LIFETIME, START + SERVER_LIFETIME));
    assert!(other.is_loaded());
}

#[tokio::test]
async fn a_ca_that_was_written_concurrently_is_not_overwritten() {
    let (server, _, mut manager) = rig();
    manager.reconcile(true, START).await.unwrap();
    let before = server.lock().objects[CA]["data"].clone();
    server.lock().conflicts = true;
    let rotation = START + 9 * 365 * DAY;
    let error = manager.reconcile(true, rotation).await.unwrap_err();
    assert!(matches!(&error, CertificateError::Cluster { what, .. } if what == "Secret rel-ca"), "{error}");
    assert_eq!(server.lock().objects[CA]["data"], before);
    manager.reconcile(true, rotation).await.unwrap();
    assert!(server.lock().objects[CA]["data"]["next.key"].is_string());
}
