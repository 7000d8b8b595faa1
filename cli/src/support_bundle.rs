//! `chainscope support-bundle`: an archive for troubleshooting, without secrets.
//!
//! The configuration contains paths of identities, never their contents; records and messages are left out.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use anyhow::Context as _;
use chainscope_hygiene::Escaped;
use flate2::{Compression, write::GzEncoder};
use tar::{Builder, Header};

use crate::{api::Api, args::SupportBundleArgs, diagnostics, failure, progress::Progress, run, standalone, terminal};

/// Paths of the API to request, and the names of their responses in the archive.
const RESPONSES: [(&str, &str); 5] = [
    ("/v2/version", "version.json"),
    ("/nodes", "nodes.json"),
    ("/v2/stats", "stats.json"),
    ("/metrics", "metrics.txt"),
    ("/readyz", "ready.json"),
];

/// Largest part of each log file that is included: its end.
const MAX_LOG_BYTES: u64 = 8 << 20;

/// What to do about a file that cannot be written.
const OTHER_FILE: [(ErrorKind, &str); 3] = [
    (ErrorKind::NotFound, "make its directory, or name another file with --output"),
    (ErrorKind::IsADirectory, "name a file with --output, not a directory"),
    (ErrorKind::PermissionDenied, "run it as root, or name another file with --output"),
];

pub(crate) fn run(args: SupportBundleArgs) -> anyhow::Result<()> {
    // Configuration and log are not for other users of the machine.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&args.output)
        .with_context(|| format!("cannot write {}", args.output.display()))
        .map_err(|error| failure::of_file(error, &OTHER_FILE))?;
    let mut bundle = Bundle { archive: Builder::new(GzEncoder::new(file, Compression::default())), notes: Vec::new() };

    let found = run::read_config(args.config.as_deref());
    let config = match &found {
        Ok(file) => {
            bundle.add("chainscope.toml", file.text.as_bytes())?;
            bundle.notes.push(format!("configuration: {}", file.path.display()));
            Some(&file.config)
        }
        Err(error) => {
            bundle.notes.push(format!("configuration: {}", failure::one_line(error)));
            None
        }
    };
    bundle.add("self-check.txt", run::self_check_text(config).as_bytes())?;
    let url = config.map(|config| format!("http://{}", standalone::reachable(config.listen)));
    let api = args.api.or(url).client()?;
    Progress::during(format!("requesting from {}", api.base()), || bundle.add_responses(&api))?;
    if let Some(config) = config {
        let logs = diagnostics::directory(&config.data_dir);
        Progress::during("compressing the log", || bundle.add_logs(&logs))?;
    }
    let kernel = fs::read("/proc/version").unwrap_or_default();
    bundle.add("kernel.txt", &kernel)?;
    let notes = bundle.notes.join("\n") + "\n";
    bundle.add("notes.txt", notes.as_bytes())?;
    bundle.archive.into_inner()?.finish()?.sync_all()?;
    for note in notes.lines() {
        terminal::line(&Escaped(note).to_string())?;
    }
    terminal::line(&format!("wrote {}", args.output.display()))
}

/// The archive while it is written.
struct Bundle {
    archive: Builder<GzEncoder<File>>,
    /// What was included or is missing; printed, and included as notes.txt.
    notes: Vec<String>,
}

impl Bundle {
    /// Adds a file.
    fn add(&mut self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        self.archive.append_data(&mut header, Path::new("chainscope-support").join(name), bytes)?;
        Ok(())
    }

    /// Adds the responses of the server, and notes those that it does not give.
    fn add_responses(&mut self, api: &Api) -> anyhow::Result<()> {
        for (path, name) in RESPONSES {
            match api.text(path, &[]) {
                Ok(text) => self.add(name, text.as_bytes())?,
                Err(error) => self.notes.push(format!("{name}: {}", failure::one_line(&error))),
            }
        }
        Ok(())
    }

    /// Adds every log file of a directory.
    fn add_logs(&mut self, directory: &Path) -> anyhow::Result<()> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) => {
                self.notes.push(format!("logs: {}: {error}", directory.display()));
                return Ok(());
            }
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            let mut file = File::open(entry.path())?;
            let length = file.metadata()?.len();
            if length > MAX_LOG_BYTES {
                std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(length - MAX_LOG_BYTES))?;
                self.notes.push(format!("{name}: the first {} bytes are left out", length - MAX_LOG_BYTES));
            }
            file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
            self.add(&format!("logs/{name}"), &bytes)?;
        }
        Ok(())
    }
}
