//! Calls of `kubectl`.

use std::{
    ffi::OsString,
    io,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use chainscope_hygiene::Escaped;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::de::DeserializeOwned;

use crate::{failure::Failure, terminal};

/// Time that the API server may take for a request.
const REQUEST_TIMEOUT: &str = "--request-timeout=30s";

/// `kubectl` with a context of the kubeconfig.
#[derive(Debug, Clone)]
pub(super) struct Kubectl {
    context: Option<String>,
}

impl Kubectl {
    pub(super) fn new(context: Option<String>) -> Self {
        Self { context }
    }

    /// The context for messages.
    pub(super) fn context(&self) -> String {
        self.context.as_ref().map_or_else(|| "the current context".to_owned(), |name| format!("context {name}"))
    }

    fn arguments(&self, arguments: &[&str]) -> Vec<String> {
        let context = self.context.iter().map(|context| format!("--context={context}"));
        context.chain(arguments.iter().map(|argument| (*argument).to_owned())).collect()
    }

    /// Standard output of a call that succeeds.
    pub(super) fn text(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let all = [arguments, &[REQUEST_TIMEOUT]].concat();
        terminal::detail(&format!("kubectl {}", all.join(" ")));
        let output = Command::new("kubectl")
            .args(self.arguments(&all))
            // A plugin for credentials may ask for them.
            .stdin(Stdio::inherit())
            .output()
            .map_err(|error| missing(&error))?;
        if output.status.success() {
            return String::from_utf8(output.stdout).context("kubectl printed no UTF-8");
        }
        let error = String::from_utf8_lossy(&output.stderr);
        let message = format!("kubectl {}: {}", arguments.join(" "), Escaped(error.trim()));
        Err(match error.contains("(Forbidden)") {
            true => Failure::refused(message).into(),
            false => Failure::new(message)
                .hint("--context NAME selects another cluster; -v shows the calls of kubectl")
                .into(),
        })
    }

    /// Standard output of a call as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self, arguments: &[&str]) -> anyhow::Result<T> {
        let text = self.text(arguments)?;
        serde_json::from_str(&text).with_context(|| format!("kubectl {} printed other JSON", arguments.join(" ")))
    }

    /// Starts a call that ends with this process, however this process ends.
    pub(super) fn spawn(&self, arguments: &[&str]) -> anyhow::Result<Child> {
        terminal::detail(&format!("kubectl {}", arguments.join(" ")));
        Command::new(std::env::current_exe()?)
            .args(["exec-with-parent", &std::process::id().to_string(), "kubectl"])
            .args(self.arguments(arguments))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start kubectl")
    }
}

/// Becomes `command`, which the kernel ends when the process `parent` ends; returns only on an error.
pub(crate) fn exec_with_parent(parent: u32, command: &[OsString]) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != i32::try_from(parent).ok() {
        // It ended before the call above.
        return Ok(());
    }
    let (program, arguments) = command.split_first().context("no command")?;
    let error = Command::new(program).args(arguments).exec();
    Err(missing(&error).into())
}

fn missing(error: &io::Error) -> Failure {
    let failure = Failure::refused(format!("cannot start kubectl: {error}"));
    if error.kind() == io::ErrorKind::NotFound {
        return failure.hint(
            "--kube needs kubectl on the PATH; without it --api URL, --token-file and --ca-file reach any server",
        );
    }
    failure
}
