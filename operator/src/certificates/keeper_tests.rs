//! Against an API server that knows just enough: objects by their path, read and applied.

use std::{collections::BTreeMap, sync::Arc};

use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tonic::codegen::http::{Method, Request, Response, StatusCode};

use super::{
    Ends, Keeper, KeeperError, Served,
    authority::{AUTHORITY_LIFE, DAY, SERVER_LIFE},
};

const START: i64 = 1_790_000_000;

#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    writes: Vec<String>,
    version: u64,
    /// Somebody else writes the authority before the next write comes.
    interferes: bool,
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
        assert_eq!(*method, Method::PATCH, "the rights are for reading and applying only");
        if self.interferes {
            self.interferes = false;
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

fn rig() -> (Shared, Arc<Served>, Keeper) {
    let (server, served, ends) = (Shared::default(), Arc::new(Served::default()), Ends::default());
    let keeper = Keeper::new(client(&server), "chainscope", "rel", Arc::clone(&served), ends.clone());
    (server, served, keeper)
}

#[tokio::test]
async fn the_leader_makes_everything_once_and_the_others_use_it() {
    let (server, served, keeper) = rig();
    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": "rel-operator", "uid": "lease-uid"}});
    server.lock().objects.insert(LEASE.to_owned(), lease);
    keeper.look_after(false, START).await.unwrap();
    assert!(server.lock().writes.is_empty() && !served.is_there(), "only the leader writes");

    keeper.look_after(true, START).await.unwrap();
    assert_eq!(server.lock().writes, [CA, BUNDLE, AGGREGATOR, OPERATOR]);
    assert!(served.is_there());
    keeper.look_after(true, START + DAY).await.unwrap();
    assert_eq!(server.lock().writes.len(), 4, "nothing is due");
    for path in [CA, BUNDLE, AGGREGATOR, OPERATOR] {
        let object = server.lock().objects[path].clone();
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "lease-uid", "{path}");
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/instance"], "rel", "{path}");
    }
    assert_eq!(server.lock().objects[OPERATOR]["type"], "kubernetes.io/tls");
    let bundle = server.lock().objects[BUNDLE]["data"]["ca.crt"].to_string();
    assert!(bundle.contains("BEGIN CERTIFICATE") && !bundle.contains("PRIVATE"));

    let other = Arc::new(Served::default());
    let ends = Ends::default();
    let follower = Keeper::new(client(&server), "chainscope", "rel", Arc::clone(&other), ends.clone());
    follower.look_after(false, START + DAY).await.unwrap();
    let end = |name: &str| ends.get_or_create(&[("certificate", name.to_owned())]).get();
    assert_eq!((end("authority"), end("rel-operator")), (START + AUTHORITY_LIFE, START + SERVER_LIFE));
    assert!(other.is_there());
}

#[tokio::test]
async fn an_authority_that_somebody_else_has_written_meanwhile_is_not_overwritten() {
    let (server, _, keeper) = rig();
    keeper.look_after(true, START).await.unwrap();
    let before = server.lock().objects[CA]["data"].clone();
    server.lock().interferes = true;
    let rotation = START + 9 * 365 * DAY;
    let error = keeper.look_after(true, rotation).await.unwrap_err();
    assert!(matches!(&error, KeeperError::Cluster { what, .. } if what == "Secret rel-ca"), "{error}");
    assert_eq!(server.lock().objects[CA]["data"], before);
    keeper.look_after(true, rotation).await.unwrap();
    assert!(server.lock().objects[CA]["data"]["next.key"].is_string());
}
