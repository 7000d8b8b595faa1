//! Writes the images of Chainscope as OCI archives: `make images`.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use chainscope_images::{Component, Release};
use clap::Parser;

/// Writes the images of Chainscope as OCI archives, with their SBOMs
#[derive(Parser)]
#[command(name = "chainscope-images", version)]
struct Cli {
    /// Directory of the programs, built in release mode
    #[arg(long)]
    built: PathBuf,
    /// Output directory
    #[arg(long)]
    out: PathBuf,
    /// Registry in the names of the images
    #[arg(long, default_value = "localhost")]
    registry: String,
    /// Directory of the SBOMs, <PROGRAM>.cdx.json each
    #[arg(long)]
    sbom: Option<PathBuf>,
    /// Commit that the programs are built from
    #[arg(long)]
    revision: Option<String>,
    /// Time of this commit, RFC 3339
    #[arg(long)]
    created: Option<String>,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chainscope-images: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let Cli { built, out, registry, sbom, revision, created } = cli;
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let release = Release { registry, revision, created, sbom };
    for component in Component::ALL {
        let image = release.image(component, &built)?;
        let archive = out.join(format!("{}.tar", component.archive()));
        image.write(&archive)?;
        if let Some(folder) = &release.sbom {
            let from = folder.join(format!("{}.cdx.json", component.program()));
            let to = out.join(format!("{}.cdx.json", component.archive()));
            std::fs::copy(&from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
        // A closed pipe is not an error.
        let _ = writeln!(std::io::stdout(), "{}  {}", archive.display(), image.name);
    }
    Ok(())
}
