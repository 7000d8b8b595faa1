//! `chainscope trace info`: what is in a recording.

use std::{fmt::Write as _, io::BufReader, path::Path};

use bytesize::ByteSize;
use chainscope_hygiene::{Escaped, EscapedJson};
use chainscope_trace::{
    archive::{Ending, Info, Program},
    json,
    view::accounting_line,
};
use serde_json::{Map, Value, json};

use super::recording;
use crate::terminal;

pub(super) fn run(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let name = || path.display().to_string();
    let (size, info) = recording::read(path, |file| Ok((file.metadata()?.len(), Info::read(BufReader::new(file))?)))?;
    if as_json {
        let object = object(&name(), size, &info).to_string();
        return terminal::line(&EscapedJson(&object).to_string());
    }
    terminal::write(text(&name(), size, &info).as_bytes())
}

fn state(info: &Info) -> String {
    match &info.ending {
        Ok(Ending::Complete) => "complete".to_owned(),
        Ok(Ending::Cut) => "cut, or still being written: losses are not known".to_owned(),
        Err(problem) => format!("damaged: {}", Escaped(problem)),
    }
}

/// The time of a reading of the monotonic clock, nanoseconds since 1970.
fn wall(info: &Info, monotonic_ns: u64) -> i64 {
    let after = i128::from(monotonic_ns) - i128::from(info.start.monotonic_ns);
    i64::try_from(i128::from(info.start.wall_ns) + after).unwrap_or(0)
}

fn seconds(info: &Info) -> f64 {
    let (from, until) = (info.accounting.from.monotonic_ns, info.accounting.until.monotonic_ns);
    until.saturating_sub(from) as f64 / 1e9
}

fn text(name: &str, size: u64, info: &Info) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key:<16} {value}");
    };
    line("File:", Escaped(name).to_string());
    line("Written by:", Escaped(&info.program).to_string());
    line("Size:", ByteSize::b(size).to_string());
    line("State:", state(info));
    line("Start:", json::rfc3339(info.start.wall_ns));
    if let Some((first, last)) = info.span {
        line("First event:", json::rfc3339(first.wall_ns));
        line("Last event:", json::rfc3339(last.wall_ns));
    }
    line("Duration:", format!("{:.3} s", seconds(info)));
    line("Events:", info.events.to_string());
    let started = |start_ns: &u64| format!(" (started {})", json::rfc3339(wall(info, *start_ns)));
    let processes = info.processes.iter();
    let processes: Vec<String> =
        processes.map(|(pid, start)| format!("{pid}{}", start.as_ref().map(started).unwrap_or_default())).collect();
    line("Processes:", processes.join(", "));
    for Program { path, contract, build_id } in &info.files {
        let contract = contract.as_deref().map_or_else(|| "no contract".to_owned(), |name| format!("contract {name}"));
        let build_id = build_id.as_deref().map(|id| format!(", build id {id}")).unwrap_or_default();
        line("Program:", format!("{} ({}{})", Escaped(path), Escaped(&contract), Escaped(&build_id)));
    }
    let _ =
        writeln!(text, "\n{:>10} {:>10} {:>10} {:>10}  TRACEPOINT", "EVENTS", "INCOMPLETE", "UNREADABLE", "DROPPED");
    for (name, found) in &info.tracepoints {
        let dropped = info.accounting.tracepoints.get(name).map(|counts| counts.all_dropped()).unwrap_or(0);
        let _ = writeln!(
            text,
            "{:>10} {:>10} {:>10} {dropped:>10}  {}",
            found.events,
            found.incomplete,
            found.unreadable,
            Escaped(name)
        );
    }
    let _ = writeln!(text, "{}", accounting_line(&info.accounting));
    text
}

fn object(name: &str, size: u64, info: &Info) -> Value {
    let tracepoints = info.tracepoints.iter().map(|(name, found)| {
        let counts = json!({
            "events": found.events, "incomplete": found.incomplete, "unreadable": found.unreadable,
        });
        (name.clone(), counts)
    });
    let program = |Program { path, contract, build_id }: &Program| json!({ "path": path, "contract": contract, "build_id": build_id });
    let files = info.files.iter().map(program);
    let process = |(pid, start): (&u32, &Option<u64>)| json!({ "pid": pid, "start": start.map(|start| json::rfc3339(wall(info, start))) });
    let processes = info.processes.iter().map(process);
    json!({
        "file": name,
        "written_by": info.program,
        "size_bytes": size,
        "complete": info.ending == Ok(Ending::Complete),
        "state": state(info),
        "start": json::rfc3339(info.start.wall_ns),
        "first_event": info.span.map(|(first, _)| json::rfc3339(first.wall_ns)),
        "last_event": info.span.map(|(_, last)| json::rfc3339(last.wall_ns)),
        "duration_s": seconds(info),
        "events": info.events,
        "processes": processes.collect::<Vec<_>>(),
        "programs": files.collect::<Vec<_>>(),
        "tracepoints": tracepoints.collect::<Map<_, _>>(),
        "accounting": json::accounting(&info.accounting),
    })
}
