//! Requests to the API server, byte for byte: `kube`'s client against a fake API server.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Bytes, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use chainscope_aggregator::access::{AccessDecision, AccessReview, ApiServer, Identity, Resource, Reviewer as _};
use serde_json::{Value, json};

/// Responds with the next of the given statuses, and records the requests.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<Vec<(StatusCode, Value)>>>,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
}

async fn answer(State(script): State<Script>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body: Bytes = to_bytes(body, 1 << 20).await.unwrap();
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    script.requests.lock().unwrap().push((format!("{} {}", head.method, head.uri.path()), review.clone()));
    let (code, status) = script.answers.lock().unwrap().remove(0);
    let body = if code.is_success() {
        review["status"] = status;
        review
    } else {
        status
    };
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn api_server(answers: Vec<(StatusCode, Value)>) -> (ApiServer, Script) {
    let script = Script { answers: Arc::new(Mutex::new(answers)), ..Script::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(script.clone());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (ApiServer::new(kube::Client::try_from(config).unwrap()), script)
}

fn created(status: Value) -> (StatusCode, Value) {
    (StatusCode::CREATED, status)
}

#[tokio::test]
async fn a_token_review_is_as_the_documents_have_it() {
    let user = json!({
        "username": "system:serviceaccount:ns:agent", "uid": "u-1", "groups": ["system:serviceaccounts"],
        "extra": {"authentication.kubernetes.io/node-name": ["h1"], "x": ["a", "b"]},
    });
    let (server, script) = api_server(vec![
        created(json!({"authenticated": true, "audiences": ["chainscope"], "user": user})),
        created(json!({"authenticated": true, "user": user})),
        created(json!({"authenticated": true, "audiences": ["https://kubernetes.default.svc"], "user": user})),
        created(json!({"authenticated": true, "user": user})),
        created(json!({"authenticated": false, "error": "expired"})),
        created(json!({})),
        created(json!({"authenticated": true, "user": {}})),
    ])
    .await;
    let identity = server.authenticate("t0", Some("chainscope")).await.unwrap().unwrap();
    assert_eq!((identity.user.as_str(), identity.uid.as_str()), ("system:serviceaccount:ns:agent", "u-1"));
    assert_eq!(identity.extra("authentication.kubernetes.io/node-name"), Some("h1"));
    assert_eq!((identity.extra("x"), identity.extra("y")), (None, None), "one value or none");
    assert_eq!(server.authenticate("t1", None).await.unwrap(), Some(identity));
    for refused in ["another audience", "a server that knows no audiences"] {
        assert_eq!(server.authenticate("t2", Some("chainscope")).await.unwrap(), None, "{refused}");
    }
    for refused in ["expired", "no status", "no name"] {
        assert_eq!(server.authenticate("t3", None).await.unwrap(), None, "{refused}");
    }
    let requests = script.requests.lock().unwrap();
    let (path, review) = &requests[0];
    assert_eq!(path, "POST /apis/authentication.k8s.io/v1/tokenreviews");
    assert_eq!(review["kind"], "TokenReview");
    assert_eq!(review["apiVersion"], "authentication.k8s.io/v1");
    assert_eq!(review["spec"], json!({"token": "t0", "audiences": ["chainscope"]}));
    assert_eq!(requests[1].1["spec"], json!({"token": "t1"}), "the server's own audience");
}

#[tokio::test]
async fn a_subject_access_review_is_as_the_documents_have_it() {
    let (server, script) = api_server(vec![
        created(json!({"allowed": true, "reason": "RBAC: allowed"})),
        created(json!({"allowed": false})),
        created(json!({"allowed": true, "denied": true, "reason": "no"})),
        created(json!({"allowed": true})),
        created(json!({"allowed": true})),
    ])
    .await;
    let who = Identity {
        user: "alice".into(),
        uid: "u-2".into(),
        groups: vec!["readers".into(), "system:authenticated".into()],
        extra: BTreeMap::from([("scopes".into(), vec!["a".into()])]),
    };
    let what = |namespace: &str, name: &str| AccessReview {
        resource: Resource::TezosNodes,
        subresource: "messages",
        namespace: namespace.into(),
        name: name.into(),
    };
    let yes = AccessDecision { allowed: true, reason: "RBAC: allowed".into() };
    assert_eq!(server.authorize(&who, &what("default", "octez-0")).await.unwrap(), yes);
    assert!(!server.authorize(&who, &what("default", "")).await.unwrap().allowed);
    assert!(!server.authorize(&who, &what("", "")).await.unwrap().allowed, "denied");
    let user = Identity { user: "bob".into(), ..Identity::default() };
    assert!(server.authorize(&user, &what("", "")).await.unwrap().allowed);
    let trace = AccessReview { resource: Resource::NodeTraces, subresource: "trace", ..what("bitcoin", "bitcoind") };
    assert!(server.authorize(&user, &trace).await.unwrap().allowed);
    let requests = script.requests.lock().unwrap();
    let (path, review) = &requests[0];
    assert_eq!(path, "POST /apis/authorization.k8s.io/v1/subjectaccessreviews");
    assert_eq!(review["kind"], "SubjectAccessReview");
    assert_eq!(review["apiVersion"], "authorization.k8s.io/v1");
    let attributes = |namespace: Option<&str>, name: Option<&str>| {
        let mut attributes =
            json!({"group": "chainscope.dev", "resource": "tezosnodes", "subresource": "messages", "verb": "get"});
        for (key, value) in [("namespace", namespace), ("name", name)] {
            if let Some(value) = value {
                attributes[key] = value.into();
            }
        }
        attributes
    };
    let spec = json!({
        "user": "alice", "uid": "u-2", "groups": ["readers", "system:authenticated"], "extra": {"scopes": ["a"]},
        "resourceAttributes": attributes(Some("default"), Some("octez-0")),
    });
    assert_eq!(review["spec"], spec);
    assert_eq!(requests[1].1["spec"]["resourceAttributes"], attributes(Some("default"), None));
    assert_eq!(requests[3].1["spec"], json!({"user": "bob", "resourceAttributes": attributes(None, None)}));
    let attributes = json!({"group": "chainscope.dev", "resource": "nodetraces", "subresource": "trace", "verb": "get",
        "namespace": "bitcoin", "name": "bitcoind"});
    assert_eq!(requests[4].1["spec"]["resourceAttributes"], attributes);
}

#[tokio::test]
async fn every_failure_of_a_review_is_an_error() {
    let forbidden = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
        "message": "tokenreviews is forbidden: chainscope-aggregator cannot create them"});
    let (server, _) = api_server(vec![
        (StatusCode::FORBIDDEN, forbidden),
        (StatusCode::INTERNAL_SERVER_ERROR, json!("oh")),
        created(json!("not a status")),
    ])
    .await;
    let error = server.authenticate("secret-token", None).await.unwrap_err().to_string();
    assert!(error.contains("cannot create them") && !error.contains("secret-token"), "{error}");
    for _ in 0..2 {
        let error = server.authenticate("secret-token", None).await.unwrap_err().to_string();
        assert!(!error.contains("secret-token"), "{error}");
    }
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let unreachable = ApiServer::new(kube::Client::try_from(config).unwrap());
    let resource = Resource::NodeTraces;
    let review = AccessReview { resource, subresource: "stats", namespace: String::new(), name: String::new() };
    assert!(unreachable.authorize(&Identity::default(), &review).await.is_err());
}
