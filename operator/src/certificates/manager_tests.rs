//! Tests of the certificate manager with a fake API server that stores objects by path.

use std::{collections::BTreeMap, sync::Arc};

use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tonic::codegen::http::{Method, Request, Response, StatusCode};

use super::{
    CertificateError, CertificateManager, ExpiryGauges, ServingCertificate,
    ca::{CA_LIFETIME, DAY, SERVER_LIFETIME},
};

const START: i64 = 1_790_000_000;

#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    writes: Vec<String>,
    version: u64,
    /// Simulates a concurrent write of the CA before the next write.
    conflicts: bool,
}

type Shared = Arc<parking_lot::Mutex<Server>>;

const CA: &str = "/api/v1/namespaces/chainscope/secrets/rel-ca";
const OPERATOR: &str = "/api/v1/namespaces/chainscope/secrets/rel-operator-tls";
const AGGREGATOR: &str = "/api/v1/namespaces/chainscope/secrets/rel-aggregator-tls";
const BUNDLE: &str = "/api/v1/namespaces/chainscope/configmaps/rel-ca";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/chainscope/leases/rel-operator";

impl Server {
    fn bump(&mut self, path: &str) {
        self.version += 1;
        let version = self.version.to_string();
        if let Some(object) = self.objects.get_mut(path) {
            object["metadata"]["resourceVersion"] = json!(version);
        }
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Result<Value, (StatusCode, &'static str)> {
        if *method == Method::GET {
            return self.objects.get(path).cloned().ok_or((StatusCode::NOT_FOUND, "NotFound"));
        }
        assert_eq!(*method, Method::PATCH, "RBAC allows get and patch only");
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
            let body = Body::from(serde_json::to_vec(&value).unwrap());
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

#[tokio::test]
async fn the_leader_creates_the_certificates_and_followers_load_them() {
    let (server, serving, manager) = rig();
    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": "rel-operator", "uid": "lease-uid"}});
    server.lock().objects.insert(LEASE.to_owned(), lease);
    manager.reconcile(false, START).await.unwrap();
    assert!(server.lock().writes.is_empty() && !serving.is_loaded(), "only the leader writes");

    manager.reconcile(true, START).await.unwrap();
    assert_eq!(server.lock().writes, [CA, BUNDLE, AGGREGATOR, OPERATOR]);
    assert!(serving.is_loaded());
    manager.reconcile(true, START + DAY).await.unwrap();
    assert_eq!(server.lock().writes.len(), 4, "no write is due");
    for path in [CA, BUNDLE, AGGREGATOR, OPERATOR] {
        let object = server.lock().objects[path].clone();
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "lease-uid", "{path}");
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/instance"], "rel", "{path}");
    }
    assert_eq!(server.lock().objects[OPERATOR]["type"], "kubernetes.io/tls");
    let bundle = server.lock().objects[BUNDLE]["data"]["ca.crt"].to_string();
    assert!(bundle.contains("BEGIN CERTIFICATE") && !bundle.contains("PRIVATE"));

    let other = Arc::new(ServingCertificate::default());
    let expiry = ExpiryGauges::default();
    let follower = CertificateManager::new(client(&server), "chainscope", "rel", Arc::clone(&other), expiry.clone());
    follower.reconcile(false, START + DAY).await.unwrap();
    let end = |name: &str| expiry.get_or_create(&[("certificate", name.to_owned())]).get();
    assert_eq!((end("ca"), end("rel-operator")), (START + CA_LIFETIME, START + SERVER_LIFETIME));
    assert!(other.is_loaded());
}

#[tokio::test]
async fn a_ca_that_was_written_concurrently_is_not_overwritten() {
    let (server, _, manager) = rig();
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
