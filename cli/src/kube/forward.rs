//! `kubectl port-forward` as a child process.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::Child,
    thread,
};

use anyhow::Context as _;
use chainscope_hygiene::Escaped;
use parking_lot::Mutex;

use super::kubectl::Kubectl;
use crate::{failure::Failure, terminal};

/// A forwarded port of a Service. It is forwarded again, at the same local port, if it ends, as it does with the pod.
pub(crate) struct PortForward {
    kubectl: Kubectl,
    namespace: String,
    service: String,
    port: u16,
    local_port: u16,
    child: Mutex<Child>,
}

impl PortForward {
    /// Forwards a free port of this machine, and waits until connections are accepted.
    pub(super) fn start(kubectl: Kubectl, namespace: &str, service: &str, port: u16) -> anyhow::Result<Self> {
        let (child, local_port) = forward(&kubectl, namespace, service, &format!(":{port}"))?;
        let child = Mutex::new(child);
        Ok(Self { kubectl, namespace: namespace.to_owned(), service: service.to_owned(), port, local_port, child })
    }

    pub(super) fn local_port(&self) -> u16 {
        self.local_port
    }

    /// Forwards the port again if it is not forwarded any more.
    pub(crate) fn ensure_running(&self) -> anyhow::Result<()> {
        let mut child = self.child.lock();
        if child.try_wait()?.is_some() {
            let ports = format!("{}:{}", self.local_port, self.port);
            (*child, _) = forward(&self.kubectl, &self.namespace, &self.service, &ports)?;
        }
        Ok(())
    }
}

impl Drop for PortForward {
    fn drop(&mut self) {
        let mut child = self.child.lock();
        // It may have ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Starts to forward `ports`, and returns the local one.
fn forward(kubectl: &Kubectl, namespace: &str, service: &str, ports: &str) -> anyhow::Result<(Child, u16)> {
    let service = format!("service/{service}");
    let mut child =
        kubectl.spawn(&["port-forward", "--namespace", namespace, "--address", "127.0.0.1", &service, ports])?;
    let mut lines = BufReader::new(child.stdout.take().context("kubectl has no standard output")?);
    let mut errors = child.stderr.take().context("kubectl has no standard error")?;
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let Some(port) = local_port(&line) else {
        let _ = child.kill();
        child.wait()?;
        let mut error = String::new();
        errors.take(64 << 10).read_to_string(&mut error)?;
        let failure = Failure::new(format!("kubectl port-forward: {}", Escaped(error.trim())));
        let hint =
            format!("the right to create pods/portforward in namespace {namespace} is needed, and a running pod");
        return Err(failure.hint(hint).into());
    };
    // A line for each connection, and errors of connections: a full pipe would block it.
    thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    thread::spawn(move || log(&mut errors));
    Ok((child, port))
}

fn log(errors: &mut impl Read) {
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        terminal::detail(&format!("kubectl port-forward: {}", Escaped(&line)));
    }
}

/// The local port of `Forwarding from 127.0.0.1:40123 -> 17732`.
fn local_port(line: &str) -> Option<u16> {
    let (address, _) = line.strip_prefix("Forwarding from ")?.split_once(" -> ")?;
    address.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::local_port;

    #[test]
    fn the_first_line_has_the_local_port() {
        assert_eq!(local_port("Forwarding from 127.0.0.1:40123 -> 17732\n"), Some(40123));
        assert_eq!(local_port("Forwarding from [::1]:1 -> 17732"), Some(1));
        for other in ["", "Forwarding from", "Forwarding from x -> 1", "error: unable to forward port"] {
            assert_eq!(local_port(other), None, "{other}");
        }
    }
}
