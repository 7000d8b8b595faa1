//! Where the log files of a source are, in which order they were written, and how they are opened.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use crate::config::ContainerLogs;

/// Where the files of a source are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogLocation {
    /// A file that its writer or a tool like logrotate renames.
    File(PathBuf),
    /// The directory of a container: `RESTARTS.log`, `RESTARTS.log.TIME` and `RESTARTS.log.TIME.gz` of Kubernetes, or
    /// `ID-json.log`, `ID-json.log.AGE` and `ID-json.log.AGE.gz` of Docker.
    Container {
        dir: PathBuf,
        /// Names the container in the identity of its files.
        name: String,
        layout: Layout,
        /// Directories of container runtimes: links may lead to files below them.
        roots: Vec<PathBuf>,
    },
}

/// How a container runtime names its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layout {
    Kubernetes,
    Docker,
}

/// A file of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) path: PathBuf,
    pub(crate) is_gzip: bool,
    /// Whether it may still be written to.
    pub(crate) is_current: bool,
    /// Part of the identity of its content: of a container, which of its runs wrote it.
    pub(crate) origin: String,
}

/// What distinguishes a file from one that has its inode later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Inode {
    device: u64,
    number: u64,
    /// Nanoseconds since 1970; 0 where the file system does not say.
    created: u128,
}

impl Inode {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let created = metadata.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        Self { device: metadata.dev(), number: metadata.ino(), created: created.map_or(0, |since| since.as_nanos()) }
    }

    /// Device and number, which a file keeps when it is renamed.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        (u128::from(self.device) << 64 | u128::from(self.number)).to_le_bytes()
    }
}

impl LogLocation {
    /// A container of a pod; `name` is `NAMESPACE_NAME_UID/CONTAINER`.
    pub(crate) fn pod(dirs: &ContainerLogs, name: &str) -> Self {
        Self::container(dirs, dirs.pods.join(name), name, Layout::Kubernetes)
    }

    /// A container of Docker.
    pub(crate) fn docker(dirs: &ContainerLogs, id: &str) -> Self {
        Self::container(dirs, dirs.docker.join(id), id, Layout::Docker)
    }

    fn container(dirs: &ContainerLogs, dir: PathBuf, name: &str, layout: Layout) -> Self {
        let roots = vec![dirs.pods.clone(), dirs.links.clone(), dirs.docker.clone()];
        Self::Container { dir, name: name.to_owned(), layout, roots }
    }

    /// The file or directory, for messages.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Container { dir, .. } => dir,
        }
    }

    pub(crate) fn is_container(&self) -> bool {
        matches!(self, Self::Container { .. })
    }

    /// The files, in the order in which they were written.
    pub(crate) fn list(&self) -> io::Result<Vec<Listed>> {
        match self {
            Self::File(path) => Ok(vec![plain(path.clone(), true)]),
            Self::Container { dir, name, layout, .. } => {
                let mut found = Vec::new();
                for entry in fs::read_dir(dir)? {
                    let entry = entry?;
                    let file = entry.file_name();
                    let Some(rank) = file.to_str().and_then(|file| layout.rank(file, name)) else { continue };
                    found.push((rank, entry.path()));
                }
                found.sort();
                let last = found.len();
                let listed = (1..).zip(found).map(|(number, (rank, path))| Listed {
                    path,
                    is_gzip: rank.is_gzip,
                    is_current: number == last && rank.age.is_none(),
                    origin: format!("{name}/{}", rank.run),
                });
                Ok(listed.collect())
            }
        }
    }

    /// What a plain file was renamed to, oldest first; none for containers, which are listed as a whole.
    pub(crate) fn rotated(&self) -> io::Result<Vec<Listed>> {
        let Self::File(path) = self else { return Ok(Vec::new()) };
        let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let file = entry.file_name();
            let suffix = file.to_str().and_then(|file| file.strip_prefix(name));
            let is_number = |suffix: &str| {
                suffix.starts_with(['.', '-', '_']) && suffix.bytes().all(|byte| b".-_0123456789".contains(&byte))
            };
            // One that vanishes meanwhile is gone.
            if let (true, Ok(metadata)) = (suffix.is_some_and(is_number), entry.metadata()) {
                found.push(((metadata.mtime(), metadata.mtime_nsec()), entry.path()));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(_, path)| plain(path, false)).collect())
    }

    /// Opens a regular file for reading. That of a container is refused where a link leads out of the runtimes' directories.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        let file = match self {
            // Not blocking and without a terminal: the path may lead to a pipe or a device.
            Self::File(_) => {
                let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
                File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?
            }
            Self::Container { roots, .. } => {
                let real = fs::canonicalize(path)?;
                let is_below = |root: &PathBuf| fs::canonicalize(root).is_ok_and(|root| real.starts_with(root));
                if !roots.iter().any(is_below) {
                    let what = format!("a link to {}, which is no directory of a container runtime", real.display());
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
                }
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                File::from(openat2(CWD, &real, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
            }
        };
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
    }
}

fn plain(path: PathBuf, is_current: bool) -> Listed {
    Listed { path, is_gzip: false, is_current, origin: String::new() }
}

/// Position of a file in the order of writing.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Number of restarts of the container.
    run: u64,
    is_newest: bool,
    /// Ascending over time; none for the file that is written to.
    age: Option<String>,
    is_gzip: bool,
}

impl Layout {
    fn rank(self, file: &str, container: &str) -> Option<Rank> {
        let (run, rest) = match self {
            Self::Kubernetes => {
                let (run, rest) = file.split_once(".log")?;
                (run.parse().ok()?, rest)
            }
            Self::Docker => (0, file.strip_prefix(container)?.strip_prefix("-json.log")?),
        };
        let (rest, is_gzip) = rest.strip_suffix(".gz").map_or((rest, false), |rest| (rest, true));
        let age = match (rest.strip_prefix('.'), self) {
            (None, _) if rest.is_empty() && !is_gzip => None,
            // 20261123-080000; while it is compressed the kubelet writes to TIME.tmp.
            (Some(time), Self::Kubernetes) if time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => {
                Some(time.to_owned())
            }
            // The greatest number is the oldest.
            (Some(number), Self::Docker) => Some(format!("{:020}", u64::MAX - number.parse::<u64>().ok()?)),
            _ => return None,
        };
        Some(Rank { run, is_newest: age.is_none(), age, is_gzip })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(location: &LogLocation, files: &[&str]) -> Vec<String> {
        fs::create_dir_all(location.path()).unwrap();
        for file in files {
            fs::write(location.path().join(file), "").unwrap();
        }
        let name = |listed: Listed| {
            let name = listed.path.file_name().unwrap().to_string_lossy().into_owned();
            format!(
                "{name}{}{}",
                if listed.is_gzip { " gzip" } else { "" },
                if listed.is_current { " current" } else { "" }
            )
        };
        location.list().unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn files_are_listed_in_the_order_of_writing() {
        let dir = tempfile::tempdir().unwrap();
        let dirs =
            ContainerLogs { pods: dir.path().join("pods"), docker: dir.path().join("docker"), links: "/none".into() };
        let pod = LogLocation::pod(&dirs, "default_octez_1/node");
        let files =
            ["10.log", "9.log", "9.log.20260102-000000", "9.log.20260101-000000.gz", "9.log.20260102-000000.tmp", "x"];
        let expected = ["9.log.20260101-000000.gz gzip", "9.log.20260102-000000", "9.log", "10.log current"];
        assert_eq!(listed(&pod, &files), expected);
        let docker = LogLocation::docker(&dirs, "abc");
        let files = ["abc-json.log", "abc-json.log.1", "abc-json.log.10.gz", "abc-json.log.9", "config.v2.json"];
        let expected = ["abc-json.log.10.gz gzip", "abc-json.log.9", "abc-json.log.1", "abc-json.log current"];
        assert_eq!(listed(&docker, &files), expected);
    }

    #[test]
    fn links_lead_to_directories_of_runtimes_only() {
        let dir = tempfile::tempdir().unwrap();
        let dirs =
            ContainerLogs { pods: dir.path().join("pods"), docker: dir.path().join("docker"), links: "/none".into() };
        let pod = LogLocation::pod(&dirs, "a_b_c/node");
        fs::create_dir_all(pod.path()).unwrap();
        fs::create_dir_all(dirs.docker.join("id")).unwrap();
        fs::write(dirs.docker.join("id/id-json.log"), "inside").unwrap();
        fs::write(dir.path().join("secret"), "outside").unwrap();
        let link = |to: PathBuf, name: &str| {
            let path = pod.path().join(name);
            std::os::unix::fs::symlink(to, &path).unwrap();
            pod.open(&path).map(|file| io::read_to_string(file).unwrap()).map_err(|error| error.kind())
        };
        assert_eq!(link(dirs.docker.join("id/id-json.log"), "0.log"), Ok("inside".to_owned()));
        assert_eq!(link(dir.path().join("secret"), "1.log"), Err(io::ErrorKind::PermissionDenied));
        assert_eq!(link("../../../secret".into(), "2.log"), Err(io::ErrorKind::PermissionDenied));
        assert_eq!(link(dirs.docker.join("id"), "3.log"), Err(io::ErrorKind::InvalidInput));
        assert_eq!(link("nowhere".into(), "4.log"), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn pipes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let error = LogLocation::File(path.clone()).open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
