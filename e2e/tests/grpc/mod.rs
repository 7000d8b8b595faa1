//! A gRPC client of the operator and the aggregator of a cluster, with the token of an agent.

use chainscope_e2e::cluster::Cluster;
use chainscope_e2e::cluster::release::{RELEASE, pods_of};
use chainscope_e2e::harness::wait;
use tonic::Request;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};

/// Port of the aggregator's ingest.
pub(crate) const INGEST: u16 = 17_733;

/// A token bound to the pod of that host's agent.
pub(crate) fn agent_token(cluster: &Cluster, host: &str) -> String {
    let pod = wait::until(&format!("an agent on {host}"), || {
        let pods = cluster.find(&pods_of("agent"))?;
        let pod = pods["items"].as_array()?.iter().find(|pod| pod["spec"]["nodeName"] == host)?.clone();
        pod["metadata"]["name"].as_str().map(str::to_owned)
    });
    let bound = format!("--bound-object-kind Pod --bound-object-name {pod}");
    let command = format!("create token {RELEASE}-agent --namespace {RELEASE} --audience chainscope {bound}");
    cluster.kubectl(&command).trim().to_owned()
}

/// A channel to a Service, and the forwarded port that it needs.
pub(crate) async fn channel(cluster: &Cluster, component: &str, port: u16) -> (Channel, impl Sized + use<>) {
    let (ca_bundle, forward) = tokio::task::block_in_place(|| cluster.service(component, port));
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca_bundle))
        .domain_name(format!("{RELEASE}-{component}.{RELEASE}.svc"));
    let endpoint = Channel::from_shared(format!("https://127.0.0.1:{}", forward.port())).expect("an address");
    let channel = endpoint.tls_config(tls).expect("TLS").connect().await;
    (channel.unwrap_or_else(|e| panic!("{component}: {e:?}")), forward)
}

pub(crate) fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a header"));
    request
}
