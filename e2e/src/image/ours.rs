//! The images of a cluster with Chainscope: its three programs, curl for `helm test`, and a simulated Octez node.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{Entry, Image, program};

/// The chart's default registry.
const REGISTRY: &str = "ghcr.io/chainscope";
/// The simulated Octez node.
pub const OCTEZ: &str = "localhost/chainscope/octez:1";
/// The image of the chart's tests, with this machine's curl.
const CURL: &str = "docker.io/curlimages/curl:8.16.0";
/// The `nonroot` user and group of distroless images.
const NONROOT: &str = "65532:65532";
/// The applets of busybox that scripts of charts call.
const TOOLS: &[&str] = &[
    "cat", "chmod", "chown", "cp", "echo", "false", "grep", "head", "id", "kill", "killall", "ln", "ls", "mkdir", "mv",
    "nc", "nslookup", "pidof", "ps", "readlink", "rm", "sed", "seq", "sh", "sleep", "stat", "tail", "test", "touch",
    "true", "wget",
];

/// An image of Chainscope, as in the chart. The agent's user is root, because capabilities that a container adds are effective for
/// root only.
///
/// # Errors
/// If it is not built.
pub fn chainscope(name: &str, built: &Path) -> Result<Image> {
    let name = format!("chainscope-{name}");
    let path = format!("usr/local/bin/{name}");
    let mut files = program(&path, &built.join(&name))?;
    files.push(Entry::Text { path: "etc/passwd".to_owned(), text: passwd() });
    files.push(Entry::Text { path: "etc/group".to_owned(), text: "root:x:0:\nnonroot:x:65532:\n".to_owned() });
    Ok(Image {
        user: if name.ends_with("agent") { "0:0".to_owned() } else { NONROOT.to_owned() },
        name: format!("{REGISTRY}/{name}:{}", env!("CARGO_PKG_VERSION")),
        entry: vec![format!("/{path}")],
        files,
    })
}

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
    Ok(Image { name: OCTEZ.to_owned(), entry: vec!["/bin/sh".to_owned()], user: "0:0".to_owned(), files })
}

/// curl and a shell.
fn curl() -> Result<Image> {
    let curl = Path::new("/usr/bin/curl");
    ensure!(curl.is_file(), "no /usr/bin/curl: scripts/setup-cluster installs it");
    let mut files = program("usr/bin/curl", curl)?;
    files.extend(shell()?);
    Ok(Image { name: CURL.to_owned(), entry: vec!["/usr/bin/curl".to_owned()], user: NONROOT.to_owned(), files })
}

/// A shell and the tools that scripts call.
fn shell() -> Result<Vec<Entry>> {
    let busybox = Path::new("/bin/busybox");
    ensure!(busybox.is_file(), "no /bin/busybox: scripts/setup-cluster installs it");
    let links = TOOLS.iter().map(|tool| Entry::Link { path: format!("bin/{tool}"), to: "busybox".to_owned() });
    Ok([Entry::file("bin/busybox", busybox)].into_iter().chain(links).collect())
}

fn passwd() -> String {
    "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n".to_owned()
}

/// Writes all images as `<folder>/<name>.tar`; `built` is the directory of the binaries.
///
/// # Errors
/// If a binary is not built or an archive cannot be written.
pub fn write_all(built: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/tezos");
    let mut images = vec![("octez", octez(built, &vectors)?), ("curl", curl()?)];
    for name in ["agent", "operator", "aggregator"] {
        images.push((name, chainscope(name, built)?));
    }
    let written = images.into_iter().map(|(name, image)| {
        let archive = folder.join(format!("{name}.tar"));
        image.write(&archive).map(|()| archive)
    });
    written.collect()
}
