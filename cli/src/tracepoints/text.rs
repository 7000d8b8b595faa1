//! Text for people. Texts of files and processes are escaped.

use std::fmt::Write as _;

use chainscope_hygiene::Escaped;
use chainscope_usdt::{
    Argument, ArgumentContract, Image, Kind, Length, Location, Problem, Tracepoint, check_location, meaning,
};

use super::Listed;

/// Every tracepoint with its locations and arguments, and what contradicts the contract.
pub(super) fn listing(files: &[Listed]) -> String {
    let mut out = String::new();
    for file in files {
        let _ = writeln!(out, "{}", head(file));
        let Ok(image) = &file.image else { continue };
        for error in &image.errors {
            let _ = writeln!(out, "  ! {}", Escaped(&error.to_string()));
        }
        for tracepoint in &image.tracepoints {
            self::tracepoint(&mut out, file, tracepoint);
        }
    }
    out
}

/// Only what disagrees.
pub(super) fn findings(files: &[Listed]) -> String {
    let mut out = String::new();
    for file in files {
        let _ = writeln!(out, "{}", head(file));
        let errors = file.image.iter().flat_map(|image| &image.errors);
        for error in errors {
            let _ = writeln!(out, "  ! {}", Escaped(&error.to_string()));
        }
        let Some(agreed) = &file.contract else { continue };
        for finding in &agreed.findings {
            let origin = if finding.problem.is_documentation() { "documentation" } else { "binary" };
            let at = finding.location.map(|address| format!(" at {address:#x}")).unwrap_or_default();
            let _ = writeln!(
                out,
                "  {origin:<13}  {}{at}: {}",
                Escaped(&finding.tracepoint),
                Escaped(&finding.problem.to_string())
            );
        }
        if agreed.findings.is_empty() {
            out.push_str("  agrees with the contract\n");
        }
    }
    out
}

fn head(file: &Listed) -> String {
    let deleted = if file.is_deleted { " (deleted)" } else { "" };
    let path = Escaped(&file.path);
    let image = match &file.image {
        Ok(image) => image,
        Err(cause) => return format!("{path}{deleted}: cannot be read: {}", Escaped(cause)),
    };
    let Image { tracepoints, .. } = image;
    let locations: usize = tracepoints.iter().map(|tracepoint| tracepoint.locations.len()).sum();
    let contract = file.contract_name().map_or_else(|| "no contract".to_owned(), |name| format!("contract {name}"));
    format!("{path}{deleted}: {} tracepoints, {locations} locations; {contract}", tracepoints.len())
}

fn tracepoint(out: &mut String, file: &Listed, tracepoint: &Tracepoint) {
    let _ = writeln!(out, "\n{}", Escaped(&tracepoint.full_name()));
    let contract = file.contract.as_ref().map(|agreed| &agreed.contract);
    let expected =
        contract.and_then(|contract| Some((contract, contract.tracepoint(&tracepoint.provider, &tracepoint.name)?)));
    if let Some(note) = expected.and_then(|(_, expected)| expected.note.as_deref()) {
        let _ = writeln!(out, "  {}", Escaped(note));
    }
    if expected.is_none() && contract.is_some_and(|contract| contract.has_provider(&tracepoint.provider)) {
        let _ = writeln!(out, "  ! {}", Problem::UnknownTracepoint);
    }
    for location in &tracepoint.locations {
        self::location(out, file, location);
        let names = expected.and_then(|(_, expected)| meaning(expected, location)).unwrap_or_default();
        for (index, argument) in location.arguments.iter().enumerate() {
            self::argument(out, index, argument, names);
        }
        let problems = expected.map(|(contract, expected)| check_location(contract, expected, location));
        // The argument's own line says that it cannot be read.
        for problem in problems.into_iter().flatten().filter(|one| !matches!(one, Problem::Unreadable { .. })) {
            let _ = writeln!(out, "    ! {}", Escaped(&problem.to_string()));
        }
    }
}

fn location(out: &mut String, file: &Listed, location: &Location) {
    let offset = |offset: Option<u64>, without: &str| match offset {
        Some(offset) => format!("file offset {offset:#x}"),
        None => without.to_owned(),
    };
    let at = offset(location.offset, "in no executable segment");
    let _ = write!(out, "  location {:#x}, {at}, base {:#x}", location.address, location.base);
    if let Some(semaphore) = location.semaphore {
        let at = offset(semaphore.offset, "in no writable segment");
        let _ = write!(out, "; semaphore {:#x}, {at}", semaphore.address);
        for process in &file.processes {
            let value = match process.semaphore(semaphore.address) {
                Ok(value) => format!("= {value}"),
                Err(cause) => format!("not readable: {}", Escaped(&cause)),
            };
            let _ = write!(out, ", {value} in process {}", process.pid);
        }
    }
    out.push('\n');
}

fn argument(out: &mut String, index: usize, argument: &Argument, names: &[ArgumentContract]) {
    let raw = Escaped(&argument.raw).to_string();
    let (name, kind) = match names.get(index) {
        Some(known) => (Escaped(&known.name).to_string(), kind(known, names)),
        None => (format!("argument {}", index + 1), argument.shape.map(|shape| shape.to_string()).unwrap_or_default()),
    };
    let _ = write!(out, "    {name:<20} {kind:<24} {raw}");
    if let Err(cause) = &argument.operand {
        let _ = write!(out, "  [unsupported: {}]", Escaped(&cause.to_string()));
    }
    out.push('\n');
}

/// Type, length, unit and values: `bytes (length: size)`, `i64 us`.
fn kind(argument: &ArgumentContract, all: &[ArgumentContract]) -> String {
    let mut text = argument.kind.to_string();
    if let Kind::Bytes(Some(Length::Argument(index))) = argument.kind
        && let Some(length) = all.get(index)
    {
        let _ = write!(text, " (length: {})", length.name);
    }
    if let Some(unit) = &argument.unit {
        let _ = write!(text, " {unit}");
    }
    if !argument.values.is_empty() {
        let values: Vec<String> = argument.values.iter().map(|(value, name)| format!("{value} {name}")).collect();
        let _ = write!(text, " ({})", values.join(", "));
    }
    Escaped(&text).to_string()
}
