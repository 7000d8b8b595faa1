//! The images of a cluster with Chainscope: its three programs, curl for `helm test`, and a simulated Octez node.
//!
//! With `CHAINSCOPE_IMAGES`, the directory of `make images`, those of Chainscope are the release images there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use chainscope_images::{Component, Entry, Image, NONROOT, Release, passwd, program};

/// Registry of images that no registry has.
pub const REGISTRY: &str = "localhost";
/// The simulated Octez node.
pub const OCTEZ: &str = "localhost/chainscope/octez:1";
/// A node that executes code of damaged ELF files.
pub const HOSTILE: &str = "localhost/chainscope/hostile:1";
/// The image of the chart's tests, with this machine's curl.
const CURL: &str = "docker.io/curlimages/curl:8.16.0";
/// The applets of busybox that scripts of charts call.
const TOOLS: &[&str] = &[
    "cat", "chmod", "chown", "cp", "echo", "false", "grep", "head", "id", "kill", "killall", "ln", "ls", "mkdir", "mv",
    "nc", "nslookup", "pidof", "ps", "readlink", "rm", "sed", "seq", "sh", "sleep", "stat", "tail", "test", "touch",
    "true", "wget",
];

/// An image like that of Octez: a shell with its tools, the demo node as `octez-node`, and recorded conversations.
///
/// # Errors
/// If the demo node is not built, or there is no static busybox.
pub fn octez(built: &Path, vectors: &Path) -> Result<Image> {
    let mut files = program("usr/local/bin/octez-node", &built.join("chainscope-demo-node"))?;
    files.extend(shell()?);
    for folder in ["carthagenet-2020", "synthetic-two-way"] {
        let from = vectors.join(folder);
        for file in std::fs::read_dir(&from).with_context(|| format!("cannot read {}", from.display()))? {
            let file = file?;
            let name = file.file_name().into_string().ok().context("a file name is not UTF-8")?;
            files.push(Entry::file(&format!("vectors/{folder}/{name}"), file.path()));
        }
    }
    files.push(Entry::Text { path: "etc/passwd".to_owned(), text: passwd() });
    files.push(Entry::Scratch { path: "tmp".to_owned() });
    Ok(image(OCTEZ, "/bin/sh", "0:0", files))
}

/// A fake node with tracepoints under the name of its program, without anything else.
///
/// # Errors
/// If its libraries cannot be found.
pub fn traced_node(built: &Path, name: &str) -> Result<Image> {
    let path = format!("usr/local/bin/{name}");
    Ok(image(&traced_reference(name), &format!("/{path}"), "0:0", program(&path, built)?))
}

/// The reference of the image of [`traced_node`].
#[must_use]
pub fn traced_reference(name: &str) -> String {
    format!("localhost/chainscope/{name}:1")
}

/// The program [`hostile_code`](chainscope_testing::program::hostile_code) as `octez-node`, and a place for its files. It is linked statically.
#[must_use]
pub fn hostile_node(built: &Path) -> Image {
    let files = vec![Entry::file("usr/local/bin/octez-node", built), Entry::Scratch { path: "tmp".to_owned() }];
    image(HOSTILE, "/usr/local/bin/octez-node", "0:0", files)
}

/// curl and a shell.
fn curl() -> Result<Image> {
    let curl = Path::new("/usr/bin/curl");
    ensure!(curl.is_file(), "no /usr/bin/curl: scripts/setup-cluster installs it");
    let mut files = program("usr/bin/curl", curl)?;
    files.extend(shell()?);
    Ok(image(CURL, "/usr/bin/curl", NONROOT, files))
}

/// A shell and the tools that scripts call.
fn shell() -> Result<Vec<Entry>> {
    let busybox = Path::new("/bin/busybox");
    ensure!(busybox.is_file(), "no /bin/busybox: scripts/setup-cluster installs it");
    let links = TOOLS.iter().map(|tool| Entry::Link { path: format!("bin/{tool}"), to: "busybox".to_owned() });
    Ok([Entry::file("bin/busybox", busybox)].into_iter().chain(links).collect())
}

/// An image of the tests, without labels.
pub(crate) fn image(name: &str, entry: &str, user: &str, files: Vec<Entry>) -> Image {
    let (name, user, entry) = (name.to_owned(), user.to_owned(), vec![entry.to_owned()]);
    Image { name, entry, user, labels: BTreeMap::new(), created: None, files }
}

/// Writes the images of other builds of the three programs, with this tag, and returns the archives; `built` is their directory.
///
/// # Errors
/// If a binary is not there or an archive cannot be written.
pub fn write_tagged(built: &Path, folder: &Path, tag: &str) -> Result<Vec<PathBuf>> {
    let release = Release { registry: REGISTRY.to_owned(), revision: None, created: None, sbom: None };
    let write = |component: Component| {
        let mut image = release.image(component, built)?;
        image.name = format!("{REGISTRY}/{}:{tag}", component.program());
        let archive = folder.join(format!("{}-{tag}.tar", component.archive()));
        image.write(&archive)?;
        Ok(archive)
    };
    [Component::Agent, Component::Operator, Component::Aggregator].into_iter().map(write).collect()
}

/// Writes the images as `<folder>/<name>.tar` and returns the archives; `built` is the directory of the binaries.
///
/// # Errors
/// If a binary is not built or an archive cannot be written.
pub fn write_all(built: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/tezos");
    let mut images = vec![("octez", octez(built, &vectors)?), ("curl", curl()?)];
    let mut archives = Vec::new();
    let released = std::env::var_os("CHAINSCOPE_IMAGES").map(PathBuf::from);
    let release = Release { registry: REGISTRY.to_owned(), revision: None, created: None, sbom: None };
    for component in [Component::Agent, Component::Operator, Component::Aggregator] {
        let name = component.archive();
        match &released {
            Some(folder) => {
                let archive = folder.join(format!("{name}.tar"));
                ensure!(archive.is_file(), "CHAINSCOPE_IMAGES: no {}: run `make images`", archive.display());
                archives.push(archive);
            }
            None => images.push((name, release.image(component, built)?)),
        }
    }
    for (name, image) in images {
        let archive = folder.join(format!("{name}.tar"));
        image.write(&archive)?;
        archives.push(archive);
    }
    Ok(archives)
}
