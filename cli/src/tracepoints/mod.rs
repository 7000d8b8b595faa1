//! `chainscope tracepoints`: the static tracepoints of a file, a process or a container.

mod json;
mod text;

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, bail};
use chainscope_agent::trace::{self, MappedImage};
use chainscope_hygiene::EscapedTruncated;
use chainscope_usdt::{Contract, Error, Finding, Image, best_match, built_in, check};
use globset::{Glob, GlobMatcher};

use crate::{
    args::{Format, TracepointsArgs},
    failure::{self, Failure},
    terminal,
};

/// What to do about a file that cannot be read.
pub(crate) const PROGRAM: &str =
    "name the executable of the program or one of its libraries, or with --pid a process that runs it";

/// A file with tracepoints.
struct Listed {
    /// Path as the process sees it.
    path: String,
    is_deleted: bool,
    /// Its tracepoints, those that were asked for.
    image: Result<Image, String>,
    /// Processes that have it mapped.
    processes: Vec<Loaded>,
    contract: Option<Agreed>,
}

/// A file in a process.
struct Loaded {
    pid: u32,
    /// Difference of an address in the process to that in the image.
    bias: Option<u64>,
}

/// The contract of a file, and what disagrees with it.
struct Agreed {
    contract: Contract,
    /// Names of contracts that fit equally.
    others: Vec<String>,
    findings: Vec<Finding>,
}

impl Loaded {
    /// The value of the semaphore at an address of the image.
    fn semaphore(&self, address: u64) -> Result<u16, String> {
        let bias = self.bias.ok_or("its address in the process is not known")?;
        trace::semaphore(self.pid, address.wrapping_add(bias)).map_err(|cause| cause.to_string())
    }
}

pub(crate) fn run(args: &TracepointsArgs) -> anyhow::Result<()> {
    let contracts = contracts(args.contract.as_deref())?;
    let provider = args.provider.as_deref().map(Glob::new).transpose().context("--provider")?;
    let provider = provider.map(|glob| glob.compile_matcher());
    let mut files = files(args)?;
    for file in &mut files {
        file.agree(&contracts, args.contract.is_some());
        if let Some(provider) = &provider {
            file.narrow(provider);
        }
    }
    let has_tracepoints = |file: &Listed| {
        file.image.as_ref().is_ok_and(|image| !image.tracepoints.is_empty() || !image.errors.is_empty())
    };
    if !files.iter().any(has_tracepoints) {
        for file in files {
            if let Err(cause) = file.image {
                eprintln!("chainscope: {}: {}", EscapedTruncated(&file.path), EscapedTruncated(&cause));
            }
        }
        let found = format!("no tracepoints of {} found (no readable notes in a section .note.stapsdt)", source(args));
        let hint = match args.provider {
            Some(_) => "leave out --provider to list those of all providers",
            None => "a program has tracepoints if it was built with them (sys/sdt.h); docs/tracepoints.md says more",
        };
        return Err(Failure::new(found).hint(hint).into());
    }
    let findings: usize = files.iter().flat_map(|file| &file.contract).map(|agreed| agreed.findings.len()).sum();
    if args.check && files.iter().all(|file| file.contract.is_none()) {
        bail!("no contract has a tracepoint of {}; name one by --contract: {}", source(args), names(&contracts));
    }
    if args.output.format() != Format::Table {
        terminal::line(&chainscope_hygiene::EscapedJson(&json::document(&files).to_string()).to_string())?;
    } else if args.check {
        terminal::write(text::findings(&files).as_bytes())?;
    } else {
        terminal::write(text::listing(&files).as_bytes())?;
    }
    if args.check && findings > 0 {
        bail!("{findings} differences");
    }
    Ok(())
}

/// The selected contracts, or all that are built in.
pub(crate) fn contracts(wanted: Option<&str>) -> anyhow::Result<Vec<Contract>> {
    let Some(wanted) = wanted else { return Ok(built_in().to_vec()) };
    let named: Vec<Contract> =
        built_in().iter().filter(|known| known.name() == wanted || known.family == wanted).cloned().collect();
    if !named.is_empty() {
        return Ok(named);
    }
    if !Path::new(wanted).exists() {
        bail!("{wanted:?} is neither a file nor one of the contracts {}", names(built_in()));
    }
    let text = fs::read_to_string(wanted).with_context(|| format!("cannot read {wanted}"))?;
    chainscope_usdt::parse(&text).with_context(|| wanted.to_owned())
}

fn names(contracts: &[Contract]) -> String {
    contracts.iter().map(Contract::name).collect::<Vec<_>>().join(", ")
}

/// What was asked for, for messages.
fn source(args: &TracepointsArgs) -> String {
    match (&args.file, args.pid, &args.container) {
        (Some(file), ..) => file.display().to_string(),
        (_, Some(pid), _) => format!("process {pid}"),
        (.., container) => format!("container {}", container.as_deref().unwrap_or_default()),
    }
}

fn files(args: &TracepointsArgs) -> anyhow::Result<Vec<Listed>> {
    if let Some(path) = &args.file {
        let image = trace::image_of_file(path)
            .with_context(|| path.display().to_string())
            .map_err(|error| failure::with_hint(error, PROGRAM))?;
        let path = path.to_string_lossy().into_owned();
        return Ok(vec![Listed { path, is_deleted: false, image: Ok(image), processes: Vec::new(), contract: None }]);
    }
    if let Some(pid) = args.pid {
        return Ok(merge(trace::images_of(pid)?.into_iter().map(|image| (pid, image))));
    }
    let name = args.container.as_deref().unwrap_or_default();
    let mut images = Vec::new();
    for pid in trace::processes_of_container(name).with_context(|| format!("container {name}"))? {
        match trace::images_of(pid) {
            Ok(of) => images.extend(of.into_iter().map(|image| (pid, image))),
            // Others of the container go on.
            Err(cause) => eprintln!("chainscope: {cause}"),
        }
    }
    Ok(merge(images))
}

/// Each file once, without those that are no ELF files or have no notes.
fn merge(images: impl IntoIterator<Item = (u32, MappedImage)>) -> Vec<Listed> {
    let mut files: BTreeMap<_, Listed> = BTreeMap::new();
    for (pid, found) in images {
        let is_plain = match &found.image {
            Ok(image) => image.tracepoints.is_empty() && image.errors.is_empty(),
            Err(cause) => *cause == Error::NotElf.to_string(),
        };
        if is_plain {
            continue;
        }
        let path = found.path.to_string_lossy().into_owned();
        let file = files.entry((path.clone(), found.identity)).or_insert(Listed {
            path,
            is_deleted: found.is_deleted,
            image: found.image,
            processes: Vec::new(),
            contract: None,
        });
        file.processes.push(Loaded { pid, bias: found.bias });
    }
    files.into_values().collect()
}

impl Listed {
    /// Finds the contract and compares. One that is not named has to have most tracepoints in common with the file.
    fn agree(&mut self, contracts: &[Contract], is_named: bool) {
        let Ok(image) = &self.image else { return };
        let program = Path::new(&self.path).file_name().and_then(|name| name.to_str());
        let found = best_match(contracts, image, program).filter(|found| is_named || found.is_likely());
        self.contract = found.map(|found| Agreed {
            contract: found.contract.clone(),
            others: found.others.into_iter().map(Contract::name).collect(),
            findings: check(found.contract, image),
        });
    }

    /// Leaves out other providers.
    fn narrow(&mut self, provider: &GlobMatcher) {
        if let Ok(image) = &mut self.image {
            image.tracepoints.retain(|tracepoint| provider.is_match(&tracepoint.provider));
        }
        if let Some(agreed) = &mut self.contract {
            let of = |finding: &Finding| finding.tracepoint.split(':').next().unwrap_or_default().to_owned();
            agreed.findings.retain(|finding| provider.is_match(of(finding)));
        }
    }

    /// The contract's name with those that fit equally.
    fn contract_name(&self) -> Option<String> {
        let agreed = self.contract.as_ref()?;
        let name = agreed.contract.name();
        Some(if agreed.others.is_empty() { name } else { format!("{name} (equally: {})", agreed.others.join(", ")) })
    }
}
