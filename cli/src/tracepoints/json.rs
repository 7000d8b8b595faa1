//! The listing as JSON. Addresses and offsets are hexadecimal text: they may exceed what a JSON number holds exactly.

use chainscope_usdt::{
    Address, Argument, ArgumentContract, Base, Class, Finding, Kind, Length, Location, Operand, Tracepoint,
    TracepointContract, meaning,
};
use serde_json::{Map, Value, json};

use super::{Agreed, Listed};

pub(super) fn document(files: &[Listed]) -> Value {
    json!({ "files": files.iter().map(file).collect::<Vec<_>>() })
}

fn file(file: &Listed) -> Value {
    let processes = file.processes.iter().map(|loaded| json!({ "pid": loaded.pid, "load_bias": hex(loaded.bias) }));
    let mut value = json!({
        "path": file.path,
        "build_id": file.image.as_ref().ok().and_then(|image| image.build_id_hex()),
        "deleted": file.is_deleted,
        "processes": processes.collect::<Vec<_>>(),
    });
    match &file.image {
        Err(cause) => value["error"] = json!(cause),
        Ok(image) => {
            value["unreadable_notes"] = image.errors.iter().map(|error| json!(error.to_string())).collect();
            value["tracepoints"] = image.tracepoints.iter().map(|found| tracepoint(file, found)).collect();
        }
    }
    if let Some(agreed) = &file.contract {
        value["contract"] = contract(agreed);
    }
    value
}

fn contract(agreed: &Agreed) -> Value {
    json!({
        "name": agreed.contract.name(),
        "title": agreed.contract.title,
        "equally": agreed.others,
        "findings": agreed.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn finding(finding: &Finding) -> Value {
    json!({
        "tracepoint": finding.tracepoint,
        "location": hex(finding.location),
        "problem": finding.problem.code(),
        "documentation": finding.problem.is_documentation(),
        "message": finding.problem.to_string(),
    })
}

fn tracepoint(file: &Listed, found: &Tracepoint) -> Value {
    let expected = file.contract.as_ref().and_then(|agreed| agreed.contract.tracepoint(&found.provider, &found.name));
    json!({
        "provider": found.provider,
        "name": found.name,
        "note": expected.and_then(|expected| expected.note.as_deref()),
        "locations": found.locations.iter().map(|at| location(file, expected, at)).collect::<Vec<_>>(),
    })
}

fn location(file: &Listed, expected: Option<&TracepointContract>, location: &Location) -> Value {
    let names = expected.and_then(|expected| meaning(expected, location)).unwrap_or_default();
    let arguments = location.arguments.iter().enumerate();
    let semaphore = location.semaphore.map(|semaphore| {
        let values = file.processes.iter().map(|loaded| match loaded.semaphore(semaphore.address) {
            Ok(value) => json!({ "pid": loaded.pid, "value": value }),
            Err(cause) => json!({ "pid": loaded.pid, "error": cause }),
        });
        json!({
            "address": hex(Some(semaphore.address)),
            "file_offset": hex(semaphore.offset),
            "values": values.collect::<Vec<_>>(),
        })
    });
    json!({
        "address": hex(Some(location.address)),
        "file_offset": hex(location.offset),
        "base": hex(Some(location.base)),
        "semaphore": semaphore,
        "arguments": arguments.map(|(index, argument)| self::argument(argument, index, names)).collect::<Vec<_>>(),
    })
}

fn argument(argument: &Argument, index: usize, names: &[ArgumentContract]) -> Value {
    let mut value = Map::new();
    let mut set = |key: &str, field: Value| value.insert(key.to_owned(), field);
    set("raw", json!(argument.raw));
    if let Some(shape) = argument.shape {
        let class = match shape.class {
            Class::Unsigned => "unsigned",
            Class::Signed => "signed",
            Class::Float => "float",
        };
        set("size", json!(shape.size));
        set("class", json!(class));
    }
    match &argument.operand {
        Ok(found) => set("operand", operand(found)),
        Err(cause) => set("unsupported", json!(cause.to_string())),
    };
    if let Some(known) = names.get(index) {
        set("name", json!(known.name));
        set("kind", json!(known.kind.to_string()));
        if let Kind::Bytes(Some(Length::Argument(index))) = known.kind {
            set("length", json!(names.get(index).map(|length| &length.name)));
        }
        if let Some(unit) = &known.unit {
            set("unit", json!(unit));
        }
        if !known.values.is_empty() {
            let values: Map<_, _> = known.values.iter().map(|(value, name)| (value.to_string(), json!(name))).collect();
            set("values", Value::Object(values));
        }
        if let Some(note) = &known.note {
            set("note", json!(note));
        }
    }
    Value::Object(value)
}

fn operand(operand: &Operand) -> Value {
    match operand {
        Operand::Constant(value) => json!({ "constant": value.to_string() }),
        Operand::Register { register, shift } => json!({ "register": register.name(), "shift": shift }),
        Operand::Memory(Address { base, index, displacement }) => json!({
            "base": base.map(|base| match base {
                Base::Register(register) => register.name(),
                Base::Location => "location",
            }),
            "index": index.map(|index| index.register.name()),
            "scale": index.map(|index| index.scale),
            "displacement": displacement.to_string(),
        }),
    }
}

fn hex(number: Option<u64>) -> Option<String> {
    number.map(|number| format!("{number:#x}"))
}
