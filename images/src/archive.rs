//! An image as an OCI archive, which `docker load` reads, too. Archives are reproducible: no timestamps of files, no owners, sorted
//! names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// A container image.
#[derive(Debug, Clone)]
pub struct Image {
    /// Name and tag, as in the spec of a pod.
    pub name: String,
    /// The entry point.
    pub entry: Vec<String>,
    /// Numeric user and group, `uid:gid`.
    pub user: String,
    /// Labels of the configuration, and annotations of the manifest.
    pub labels: BTreeMap<String, String>,
    /// When it was created, RFC 3339.
    pub created: Option<String>,
    /// Its files; parent directories are added.
    pub files: Vec<Entry>,
}

/// A file of an image. Paths have no leading slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A copy of a file of this machine.
    File {
        /// Path in the image.
        path: String,
        /// Path on this machine.
        from: PathBuf,
    },
    /// A text file.
    Text {
        /// Path in the image.
        path: String,
        /// Its content.
        text: String,
    },
    /// A symbolic link.
    Link {
        /// Path in the image.
        path: String,
        /// Its target.
        to: String,
    },
    /// An empty directory that is writable by all users.
    Scratch {
        /// Path in the image.
        path: String,
    },
}

impl Entry {
    /// A copy of the file `from`.
    #[must_use]
    pub fn file(path: &str, from: impl Into<PathBuf>) -> Self {
        Self::File { path: path.to_owned(), from: from.into() }
    }

    fn path(&self) -> &str {
        match self {
            Self::File { path, .. } | Self::Text { path, .. } | Self::Link { path, .. } | Self::Scratch { path } => {
                path
            }
        }
    }
}

impl Image {
    /// Writes the archive.
    ///
    /// # Errors
    /// If a file cannot be read or the archive cannot be written.
    pub fn write(&self, archive: &Path) -> Result<()> {
        let scratch = archive.with_extension("layer");
        let result = self.layer(&scratch).and_then(|layer| self.pack(archive, &scratch, &layer));
        let _ = std::fs::remove_file(&scratch);
        result.with_context(|| format!("image {}", self.name))
    }

    fn layer(&self, path: &Path) -> Result<Blob> {
        let mut tar = Builder::new(BufWriter::new(create(path)?));
        let mut entries: BTreeMap<&str, Option<&Entry>> = BTreeMap::new();
        for entry in &self.files {
            ensure!(!entry.path().starts_with('/'), "{} starts with a slash", entry.path());
            let mut folder = Path::new(entry.path());
            while let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                entries.entry(parent.to_str().context("a path is not text")?).or_insert(None);
                folder = parent;
            }
            entries.insert(entry.path(), Some(entry));
        }
        for (path, entry) in entries {
            match entry {
                None => append(&mut tar, path, &mut header(EntryType::Directory, 0o755, 0), &[][..])?,
                Some(Entry::Scratch { .. }) => {
                    append(&mut tar, path, &mut header(EntryType::Directory, 0o1777, 0), &[][..])?;
                }
                Some(Entry::Text { text, .. }) => {
                    append(&mut tar, path, &mut header(EntryType::Regular, 0o644, text.len() as u64), text.as_bytes())?;
                }
                Some(Entry::Link { to, .. }) => {
                    tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, to)?;
                }
                Some(Entry::File { from, .. }) => {
                    let file = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
                    let metadata = file.metadata()?;
                    ensure!(metadata.is_file(), "{} is not a file", from.display());
                    use std::os::unix::fs::PermissionsExt;
                    let mode = if metadata.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
                    append(&mut tar, path, &mut header(EntryType::Regular, mode, metadata.len()), file)?;
                }
            }
        }
        tar.into_inner()?.into_inner()?.sync_data()?;
        Blob::of_file(path)
    }

    fn pack(&self, archive: &Path, layer_file: &Path, layer: &Blob) -> Result<()> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => bail!("no image for {other}"),
        };
        let layer = layer.descriptor("application/vnd.oci.image.layer.v1.tar");
        let mut config = json!({
            "architecture": architecture, "os": "linux",
            "config": {
                "Entrypoint": self.entry, "User": self.user, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
                "Labels": self.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        });
        if let Some(created) = &self.created {
            config["created"] = json!(created);
        }
        let config = config.to_string();
        let config_blob = Blob::of(config.as_bytes());
        let layer_blob = Blob::of_file(layer_file)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": config_blob.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [layer], "annotations": self.labels,
        })
        .to_string();
        let docker = json!([{"Config": config_blob.path(), "RepoTags": [self.name], "Layers": [layer_blob.path()]}]);
        let docker = docker.to_string();
        let mut descriptor = Blob::of(manifest.as_bytes()).descriptor(MANIFEST);
        let tag = self.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        descriptor["annotations"] =
            json!({"io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": tag});
        let index = json!({"schemaVersion": 2, "manifests": [descriptor]}).to_string();

        let mut tar = Builder::new(BufWriter::new(create(archive)?));
        let layout = r#"{"imageLayoutVersion":"1.0.0"}"#;
        for (path, text) in [("oci-layout", layout), ("index.json", &index), ("manifest.json", &docker)] {
            append(&mut tar, path, &mut header(EntryType::Regular, 0o644, text.len() as u64), text.as_bytes())?;
        }
        for text in [&config, &manifest] {
            let blob = Blob::of(text.as_bytes());
            append(&mut tar, &blob.path(), &mut header(EntryType::Regular, 0o644, blob.size), text.as_bytes())?;
        }
        let layer_file = File::open(layer_file)?;
        append(&mut tar, &layer_blob.path(), &mut header(EntryType::Regular, 0o644, layer_blob.size), layer_file)?;
        tar.into_inner()?.flush()?;
        Ok(())
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A blob, identified by its SHA-256 digest.
struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn of(bytes: &[u8]) -> Self {
        Self { digest: hex::encode(Sha256::digest(bytes)), size: bytes.len() as u64 }
    }

    fn of_file(path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        let (mut digest, mut size, mut piece) = (Sha256::new(), 0, vec![0; 1 << 20]);
        loop {
            let length = file.read(&mut piece)?;
            if length == 0 {
                return Ok(Self { digest: hex::encode(digest.finalize()), size });
            }
            digest.update(piece.get(..length).unwrap_or_default());
            size += length as u64;
        }
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }

    fn descriptor(&self, kind: &str) -> Value {
        json!({"mediaType": kind, "digest": format!("sha256:{}", self.digest), "size": self.size})
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header
}

fn append(tar: &mut Builder<impl Write>, path: &str, header: &mut Header, content: impl Read) -> Result<()> {
    tar.append_data(header, path, content).with_context(|| path.to_owned())
}
