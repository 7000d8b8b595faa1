//! The aggregator of a Kubernetes cluster, found and reached by `kubectl`.
//!
//! The aggregator's Service and StatefulSet are found by their labels. `kubectl port-forward` makes the API reachable,
//! [`forward`]; the CA bundle is that which the StatefulSet mounts; the token is that of a service account or of the user of
//! the current context, [`token`].

mod discovery;
mod forward;
mod kubectl;
mod token;

use self::{discovery::Aggregator, kubectl::Kubectl, token::Account};
pub(crate) use self::{forward::PortForward, kubectl::exec_with_parent, token::ClusterToken};
use crate::{failure::Failure, progress::Progress, terminal};

/// Which cluster, and as whom.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Context of the kubeconfig; `None`: the current one.
    pub(crate) context: Option<String>,
    /// Namespace that Chainscope is installed in; `None`: any.
    pub(crate) namespace: Option<String>,
    /// Service account to request a token of, as `namespace/name`, or as `name` in the aggregator's namespace.
    pub(crate) service_account: Option<String>,
}

/// The reachable aggregator of a cluster.
pub(crate) struct Cluster {
    /// URL of the API on this machine.
    pub(crate) url: String,
    /// CA bundle that verifies it; `None` without TLS.
    pub(crate) ca: Option<String>,
    pub(crate) forward: PortForward,
    /// The source of its tokens, unless the command line gives one or it requires none.
    pub(crate) token: Option<ClusterToken>,
}

impl Cluster {
    /// Finds the aggregator and makes it reachable. `has_token`: the command line gives one.
    pub(crate) fn connect(options: &Options, has_token: bool) -> anyhow::Result<Self> {
        Progress::during("finding the aggregator by kubectl", || Self::find(options, has_token))
    }

    fn find(options: &Options, has_token: bool) -> anyhow::Result<Self> {
        let kubectl = Kubectl::new(options.context.clone());
        let aggregator = discovery::find(&kubectl, options.namespace.as_deref())?;
        let token = match aggregator.auth.as_str() {
            _ if has_token => None,
            "none" => None,
            "kubernetes" => {
                let account = Account::resolve(&kubectl, options.service_account.as_deref(), &aggregator.namespace)?;
                Some(ClusterToken::new(kubectl.clone(), account))
            }
            mode => {
                let failure = Failure::refused(format!(
                    "the aggregator's auth.mode is {mode}: it requires a token of its Secret"
                ));
                return Err(failure.hint("--token-file FILE or CHAINSCOPE_TOKEN gives it").into());
            }
        };
        let ca = aggregator.ca(&kubectl)?;
        let Aggregator { namespace, service, port, .. } = &aggregator;
        let forward = PortForward::start(kubectl, namespace, service, *port)?;
        let scheme = if ca.is_some() { "https" } else { "http" };
        // The certificates are valid for this name.
        let url = format!("{scheme}://localhost:{}", forward.local_port());
        terminal::detail(&format!("service/{service} of namespace {namespace} is {url}"));
        Ok(Self { url, ca, forward, token })
    }
}
