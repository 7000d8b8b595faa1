//! `chainscope run`: records the configured nodes and serves the API until SIGINT or SIGTERM.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use chainscope_agent::Finding;
use chainscope_spec::{Config, SEARCH_PATHS};
use tracing::{info, warn};

use crate::{
    args::RunArgs,
    diagnostics,
    failure::{self, Failure},
    standalone::{self, Storage},
    terminal,
};

/// The error without a configuration file: it shows the shortest one.
const NO_CONFIGURATION: &str = "\
no configuration file. The shortest one, as ./chainscope.toml or /etc/chainscope/chainscope.toml:

    [[nodes]]
    p2p_port = 9732";

/// What that configuration does.
const WITHOUT_CONFIGURATION: &str = "it records the node that listens for peers on port 9732; for that node alone, \
    `sudo chainscope run --p2p-port 9732` does the same";

/// What to do about a configuration file that cannot be read.
const OTHER_CONFIGURATION: [(ErrorKind, &str); 2] = [
    (
        ErrorKind::NotFound,
        "name an existing file with --config; without it ./chainscope.toml, ./config.toml or \
         /etc/chainscope/chainscope.toml is read",
    ),
    (ErrorKind::PermissionDenied, "run it as root, or name another file with --config"),
];

/// What to do about a data directory that cannot be written.
const OTHER_DATA_DIR: [(ErrorKind, &str); 1] =
    [(ErrorKind::PermissionDenied, "run it as root, or name another directory with --data-dir")];

pub(crate) fn run(args: RunArgs) -> anyhow::Result<()> {
    chainscope_hygiene::protect_process()?;
    if args.check {
        return check(&args);
    }
    let (source, mut config, warnings) = configuration(&args)?;
    if let Some(data_dir) = args.data_dir {
        config.data_dir = data_dir;
    }
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    start_log(&config.data_dir).map_err(|error| failure::of_file(error, &OTHER_DATA_DIR))?;
    for warning in warnings {
        warn!("{source}: {warning}");
    }
    let storage = if args.ephemeral { Storage::Memory } else { Storage::RocksDb };
    let running = standalone::start(&config, storage)?;
    if args.ephemeral {
        info!("records are kept in memory and lost when this process exits");
    }
    info!("API on http://{}, its description at /docs", standalone::reachable(running.address()));
    let ended = running.wait_for(std::future::pending::<()>());
    info!("stopping");
    let stopped = running.stop();
    ended?;
    stopped
}

/// Makes the data directory, and starts the log in it.
fn start_log(data_dir: &Path) -> anyhow::Result<()> {
    let path = data_dir.display();
    fs::create_dir_all(data_dir).with_context(|| format!("cannot make the data directory {path}"))?;
    diagnostics::start(Some(data_dir), "info").with_context(|| format!("cannot write the log in {path}"))
}

/// The configuration, its source for messages, and warnings about it.
fn configuration(args: &RunArgs) -> anyhow::Result<(String, Config, Vec<String>)> {
    if let Some(port) = args.p2p_port {
        return Ok((String::from("command line"), Config::for_port(port, args.identity.clone()), Vec::new()));
    }
    let file = read_config(args.config.as_deref())?;
    Ok((file.path.display().to_string(), file.config, file.warnings))
}

/// A configuration file and its contents.
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    /// The unparsed text.
    pub(crate) text: String,
    pub(crate) config: Config,
    warnings: Vec<String>,
}

/// The first of [`SEARCH_PATHS`] that exists.
pub(crate) fn default_config() -> Option<PathBuf> {
    SEARCH_PATHS.iter().map(PathBuf::from).find(|path| path.exists())
}

/// Reads the configuration file at `path`, or at the default path.
pub(crate) fn read_config(path: Option<&Path>) -> anyhow::Result<ConfigFile> {
    let path = match path {
        Some(path) => path.to_owned(),
        None => default_config().ok_or_else(|| Failure::new(NO_CONFIGURATION).hint(WITHOUT_CONFIGURATION))?,
    };
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))
        .map_err(|error| failure::of_file(error, &OTHER_CONFIGURATION))?;
    let (config, warnings) = Config::parse(&text).with_context(|| path.display().to_string())?;
    Ok(ConfigFile { path, text, config, warnings })
}

/// Prints the findings of the self-check; an error if a prerequisite is missing.
fn check(args: &RunArgs) -> anyhow::Result<()> {
    let config = read_config(args.config.as_deref());
    // Without a file the machine can be checked nevertheless; a file that was named must be valid.
    if args.config.is_some()
        && let Err(error) = config
    {
        return Err(error);
    }
    let findings = chainscope_agent::self_check(host_proc(config.ok().as_ref().map(|file| &file.config)));
    terminal::write(lines(&findings).as_bytes())?;
    require_prerequisites(&findings)
}

fn require_prerequisites(findings: &[Finding]) -> anyhow::Result<()> {
    let missing: Vec<&Finding> = findings.iter().filter(|finding| finding.is_obstacle()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let hint = match missing.iter().any(|finding| finding.name.starts_with("capability ")) {
        true => "run it as root, or with these capabilities",
        false => "`chainscope run --help` says which kernels and rights are needed",
    };
    Err(Failure::refused(format!("this machine lacks {} of the prerequisites above", missing.len())).hint(hint).into())
}

/// The host's proc file system, by the configuration if there is one.
fn host_proc(config: Option<&Config>) -> &Path {
    config.map_or(Path::new("/proc"), |config| config.host_proc.as_path())
}

/// The findings of the self-check, one per line.
pub(crate) fn self_check_text(config: Option<&Config>) -> String {
    lines(&chainscope_agent::self_check(host_proc(config)))
}

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{finding}\n")).collect()
}

#[cfg(test)]
mod tests {
    use chainscope_agent::Finding;

    use super::{lines, require_prerequisites};
    use crate::failure;

    #[test]
    fn only_missing_prerequisites_fail_the_check() {
        let finding = |name: &str, ok, optional| Finding { name: name.into(), ok, optional, detail: "there".into() };
        let mut findings = vec![finding("BTF", true, false), finding("tracepoint a", false, true)];
        assert_eq!(lines(&findings), "ok      BTF: there\nlimited tracepoint a: there\n");
        require_prerequisites(&findings).unwrap();
        findings.push(finding("tracepoint b", false, false));
        assert!(lines(&findings).ends_with("MISSING tracepoint b: there\n"));
        let error = require_prerequisites(&findings).unwrap_err();
        assert_eq!(error.to_string(), "this machine lacks 1 of the prerequisites above");
        assert!(failure::hint(&error).is_some_and(|hint| hint.contains("run --help")), "{error}");
        findings.push(finding("capability CAP_BPF", false, false));
        let error = require_prerequisites(&findings).unwrap_err();
        assert!(failure::hint(&error).is_some_and(|hint| hint.starts_with("run it as root")), "{error}");
    }
}
