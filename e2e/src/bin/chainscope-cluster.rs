//! A Kubernetes cluster on this machine: `make cluster`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use chainscope_e2e::cluster::{Level, Setup};
use chainscope_e2e::image;
use clap::{Parser, Subcommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Starts a Kubernetes cluster from binaries, without a container engine or a registry
#[derive(Parser)]
#[command(name = "chainscope-cluster", version)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start a cluster, install the chart, and keep both until Ctrl-C
    Up {
        /// Number of hosts that run pods
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
        hosts: u8,
        /// Start an empty cluster without the images and the chart
        #[arg(long)]
        bare: bool,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chainscope-cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(action: Action) -> Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this binary")?;
    let built = program.parent().context("the binary has no parent directory")?;
    match action {
        Action::Up { hosts, bare } => up(built, hosts, bare),
    }
}

fn up(built: &std::path::Path, hosts: u8, bare: bool) -> Result<()> {
    // Installed first, so that Ctrl-C during the start removes what has been started.
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;

    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let images = if bare { Vec::new() } else { image::write_all(built, folder.path())? };
    say("starting a cluster");
    let cluster = Setup::new(Level::Hosts(hosts)).images(images).start();
    if !bare {
        say("installing the chart");
        cluster.kubectl("create namespace chainscope");
        cluster.kubectl("label namespace chainscope pod-security.kubernetes.io/enforce=privileged");
        let status = cluster
            .program("helm")
            .args([
                "install",
                "chainscope",
                "charts/chainscope",
                "--namespace",
                "chainscope",
                "--wait",
                "--timeout",
                "3m",
                "--set",
                &format!("image.registry={}", image::REGISTRY),
            ])
            .status()
            .context("cannot run helm")?;
        ensure!(status.success(), "helm install: {status}");
    }
    let kubectl = cluster.program("kubectl").get_program().to_string_lossy().into_owned();
    say(&format!("export KUBECONFIG={}", cluster.kubeconfig().display()));
    say(&format!("{kubectl} get pods --all-namespaces"));
    if !bare {
        say(&format!(
            "{kubectl} apply -f e2e/manifests/octez.yaml   # pods as tezos-k8s creates them, image {}",
            image::OCTEZ
        ));
    }
    say("Ctrl-C stops the cluster");
    signals.forever().next();
    say("stopping the cluster");
    drop(cluster);
    Ok(())
}

fn say(line: &str) {
    use std::io::Write;
    // A closed pipe is not an error.
    let _ = writeln!(std::io::stdout(), "{line}");
}
