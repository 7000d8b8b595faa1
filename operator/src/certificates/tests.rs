//! Certificates over the years: what clients and servers hold is always older than what is there.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use zeroize::Zeroizing;

use super::{
    authority::{About, DAY, HOUR, Pair, new_authority, new_server},
    decision::{Found, Server, Step, change, next},
    served::Served,
};

const YEAR: i64 = 365 * DAY;
const START: i64 = 1_790_000_000;

fn names(service: &str) -> BTreeSet<String> {
    [service.to_owned(), format!("{service}.chainscope.svc")].into()
}

fn nothing() -> Found {
    let servers = ["rel-operator", "rel-aggregator"]
        .map(|name| (name.to_owned(), Server { names: names(name), pair: None }))
        .into();
    Found { servers, ..Found::default() }
}

/// Does everything that is due; says what.
fn settle(found: &mut Found, now: i64) -> Vec<Step> {
    let mut done = Vec::new();
    while let Some(step) = next(found, now) {
        found.apply(change(&step, found, "rel", now).unwrap());
        done.push(step);
        assert!(done.len() < 20, "no end: {done:?}");
    }
    done
}

fn kinds(steps: &[Step]) -> Vec<&'static str> {
    steps.iter().map(Step::name).collect()
}

/// Whether a client that trusts the bundle believes the server.
fn believed(bundle: &str, server: &Pair, name: &str, now: i64) -> bool {
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

fn pair(found: &Found, name: &str) -> Pair {
    found.servers[name].pair.clone().unwrap()
}

#[test]
fn the_first_look_makes_everything_and_the_second_nothing() {
    let mut found = nothing();
    let steps = settle(&mut found, START);
    assert!(matches!(steps.as_slice(), [Step::Begin, Step::Publish(_), Step::Issue(_), Step::Issue(_)]), "{steps:?}");
    assert_eq!(settle(&mut found, START), []);
    assert_eq!(settle(&mut found, START + 59 * DAY), []);
    let bundle = found.bundle.clone().unwrap();
    for server in ["rel-operator", "rel-aggregator"] {
        for name in names(server) {
            assert!(believed(&bundle, &pair(&found, server), &name, START - HOUR / 2), "clocks may be behind");
        }
        assert!(!believed(&bundle, &pair(&found, server), "another.chainscope.svc", START));
    }
    assert!(!believed(
        &new_authority("rel", START).unwrap().certificate,
        &pair(&found, "rel-operator"),
        "rel-operator",
        START
    ));
}

#[test]
fn over_two_rotations_nobody_is_ever_refused() {
    // Files in pods follow within minutes; here they are half a day late.
    const LATE: i64 = 12 * HOUR;
    let mut found = nothing();
    settle(&mut found, START);
    let (mut now, mut done) = (START, Vec::new());
    let mut history = vec![(now, found.clone())];
    while now < START + 19 * YEAR {
        let rotating = found.authority.len() > 2;
        now += if rotating { 4 * HOUR } else { 3 * DAY };
        done.extend(settle(&mut found, now));
        history.push((now, found.clone()));
        let late = history.iter().rposition(|(then, _)| *then <= now - LATE).unwrap_or(0);
        history.drain(..late);
        for (_, older) in &history {
            for server in ["rel-operator", "rel-aggregator"] {
                let (fresh, stale) = (found.bundle.as_deref().unwrap(), older.bundle.as_deref().unwrap());
                assert!(believed(stale, &pair(&found, server), server, now), "a client is late at {now}");
                assert!(believed(fresh, &pair(older, server), server, now), "a server is late at {now}");
            }
        }
    }
    let count = |step: &Step| done.iter().filter(|other| *other == step).count();
    assert_eq!((count(&Step::Begin), count(&Step::Prepare), count(&Step::Promote), count(&Step::Retire)), (0, 2, 2, 2));
    assert_eq!(found.authority.len(), 2, "nothing is left of the rotation");
    assert_eq!(found.bundle.unwrap().matches("BEGIN CERTIFICATE").count(), 1);
}

#[test]
fn servers_are_renewed_after_two_thirds_of_their_time() {
    let mut found = nothing();
    settle(&mut found, START);
    let before = pair(&found, "rel-operator");
    assert_eq!(settle(&mut found, START + 60 * DAY - 1), []);
    let steps = settle(&mut found, START + 60 * DAY);
    assert!(matches!(steps.as_slice(), [Step::Issue(_), Step::Issue(_)]), "{steps:?}");
    let after = pair(&found, "rel-operator");
    assert_ne!(before.key, after.key, "a new key each time");
}

#[test]
fn what_was_damaged_or_deleted_is_made_again() {
    let mut good = nothing();
    settle(&mut good, START);
    let check = |damage: &dyn Fn(&mut Found), expected: &[&str]| {
        let mut found = good.clone();
        damage(&mut found);
        let steps = settle(&mut found, START + DAY);
        assert_eq!(kinds(&steps).iter().map(|name| name.split(' ').nth(1).unwrap()).collect::<Vec<_>>(), expected);
        for server in ["rel-operator", "rel-aggregator"] {
            assert!(believed(found.bundle.as_ref().unwrap(), &pair(&found, server), server, START + DAY));
        }
    };
    check(&|found| found.bundle = None, &["to"]);
    check(&|found| found.bundle = Some("rubbish".to_owned()), &["to"]);
    let other = new_authority("other", START).unwrap();
    check(&|found| found.servers.get_mut("rel-operator").unwrap().pair = None, &["server's"]);
    check(
        &|found| {
            let foreign = new_server(&other, &names("rel-operator"), START).unwrap();
            found.servers.get_mut("rel-operator").unwrap().pair = Some(foreign);
        },
        &["server's"],
    );
    check(
        &|found| {
            let key = pair(found, "rel-aggregator").key;
            found.servers.get_mut("rel-operator").unwrap().pair.as_mut().unwrap().key = key;
        },
        &["server's"],
    );
    check(
        &|found| {
            found.servers.get_mut("rel-operator").unwrap().names.insert("new.name".to_owned());
        },
        &["server's"],
    );
    let everything = ["first", "to", "server's", "server's"];
    check(&|found| found.authority.clear(), &everything);
    check(
        &|found| {
            found.authority.insert("tls.key".to_owned(), Zeroizing::new(other.key.as_bytes().to_vec()));
        },
        &everything,
    );
    check(
        &|found| {
            found.authority.insert("tls.crt".to_owned(), Zeroizing::new(vec![0xff; 100]));
        },
        &everything,
    );
    check(
        &|found| {
            // A server's certificate is no authority.
            let server = pair(found, "rel-operator");
            found.authority.insert("tls.crt".to_owned(), Zeroizing::new(server.certificate.as_bytes().to_vec()));
            found.authority.insert("tls.key".to_owned(), Zeroizing::new(server.key.as_bytes().to_vec()));
        },
        &everything,
    );
}

#[test]
fn an_authority_that_nobody_was_told_of_signs_nothing() {
    let mut found = nothing();
    settle(&mut found, START);
    let due = START + 9 * YEAR;
    let step = next(&found, due).unwrap();
    assert_eq!(step, Step::Prepare);
    found.apply(change(&step, &found, "rel", due).unwrap());
    // The program ends here, and comes back after two days.
    let first = found.authority["next.crt"].clone();
    let back = due + 2 * DAY;
    let steps = settle(&mut found, back);
    assert!(matches!(steps.as_slice(), [Step::Prepare, Step::Publish(_), Step::Issue(_), Step::Issue(_)]), "{steps:?}");
    assert_ne!(found.authority["next.crt"], first);
    assert_eq!(settle(&mut found, back + DAY - 1), []);
    assert_eq!(settle(&mut found, back + DAY).first(), Some(&Step::Promote));
}

#[test]
fn an_authority_that_ended_is_followed_at_once() {
    let mut found = nothing();
    settle(&mut found, START);
    let steps = settle(&mut found, START + 11 * YEAR);
    assert_eq!(steps.first(), Some(&Step::Begin));
    assert!(believed(found.bundle.as_ref().unwrap(), &pair(&found, "rel-operator"), "rel-operator", START + 11 * YEAR));
}

#[test]
fn a_clock_that_was_wrong_does_no_lasting_harm() {
    let mut found = nothing();
    settle(&mut found, START + YEAR);
    let steps = settle(&mut found, START);
    assert!(matches!(steps.as_slice(), [Step::Issue(_), Step::Issue(_)]), "the authority stays: {steps:?}");
    assert!(believed(found.bundle.as_ref().unwrap(), &pair(&found, "rel-operator"), "rel-operator", START));
}

#[test]
fn keys_are_not_printed_and_bad_ones_not_served() {
    let authority = new_authority("rel", START).unwrap();
    assert!(!format!("{authority:?}").contains("PRIVATE"));
    assert!(About::read("no certificate").is_err());
    let served = Served::default();
    assert!(!served.is_there());
    let good = new_server(&authority, &names("a"), START).unwrap();
    let other = new_server(&authority, &names("a"), START).unwrap();
    let mixed = Pair { certificate: good.certificate.clone(), key: other.key };
    let error = served.take(&mixed).unwrap_err().to_string();
    assert!(!error.contains("PRIVATE"), "{error}");
    assert!(!served.is_there());
    served.take(&good).unwrap();
    assert!(served.take(&mixed).is_ok() && served.is_there(), "the same certificate is not read again");
}
