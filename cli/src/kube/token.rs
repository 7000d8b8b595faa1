//! Tokens of a cluster: of a service account by TokenRequest, or of the user of the kubeconfig.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context as _, ensure};
use chainscope_hygiene::Escaped;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;

use super::kubectl::Kubectl;
use crate::failure::Failure;

/// Whose token is used.
#[derive(Debug, Clone)]
pub(super) enum Account {
    ServiceAccount { namespace: String, name: String },
    User(User),
}

/// A user of the kubeconfig, with a token or what gives one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct User {
    token: Option<String>,
    token_file: Option<String>,
    exec: Option<Exec>,
}

/// A plugin for credentials.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exec {
    api_version: String,
    command: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Debug, Deserialize)]
struct KubeConfig {
    #[serde(default)]
    users: Option<Vec<NamedUser>>,
}

#[derive(Debug, Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Debug, Deserialize)]
struct ExecCredential {
    status: CredentialStatus,
}

#[derive(Debug, Deserialize)]
struct CredentialStatus {
    token: Option<String>,
}

impl Account {
    /// The service account that is named, else the user of the context.
    pub(super) fn resolve(kubectl: &Kubectl, service_account: Option<&str>, namespace: &str) -> anyhow::Result<Self> {
        if let Some(account) = service_account {
            let (namespace, name) = account.split_once('/').unwrap_or((namespace, account));
            return Ok(Self::ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() });
        }
        let config: KubeConfig = kubectl.json(&["config", "view", "--minify", "--raw", "-o", "json"])?;
        let user = config.users.and_then(|users| users.into_iter().next());
        match user {
            Some(NamedUser { user, .. }) if user.has_token() => Ok(Self::User(user)),
            user => Err(without_token(kubectl, user.map(|user| user.name)).into()),
        }
    }
}

fn without_token(kubectl: &Kubectl, user: Option<String>) -> Failure {
    let who = user.map_or_else(|| "it has no user".to_owned(), |name| format!("its user {} has none", Escaped(&name)));
    Failure::refused(format!("the aggregator requires a token, and {} gives none: {who}", kubectl.context())).hint(
        "--service-account NAMESPACE/NAME requests one of a service account that may read nodes, such as
  kubectl -n tezos create serviceaccount reader
  kubectl -n tezos create rolebinding reader --clusterrole chainscope-viewer --serviceaccount tezos:reader",
    )
}

impl User {
    fn has_token(&self) -> bool {
        self.token.is_some() || self.token_file.is_some() || self.exec.is_some()
    }

    fn token(&self) -> anyhow::Result<String> {
        match (&self.token, &self.token_file, &self.exec) {
            (Some(token), ..) => Ok(token.clone()),
            (_, Some(path), _) => fs::read_to_string(path).with_context(|| format!("cannot read {path}")),
            (_, _, Some(exec)) => exec.token(),
            (None, None, None) => Err(Failure::refused("the user of the kubeconfig has no token").into()),
        }
    }
}

impl Exec {
    /// Runs the plugin, as kubectl does.
    fn token(&self) -> anyhow::Result<String> {
        let info = json!({"kind": "ExecCredential", "apiVersion": self.api_version, "spec": {"interactive": false}});
        let variables: BTreeMap<_, _> =
            self.env.iter().flatten().map(|variable| (&variable.name, &variable.value)).collect();
        let output = Command::new(&self.command)
            .args(self.args.iter().flatten())
            .envs(variables)
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .output()
            .with_context(|| format!("cannot start {}, which the kubeconfig names for credentials", self.command))?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}: {}", self.command, output.status, Escaped(error.trim()));
        let credential: ExecCredential = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{} did not print an ExecCredential", self.command))?;
        let failure = || Failure::refused(format!("{} gives a certificate, not a token", self.command));
        Ok(credential
            .status
            .token
            .ok_or_else(|| failure().hint("--service-account NAMESPACE/NAME requests a token"))?)
    }
}

/// The token of an account, which is requested once and again when it was rejected.
pub(crate) struct ClusterToken {
    kubectl: Kubectl,
    account: Account,
    current: Mutex<Option<String>>,
}

impl ClusterToken {
    pub(super) fn new(kubectl: Kubectl, account: Account) -> Self {
        Self { kubectl, account, current: Mutex::new(None) }
    }

    /// The current token.
    pub(crate) fn get(&self) -> anyhow::Result<String> {
        let mut current = self.current.lock();
        if let Some(token) = &*current {
            return Ok(token.clone());
        }
        let token = match &self.account {
            Account::ServiceAccount { namespace, name } => {
                self.kubectl.text(&["create", "token", name, "--namespace", namespace])?
            }
            Account::User(user) => user.token()?,
        };
        let token = token.trim().to_owned();
        *current = Some(token.clone());
        Ok(token)
    }

    /// Makes the next call of [`ClusterToken::get`] request a new token; returns whether there was one.
    pub(crate) fn expire(&self) -> bool {
        self.current.lock().take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::{Exec, KubeConfig, User};

    fn exec(script: &str) -> anyhow::Result<String> {
        let args = Some(vec!["-c".to_owned(), script.to_owned()]);
        Exec { api_version: "client.authentication.k8s.io/v1".into(), command: "sh".into(), args, env: None }.token()
    }

    #[test]
    fn a_plugin_for_credentials_gives_a_token() {
        let token = exec(r#"echo '{"kind":"ExecCredential","status":{"token":"from-plugin"}}'"#).unwrap();
        assert_eq!(token, "from-plugin");
        let info = r#"case $KUBERNETES_EXEC_INFO in *client.authentication.k8s.io/v1*) echo '{"status":{"token":"x"}}';; esac"#;
        assert_eq!(exec(info).unwrap(), "x");
        assert!(exec("echo gone >&2; exit 3").unwrap_err().to_string().ends_with("exit status: 3: gone"));
        assert!(
            exec(r#"echo '{"status":{"clientCertificateData":"x"}}'"#).unwrap_err().to_string().contains("certificate")
        );
    }

    #[test]
    fn users_of_a_kubeconfig_are_read() {
        let user = |text: &str| -> User {
            let config: KubeConfig =
                serde_json::from_str(&format!(r#"{{"users":[{{"name":"u","user":{text}}}]}}"#)).unwrap();
            config.users.unwrap().remove(0).user
        };
        assert_eq!(user(r#"{"token":"5ecret"}"#).token().unwrap(), "5ecret");
        assert!(!user(r#"{"client-certificate-data":"x"}"#).has_token());
        assert!(user(r#"{"tokenFile":"/nowhere"}"#).token().is_err());
        assert!(serde_json::from_str::<KubeConfig>(r#"{"users":null}"#).unwrap().users.is_none());
    }
}
