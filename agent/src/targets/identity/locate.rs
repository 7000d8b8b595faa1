//! Where a node's `identity.json` may be: from its command line, its environment and the usual directories. Pure.

use std::path::{Component, Path, PathBuf};

/// Hints of a process about its data directory; paths are in the process's own root.
#[derive(Debug, Clone, Default)]
pub(crate) struct PathHints {
    /// Arguments, the program's name first.
    pub(crate) arguments: Vec<String>,
    /// Current directory, as the process sees it.
    pub(crate) cwd: Option<PathBuf>,
    /// `TEZOS_NODE_DIR` of its environment.
    pub(crate) node_dir: Option<PathBuf>,
    /// `HOME` of its environment.
    pub(crate) home: Option<PathBuf>,
}

/// Directories where images and packages put the node's data.
const USUAL: [&str; 5] = [
    "/var/tezos/node/data",
    "/var/run/tezos/node/data",
    "/home/tezos/.tezos-node",
    "/root/.tezos-node",
    "/var/lib/tezos/.tezos-node",
];

/// Command-line arguments that locate the identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CliArgs {
    /// TezEdge's `--identity-file`.
    pub(crate) file: Option<PathBuf>,
    /// `--data-dir`, `-d`, TezEdge's `--tezos-data-dir`.
    pub(crate) data_dir: Option<PathBuf>,
    /// `--config-file`: its `data-dir` names the directory.
    pub(crate) config: Option<PathBuf>,
}

impl PathHints {
    /// The arguments, as absolute paths.
    pub(crate) fn cli_args(&self) -> CliArgs {
        let mut args = CliArgs::default();
        let mut arguments = self.arguments.iter();
        while let Some(argument) = arguments.next() {
            let (name, joined) = match argument.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (argument.as_str(), None),
            };
            let location = match name {
                "--identity-file" => &mut args.file,
                "--data-dir" | "-d" | "--tezos-data-dir" => &mut args.data_dir,
                "--config-file" => &mut args.config,
                _ => continue,
            };
            *location = joined.or_else(|| arguments.next().cloned()).map(|path| self.absolute(Path::new(&path)));
        }
        args
    }

    /// Paths in the order in which they are tried. `configured` is the directory from the node's own configuration
    /// file, if that could be read.
    pub(crate) fn candidates(&self, configured: Option<&Path>) -> Vec<PathBuf> {
        let args = self.cli_args();
        let folders = [args.data_dir.as_deref(), configured, self.node_dir.as_deref()];
        let mut paths: Vec<PathBuf> = args.file.into_iter().collect();
        paths.extend(folders.into_iter().flatten().map(|folder| self.absolute(folder).join("identity.json")));
        let home = self.home.as_deref().map(|home| home.join(".tezos-node/identity.json"));
        paths.extend(home.filter(|path| path.is_absolute()));
        paths.extend(USUAL.iter().map(|folder| Path::new(folder).join("identity.json")));
        let mut seen = Vec::new();
        paths.retain(|path| {
            let is_new = !seen.contains(path);
            seen.push(path.clone());
            is_new
        });
        paths
    }

    fn absolute(&self, path: &Path) -> PathBuf {
        let base = self.cwd.as_deref().unwrap_or(Path::new("/"));
        base.join(path).components().filter(|part| *part != Component::CurDir).collect()
    }
}

/// The `data-dir` of an Octez `config.json`.
pub(crate) fn data_dir_of_config(json: &[u8]) -> Option<PathBuf> {
    let config: serde_json::Value = serde_json::from_slice(json).ok()?;
    Some(PathBuf::from(config.get("data-dir")?.as_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(arguments: &[&str]) -> PathHints {
        PathHints {
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            cwd: Some("/srv/node".into()),
            ..PathHints::default()
        }
    }

    fn first(arguments: &[&str]) -> PathBuf {
        hints(arguments).candidates(None).remove(0)
    }

    #[test]
    fn the_command_line_comes_first() {
        assert_eq!(first(&["octez-node", "run", "--data-dir", "/data"]), Path::new("/data/identity.json"));
        assert_eq!(first(&["octez-node", "run", "--data-dir=/data"]), Path::new("/data/identity.json"));
        assert_eq!(first(&["octez-node", "run", "-d", "./data"]), Path::new("/srv/node/data/identity.json"));
        assert_eq!(
            first(&["light-node", "--identity-file", "id/identity.json"]),
            Path::new("/srv/node/id/identity.json")
        );
        assert_eq!(first(&["light-node", "--tezos-data-dir=/t"]), Path::new("/t/identity.json"));
        assert_eq!(first(&["octez-node", "run"]), Path::new("/var/tezos/node/data/identity.json"));
        assert_eq!(first(&["octez-node", "run", "--data-dir"]), Path::new("/var/tezos/node/data/identity.json"));
    }

    #[test]
    fn configuration_environment_and_usual_directories_follow_without_duplicates() {
        let hints = PathHints {
            node_dir: Some("/from/env".into()),
            home: Some("/home/tezos".into()),
            ..hints(&["octez-node", "run", "--config-file", "/etc/tezos/config.json"])
        };
        assert_eq!(hints.cli_args().config.as_deref(), Some(Path::new("/etc/tezos/config.json")));
        let paths = hints.candidates(Some(Path::new("/var/tezos/node/data")));
        let text: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(
            text,
            [
                "/var/tezos/node/data/identity.json",
                "/from/env/identity.json",
                "/home/tezos/.tezos-node/identity.json",
                "/var/run/tezos/node/data/identity.json",
                "/root/.tezos-node/identity.json",
                "/var/lib/tezos/.tezos-node/identity.json",
            ]
        );
    }

    #[test]
    fn the_data_folder_of_a_configuration_file() {
        let json = br#"{"data-dir": "/var/tezos/node/data", "p2p": {"listen-addr": "[::]:9732"}}"#;
        assert_eq!(data_dir_of_config(json).as_deref(), Some(Path::new("/var/tezos/node/data")));
        assert_eq!(data_dir_of_config(b"{}"), None);
        assert_eq!(data_dir_of_config(b"{\"data-dir\": 7}"), None);
        assert_eq!(data_dir_of_config(b"not json"), None);
    }
}
