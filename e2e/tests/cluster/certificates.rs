//! Certificates from Secrets that are issued and renewed by a third party (`certificates.mode=secret`).

use chainscope_e2e::cluster::pki::CertificateAuthority;
use chainscope_e2e::cluster::release::{RELEASE, pods_of};
use chainscope_e2e::cluster::scene::{NODE, Scene};
use chainscope_e2e::harness::api::Api;
use chainscope_e2e::harness::wait;

/// A DNS name that only the renewed certificate has.
const RENEWED: &str = "renewed.chainscope.svc";

#[test]
fn certificates_of_secrets_are_used_and_renewed_without_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = CertificateAuthority::new(folder.path());
    let service = |component: &str| format!("{RELEASE}-{component}.{RELEASE}.svc");
    let values = [
        "certificates.mode=secret",
        "certificates.secret.operator=given-operator",
        "certificates.secret.aggregator=given-aggregator",
        "certificates.ca.name=chainscope-ca",
    ];
    let scene = Scene::prepared(1, &values, |cluster| {
        for component in ["operator", "aggregator"] {
            cluster.apply_certificate(component, &ca.server(component, &[&service(component)]));
        }
        let certificate = ca.own().certificate;
        let file = format!("--from-file ca.crt={}", certificate.display());
        cluster.kubectl(&format!("create configmap chainscope-ca --namespace {RELEASE} {file}"));
    });
    scene.play_load(1_000_000, 20);
    scene.until_count(100);
    scene.cluster.condition("tezos", "rolling", "Ready", "True");

    scene.cluster.apply_certificate("aggregator", &ca.server("renewed", &[&service("aggregator"), RENEWED]));
    let (certificates, forward) = scene.cluster.service("aggregator", 17732);
    let token = scene.cluster.token("tezos", "reader");
    let renewed = Api::secure(forward.port(), RENEWED, &certificates).with_token(&token);
    let path = format!("/v2/p2p?node_name={NODE}&limit=1");
    wait::until_within(wait::WAIT_TIMEOUT * 3, "the renewed certificate", || {
        renewed.request(&path).filter(|(status, _)| *status == 200)
    });
    let count = scene.count();
    scene.until_count(count + 100);
    for component in ["operator", "aggregator", "agent"] {
        let pods = scene.cluster.find(&pods_of(component)).expect("pods");
        assert_eq!(pods["items"][0]["status"]["containerStatuses"][0]["restartCount"], 0, "{component}");
    }
}
