//! A Kubernetes cluster on this machine, and the images for it: `make cluster`, `make images`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;

use anyhow::{Context as _, Result, ensure};
use chainscope_e2e::cluster::{Level, Setup};
use chainscope_e2e::image::ours;
use clap::{Parser, Subcommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A Kubernetes cluster from plain programs, without a container engine or a registry.
#[derive(Parser)]
#[command(name = "chainscope-cluster", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Write the images of Chainscope, and of a pretended Octez, as OCI archives
    Images {
        /// Folder to write to
        #[arg(long)]
        out: PathBuf,
    },
    /// Start a cluster, install the chart, and keep both until Ctrl-C
    Up {
        /// Hosts that run pods
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
        hosts: u8,
        /// Leave the cluster empty, without the images
        #[arg(long)]
        bare: bool,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chainscope-cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: What) -> Result<()> {
    let program = std::env::current_exe().context("where is this program?")?;
    let built = program.parent().context("a program is in a folder")?;
    match what {
        What::Images { out } => {
            for archive in ours::write_all(built, &out)? {
                say(&archive.display().to_string());
            }
            Ok(())
        }
        What::Up { hosts, bare } => up(built, hosts, bare),
    }
}

fn up(built: &std::path::Path, hosts: u8, bare: bool) -> Result<()> {
    // Before anything is started: Ctrl-C while it starts must not leave half a cluster.
    let (sender, signals) = mpsc::channel();
    let mut caught = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        caught.forever().for_each(|signal| {
            let _ = sender.send(signal);
        });
    });

    let folder = tempfile::tempdir().context("a folder for images")?;
    let images = if bare { Vec::new() } else { ours::write_all(built, folder.path())? };
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
            "{kubectl} apply -f e2e/manifests/octez.yaml   # pods like those of tezos-k8s, of {}",
            ours::OCTEZ
        ));
    }
    say("Ctrl-C ends the cluster");
    let _ = signals.recv();
    say("ending the cluster");
    drop(cluster);
    Ok(())
}

fn say(line: &str) {
    use std::io::Write;
    // Whoever closed the other end does not want to know.
    let _ = writeln!(std::io::stdout(), "{line}");
}
