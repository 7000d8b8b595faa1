//! A program with its shared libraries, and the packages that these come from.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::Entry;

/// A program and its shared libraries, at the paths of the dynamic linker. On Debian also, as in distroless images, what the
/// scanners of images read: `/etc/os-release` and the packages of the libraries in `/var/lib/dpkg/status.d`, with their licences.
///
/// # Errors
/// If the program or a library is missing, or `ldd` or `dpkg-query` fail.
pub fn program(path: &str, from: &Path) -> Result<Vec<Entry>> {
    ensure!(from.is_file(), "{} is not built", from.display());
    let libraries = libraries(from)?;
    let mut files = vec![Entry::file(path, from)];
    for library in &libraries {
        files.push(Entry::file(library, Path::new("/").join(library)));
    }
    for package in packages(&libraries)? {
        files.push(Entry::Text { path: format!("var/lib/dpkg/status.d/{}", package.name), text: package.status });
        let licence = format!("usr/share/doc/{}/copyright", package.name);
        let from = Path::new("/").join(&licence);
        if from.is_file() {
            files.push(Entry::file(&licence, from));
        }
    }
    if Path::new("/etc/os-release").is_file() {
        files.push(Entry::file("etc/os-release", "/etc/os-release"));
    }
    Ok(files)
}

/// Paths of the shared libraries, without the leading slash.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "ldd {}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        // "libc.so.6 => /lib/libc.so.6 (0x…)", "/lib64/ld-linux-x86-64.so.2 (0x…)", "linux-vdso.so.1 (0x…)".
        let library = line.split_once("=> ").map_or(line, |(_, library)| library);
        ensure!(library != "not found", "{}: {line}", program.display());
        if let Some(library) = library.split(' ').next().and_then(|path| path.strip_prefix('/')) {
            found.push(library.to_owned());
        }
    }
    Ok(found)
}

struct Package {
    name: String,
    status: String,
}

/// The Debian packages of the libraries; none on a system without `dpkg-query`.
fn packages(libraries: &[String]) -> Result<Vec<Package>> {
    let mut owners = BTreeSet::new();
    for library in libraries {
        owners.extend(owner(Path::new(library))?);
    }
    owners.iter().map(|owner| package(owner)).collect()
}

/// An installed package, by a name such as "libc6:amd64".
fn package(owner: &str) -> Result<Package> {
    let output = Command::new("dpkg-query").args(["--status", owner]).output().context("cannot run dpkg-query")?;
    ensure!(output.status.success(), "dpkg-query: {}", String::from_utf8_lossy(&output.stderr));
    let status = String::from_utf8(output.stdout).context("the status of a package is not UTF-8")?;
    Ok(Package { name: owner.split(':').next().unwrap_or_default().to_owned(), status })
}

/// The package that has a library. Packages name it below `/lib` or `/usr/lib`, which are the same directory.
fn owner(library: &Path) -> Result<Option<String>> {
    let resolved = std::fs::canonicalize(Path::new("/").join(library))?;
    let merged = resolved.strip_prefix("/usr").map(|path| Path::new("/").join(path));
    let candidates = [Some(Path::new("/").join(library)), merged.ok(), Some(resolved)];
    for path in candidates.into_iter().flatten() {
        if let Some(owner) = query(&path)? {
            return Ok(Some(owner));
        }
    }
    Ok(None)
}

fn query(path: &PathBuf) -> Result<Option<String>> {
    let output = match Command::new("dpkg-query").arg("--search").arg(path).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("cannot run dpkg-query"),
    };
    // "libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6"; status 1 if no package has the file.
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().find_map(|line| line.split_once(": ")).map(|(owner, _)| owner.to_owned()))
}
