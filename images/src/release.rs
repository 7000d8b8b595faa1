//! The images of Chainscope.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{Entry, Image, program};

/// The `nonroot` user and group of distroless images.
pub const NONROOT: &str = "65532:65532";

/// A program of which there is an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The agent of a Kubernetes cluster.
    Agent,
    /// The operator of a Kubernetes cluster.
    Operator,
    /// The aggregator of a Kubernetes cluster.
    Aggregator,
    /// The command line, for one host.
    Cli,
}

impl Component {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Operator, Self::Aggregator, Self::Cli];

    /// Name of the program and of the image.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Agent => "chainscope-agent",
            Self::Operator => "chainscope-operator",
            Self::Aggregator => "chainscope-aggregator",
            Self::Cli => "chainscope",
        }
    }

    /// Name of the archive, without its extension.
    #[must_use]
    pub const fn archive(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Operator => "operator",
            Self::Aggregator => "aggregator",
            Self::Cli => "chainscope",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Agent => "Records blockchain nodes of its host with eBPF",
            Self::Operator => "Watches TezosNodes, configures agents and aggregator, and writes the status",
            Self::Aggregator => "Stores the records of agents and serves the API",
            Self::Cli => "Records and shows blockchain nodes of one host with eBPF",
        }
    }

    /// Capabilities that are added to a container are effective for root only, so those that load BPF programs run as root,
    /// without all other capabilities.
    const fn user(self) -> &'static str {
        match self {
            Self::Agent | Self::Cli => "0:0",
            Self::Operator | Self::Aggregator => NONROOT,
        }
    }
}

/// What all images of a release have in common.
#[derive(Debug, Clone)]
pub struct Release {
    /// Registry in their names.
    pub registry: String,
    /// Commit that they are built from.
    pub revision: Option<String>,
    /// Time of this commit, RFC 3339. Not the time of the build, which would make every build another image.
    pub created: Option<String>,
    /// Directory of the SBOMs, named `<program>.cdx.json`.
    pub sbom: Option<PathBuf>,
}

impl Release {
    /// The image of a component; `built` is the directory of the programs.
    ///
    /// # Errors
    /// If the program is not built.
    pub fn image(&self, component: Component, built: &Path) -> Result<Image> {
        let name = component.program();
        let path = format!("usr/local/bin/{name}");
        let mut files = program(&path, &built.join(name))?;
        files.push(Entry::Text { path: "etc/passwd".to_owned(), text: passwd() });
        files.push(Entry::Text { path: "etc/group".to_owned(), text: "root:x:0:\nnonroot:x:65532:\n".to_owned() });
        if component == Component::Cli {
            // For `chainscope demo`, and its temporary files.
            files.extend(program("usr/local/bin/chainscope-demo-node", &built.join("chainscope-demo-node"))?);
            files.push(Entry::Scratch { path: "tmp".to_owned() });
        }
        if let Some(folder) = &self.sbom {
            files.push(Entry::file("usr/share/doc/chainscope/sbom.cdx.json", folder.join(format!("{name}.cdx.json"))));
        }
        Ok(Image {
            user: component.user().to_owned(),
            name: format!("{}/{name}:{}", self.registry, env!("CARGO_PKG_VERSION")),
            entry: vec![format!("/{path}")],
            labels: self.labels(component),
            created: self.created.clone(),
            files,
        })
    }

    fn labels(&self, component: Component) -> BTreeMap<String, String> {
        let labels = [
            ("title", Some(component.program())),
            ("description", Some(component.description())),
            ("version", Some(env!("CARGO_PKG_VERSION"))),
            ("licenses", Some(env!("CARGO_PKG_LICENSE"))),
            ("source", Some(env!("CARGO_PKG_REPOSITORY"))),
            ("revision", self.revision.as_deref()),
            ("created", self.created.as_deref()),
        ];
        let labels = labels.into_iter().filter_map(|(key, value)| Some((key, value?)));
        labels.map(|(key, value)| (format!("org.opencontainers.image.{key}"), value.to_owned())).collect()
    }
}

/// `/etc/passwd` with root and `nonroot`.
#[must_use]
pub fn passwd() -> String {
    "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n".to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use serde_json::Value;
    use tar::Archive;

    use super::*;

    fn release(sbom: &Path) -> Release {
        Release {
            registry: "registry.example.org/team".to_owned(),
            revision: Some("0123abc".to_owned()),
            created: Some("2026-01-02T03:04:05Z".to_owned()),
            sbom: Some(sbom.to_owned()),
        }
    }

    /// The image of the operator, with another program in its place.
    fn archive(folder: &Path) -> PathBuf {
        std::fs::copy("/bin/true", folder.join("chainscope-operator")).unwrap();
        std::fs::write(folder.join("chainscope-operator.cdx.json"), "{}").unwrap();
        let archive = folder.join("operator.tar");
        release(folder).image(Component::Operator, folder).unwrap().write(&archive).unwrap();
        archive
    }

    fn unpack(archive: &Path, folder: &Path) -> PathBuf {
        let unpacked = folder.join("unpacked");
        Archive::new(std::fs::File::open(archive).unwrap()).unpack(&unpacked).unwrap();
        unpacked
    }

    fn json(path: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn blob(unpacked: &Path, descriptor: &Value) -> PathBuf {
        unpacked.join("blobs").join(descriptor["digest"].as_str().unwrap().replace(':', "/"))
    }

    #[test]
    fn an_archive_has_digests_labels_and_a_user_without_a_shell() {
        let folder = tempfile::tempdir().unwrap();
        let unpacked = unpack(&archive(folder.path()), folder.path());
        // Independent of this crate's digests.
        for file in std::fs::read_dir(unpacked.join("blobs/sha256")).unwrap() {
            let path = file.unwrap().path();
            let output = Command::new("sha256sum").arg(&path).output().unwrap();
            let sum = String::from_utf8(output.stdout).unwrap();
            assert_eq!(sum.split(' ').next(), path.file_name().unwrap().to_str());
        }
        let manifest = json(&blob(&unpacked, &json(&unpacked.join("index.json"))["manifests"][0]));
        let config = json(&blob(&unpacked, &manifest["config"]));
        assert_eq!(config["config"]["User"], NONROOT);
        assert_eq!(config["created"], "2026-01-02T03:04:05Z");
        let labels = &config["config"]["Labels"];
        assert_eq!(labels["org.opencontainers.image.revision"], "0123abc");
        assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0 OR MIT");
        assert_eq!(*labels, manifest["annotations"]);
        let layer = blob(&unpacked, &manifest["layers"][0]);
        let mut layer = Archive::new(std::fs::File::open(layer).unwrap());
        let names: BTreeSet<String> =
            layer.entries().unwrap().map(|one| one.unwrap().path().unwrap().to_str().unwrap().to_owned()).collect();
        for wanted in ["usr/local/bin/chainscope-operator", "usr/share/doc/chainscope/sbom.cdx.json", "etc/passwd"] {
            assert!(names.contains(wanted), "{wanted} is missing: {names:?}");
        }
        assert!(names.iter().any(|name| name.ends_with("libc.so.6")), "{names:?}");
        let is_shell = |name: &&String| {
            ["sh", "bash", "dash", "busybox"].iter().any(|shell| name.ends_with(&format!("bin/{shell}")))
        };
        assert_eq!(names.iter().find(is_shell), None);
    }

    #[test]
    fn docker_reads_the_archive_too() {
        let folder = tempfile::tempdir().unwrap();
        let unpacked = unpack(&archive(folder.path()), folder.path());
        let docker = json(&unpacked.join("manifest.json"));
        let expected = format!("registry.example.org/team/chainscope-operator:{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(docker[0]["RepoTags"][0], expected);
        for path in [&docker[0]["Config"], &docker[0]["Layers"][0]] {
            assert!(unpacked.join(path.as_str().unwrap()).is_file(), "{path}");
        }
    }

    #[test]
    fn two_builds_are_the_same() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, two] = folders.each_ref().map(|folder| std::fs::read(archive(folder.path())).unwrap());
        assert!(one == two, "the archives differ");
    }

    #[test]
    fn the_command_line_comes_with_the_demo_node() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["chainscope", "chainscope-demo-node"] {
            std::fs::copy("/bin/true", folder.path().join(name)).unwrap();
        }
        let release = Release { sbom: None, ..release(folder.path()) };
        let image = release.image(Component::Cli, folder.path()).unwrap();
        assert_eq!((&*image.user, &*image.entry[0]), ("0:0", "/usr/local/bin/chainscope"));
        assert!(image.files.contains(&Entry::Scratch { path: "tmp".to_owned() }));
        let demo_node = Entry::file("usr/local/bin/chainscope-demo-node", folder.path().join("chainscope-demo-node"));
        assert!(image.files.contains(&demo_node));
    }

    #[test]
    fn a_program_that_is_not_built_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = release(folder.path()).image(Component::Agent, folder.path()).expect_err("no program");
        assert!(format!("{error:#}").contains("chainscope-agent is not built"), "{error:#}");
    }
}
