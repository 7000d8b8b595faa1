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
use crate::{api::Token, failure::Failure, progress::Progress, terminal};

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
    pub(crate) token: Token,
}

impl Cluster {
    /// Finds the aggregator and makes it reachable. `token` is given on the command line.
    pub(crate) fn connect(options: &Options, token: Option<Token>) -> anyhow::Result<Self> {
        let mut progress = Progress::start("finding the aggregator by kubectl");
        let kubectl = Kubectl::new(options.context.clone());
        let aggregator = discovery::find(&kubectl, options.namespace.as_deref())?;
        progress.tick();
        let token = match (token, aggregator.auth.as_str()) {
            (Some(token), _) => token,
            (None, "none") => Token::None,
            (None, "kubernetes") => {
                let account = Account::resolve(&kubectl, options.service_account.as_deref(), &aggregator.namespace)?;
                Token::Cluster(ClusterToken::new(kubectl.clone(), account))
            }
            (None, mode) => {
                let failure = Failure::refused(format!(
                    "the aggregator's auth.mode is {mode}: it requires a token of its Secret"
                ));
                return Err(failure.hint("--token-file FILE or CHAINSCOPE_TOKEN gives it").into());
            }
        };
        progress.tick();
        let ca = aggregator.ca(&kubectl)?;
        progress.tick();
        let Aggregator { namespace, service, port, .. } = &aggregator;
        let forward = PortForward::start(kubectl, namespace, service, *port)?;
        let scheme = if ca.is_some() { "https" } else { "http" };
        // The certificates are valid for this name.
        let url = format!("{scheme}://localhost:{}", forward.local_port());
        terminal::detail(&format!("service/{service} of namespace {namespace} is {url}"));
        Ok(Self { url, ca, forward, token })
    }
}
