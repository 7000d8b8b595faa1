//! Tests of creation and rotation. Clients and servers use older certificates than the stored ones.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use zeroize::Zeroizing;

use super::{
    ca::{CertificateAndKey, CertificateInfo, DAY, HOUR, new_ca, new_server_certificate},
    decision::{CertificateState, ServerCertificate, Step, change, next},
    serving::ServingCertificate,
};

const YEAR: i64 = 365 * DAY;
const START: i64 = 1_790_000_000;

fn names(service: &str) -> BTreeSet<String> {
    [service.to_owned(), format!("{service}.chainscope.svc")].into()
}

fn empty() -> CertificateState {
    let servers = ["rel-operator", "rel-aggregator"]
        .map(|name| (name.to_owned(), ServerCertificate { names: names(name), pair: None }))
        .into();
    CertificateState { servers, ..CertificateState::default() }
}

/// Performs all due steps and returns them.
fn settle(state: &mut CertificateState, now: i64) -> Vec<Step> {
    let mut done = Vec::new();
    while let Some(step) = next(state, now) {
        state.apply(change(&step, state, "rel", now).unwrap());
        done.push(step);
        assert!(done.len() < 20, "does not converge: {done:?}");
    }
    done
}

fn kinds(steps: &[Step]) -> Vec<&'static str> {
    steps.iter().map(Step::name).collect()
}

/// Whether a client with this bundle accepts the server's certificate.
fn is_trusted(bundle: &str, server: &CertificateAndKey, name: &str, now: i64) -> bool {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let certificate = CertificateDer::from_pem_slice(server.certificate.as_bytes()).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap()));
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier.verify_server_cert(&certificate, &[], &name, &[], now).is_ok()
}

fn pair(state: &CertificateState, name: &str) -> CertificateAndKey {
    state.servers[name].pair.clone().unwrap()
}

#[test]
fn certificates_are_created_once() {
    let mut state = empty();
    let steps = settle(&mut state, START);
    assert!(
        matches!(steps.as_slice(), [Step::CreateCa, Step::UpdateBundle(_), Step::IssueServer(_), Step::IssueServer(_)]),
        "{steps:?}"
    );
    assert_eq!(settle(&mut state, START), []);
    assert_eq!(settle(&mut state, START + 59 * DAY), []);
    let bundle = state.bundle.clone().unwrap();
    for server in ["rel-operator", "rel-aggregator"] {
        for name in names(server) {
            assert!(is_trusted(&bundle, &pair(&state, server), &name, START - HOUR / 2), "clocks may be behind");
        }
        assert!(!is_trusted(&bundle, &pair(&state, server), "another.chainscope.svc", START));
    }
    assert!(!is_trusted(
        &new_ca("rel", START).unwrap().certificate,
        &pair(&state, "rel-operator"),
        "rel-operator",
        START
    ));
}

#[test]
fn no_handshake_fails_during_two_rotations() {
    // Volumes in pods are updated within minutes; here they are half a day behind.
    const LATE: i64 = 12 * HOUR;
    let mut state = empty();
    settle(&mut state, START);
    let (mut now, mut done) = (START, Vec::new());
    let mut history = vec![(now, state.clone())];
    while now < START + 19 * YEAR {
        let rotating = state.ca.len() > 2;
        now += if rotating { 4 * HOUR } else { 3 * DAY };
        done.extend(settle(&mut state, now));
        history.push((now, state.clone()));
        let late = history.iter().rposition(|(then, _)| *then <= now - LATE).unwrap_or(0);
        history.drain(..late);
        for (_, older) in &history {
            for server in ["rel-operator", "rel-aggregator"] {
                let (fresh, stale) = (state.bundle.as_deref().unwrap(), older.bundle.as_deref().unwrap());
                assert!(is_trusted(stale, &pair(&state, server), server, now), "a client with an old bundle at {now}");
                assert!(
                    is_trusted(fresh, &pair(older, server), server, now),
                    "a server with an old certificate at {now}"
                );
            }
        }
    }
    let count = |step: &Step| done.iter().filter(|other| *other == step).count();
    assert_eq!(
        (count(&Step::CreateCa), count(&Step::PrepareCa), count(&Step::PromoteCa), count(&Step::RetireCa)),
        (0, 2, 2, 2)
    );
    assert_eq!(state.ca.len(), 2, "the rotation is complete");
    assert_eq!(state.bundle.unwrap().matches("BEGIN CERTIFICATE").count(), 1);
}

#[test]
fn server_certificates_are_renewed_after_two_thirds_of_their_lifetime() {
    let mut state = empty();
    settle(&mut state, START);
    let before = pair(&state, "rel-operator");
    assert_eq!(settle(&mut state, START + 60 * DAY - 1), []);
    let steps = settle(&mut state, START + 60 * DAY);
    assert!(matches!(steps.as_slice(), [Step::IssueServer(_), Step::IssueServer(_)]), "{steps:?}");
    let after = pair(&state, "rel-operator");
    assert_ne!(before.key, after.key, "a new key each time");
}

#[test]
fn damaged_or_deleted_certificates_are_replaced() {
    let mut good = empty();
    settle(&mut good, START);
    let check = |damage: &dyn Fn(&mut CertificateState), expected: &[&str]| {
        let mut state = good.clone();
        damage(&mut state);
        let steps = settle(&mut state, START + DAY);
        assert_eq!(kinds(&steps), expected);
        for server in ["rel-operator", "rel-aggregator"] {
            assert!(is_trusted(state.bundle.as_ref().unwrap(), &pair(&state, server), server, START + DAY));
        }
    };
    check(&|state| state.bundle = None, &["CA bundle updated"]);
    check(&|state| state.bundle = Some("garbage".to_owned()), &["CA bundle updated"]);
    let other = new_ca("other", START).unwrap();
    check(&|state| state.servers.get_mut("rel-operator").unwrap().pair = None, &["server certificate issued"]);
    check(
        &|state| {
            let foreign = new_server_certificate(&other, &names("rel-operator"), START).unwrap();
            state.servers.get_mut("rel-operator").unwrap().pair = Some(foreign);
        },
        &["server certificate issued"],
    );
    check(
        &|state| {
            let key = pair(state, "rel-aggregator").key;
            state.servers.get_mut("rel-operator").unwrap().pair.as_mut().unwrap().key = key;
        },
        &["server certificate issued"],
    );
    check(
        &|state| {
            state.servers.get_mut("rel-operator").unwrap().names.insert("new.name".to_owned());
        },
        &["server certificate issued"],
    );
    let everything = ["CA created", "CA bundle updated", "server certificate issued", "server certificate issued"];
    check(&|state| state.ca.clear(), &everything);
    check(
        &|state| {
            state.ca.insert("tls.key".to_owned(), Zeroizing::new(other.key.as_bytes().to_vec()));
        },
        &everything,
    );
    check(
        &|state| {
            state.ca.insert("tls.crt".to_owned(), Zeroizing::new(vec![0xff; 100]));
        },
        &everything,
    );
    check(
        &|state| {
            // A server certificate is not a CA certificate.
            let server = pair(state, "rel-operator");
            state.ca.insert("tls.crt".to_owned(), Zeroizing::new(server.certificate.as_bytes().to_vec()));
            state.ca.insert("tls.key".to_owned(), Zeroizing::new(server.key.as_bytes().to_vec()));
        },
        &everything,
    );
}

#[test]
fn a_ca_that_was_never_in_the_bundle_does_not_sign() {
    let mut state = empty();
    settle(&mut state, START);
    let due = START + 9 * YEAR;
    let step = next(&state, due).unwrap();
    assert_eq!(step, Step::PrepareCa);
    state.apply(change(&step, &state, "rel", due).unwrap());
    // The operator stops here and restarts after two days.
    let first = state.ca["next.crt"].clone();
    let back = due + 2 * DAY;
    let steps = settle(&mut state, back);
    assert!(
        matches!(
            steps.as_slice(),
            [Step::PrepareCa, Step::UpdateBundle(_), Step::IssueServer(_), Step::IssueServer(_)]
        ),
        "{steps:?}"
    );
    assert_ne!(state.ca["next.crt"], first);
    assert_eq!(settle(&mut state, back + DAY - 1), []);
    assert_eq!(settle(&mut state, back + DAY).first(), Some(&Step::PromoteCa));
}

#[test]
fn an_expired_ca_is_replaced_at_once() {
    let mut state = empty();
    settle(&mut state, START);
    let steps = settle(&mut state, START + 11 * YEAR);
    assert_eq!(steps.first(), Some(&Step::CreateCa));
    assert!(is_trusted(
        state.bundle.as_ref().unwrap(),
        &pair(&state, "rel-operator"),
        "rel-operator",
        START + 11 * YEAR
    ));
}

#[test]
fn certificates_from_the_future_are_replaced() {
    let mut state = empty();
    settle(&mut state, START + YEAR);
    let steps = settle(&mut state, START);
    assert!(matches!(steps.as_slice(), [Step::IssueServer(_), Step::IssueServer(_)]), "the CA is kept: {steps:?}");
    assert!(is_trusted(state.bundle.as_ref().unwrap(), &pair(&state, "rel-operator"), "rel-operator", START));
}

#[test]
fn keys_are_not_printed_and_mismatched_keys_not_loaded() {
    let ca = new_ca("rel", START).unwrap();
    assert!(!format!("{ca:?}").contains("PRIVATE"));
    assert!(CertificateInfo::parse("no certificate").is_err());
    let serving = ServingCertificate::default();
    assert!(!serving.is_loaded());
    let good = new_server_certificate(&ca, &names("a"), START).unwrap();
    let other = new_server_certificate(&ca, &names("a"), START).unwrap();
    let mixed = CertificateAndKey { certificate: good.certificate.clone(), key: other.key };
    let error = serving.load(&mixed).unwrap_err().to_string();
    assert!(!error.contains("PRIVATE"), "{error}");
    assert!(!serving.is_loaded());
    serving.load(&good).unwrap();
    assert!(serving.load(&mixed).is_ok() && serving.is_loaded(), "an unchanged certificate is not loaded again");
}
