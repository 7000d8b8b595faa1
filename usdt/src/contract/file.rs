//! The format of contract files.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::Spanned;

use super::{ArgumentContract, Contract, Kind, Length, Scalar, TracepointContract, Variant};
use crate::{
    argument::{Class, MAX_ARGUMENTS},
    error::ContractError,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    title: String,
    #[serde(default)]
    programs: Vec<String>,
    #[serde(default)]
    releases: Vec<String>,
    semaphores: Option<Range>,
    tracepoints: Vec<FileTracepoint>,
}

/// Releases from one to another, both included.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: Option<Spanned<String>>,
    until: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTracepoint {
    provider: String,
    name: Spanned<String>,
    #[serde(default)]
    releases: Range,
    note: Option<String>,
    arguments: Vec<FileArgument>,
    #[serde(default)]
    variants: Vec<FileVariant>,
    documented: Option<Vec<FileArgument>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileVariant {
    note: String,
    arguments: Vec<FileArgument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileArgument {
    name: Spanned<String>,
    kind: Spanned<String>,
    /// Of a pointer: what it leads to.
    to: Option<Spanned<String>>,
    /// Of a text: maximum length.
    max: Option<u64>,
    /// Of bytes: their number.
    length: Option<FileLength>,
    unit: Option<String>,
    #[serde(default)]
    values: BTreeMap<String, String>,
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FileLength {
    Fixed(u64),
    Argument(String),
}

/// Parses a contract file: one contract for each release, or a single one.
///
/// # Errors
/// An error that names the line.
pub fn parse(text: &str) -> Result<Vec<Contract>, ContractError> {
    let file: File = toml::from_str(text)?;
    Reader { text }.contracts(&file)
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn invalid<T>(&self, at: &Spanned<String>, message: String) -> Result<T, ContractError> {
        let before = self.text.get(..at.span().start).unwrap_or_default();
        Err(ContractError::Invalid { line: before.matches('\n').count() + 1, message })
    }

    fn contracts(&self, file: &File) -> Result<Vec<Contract>, ContractError> {
        let is_name = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c))
        };
        if !is_name(file.name.get_ref()) {
            return self.invalid(&file.name, format!("name {:?}: use a-z, 0-9 and - . _", file.name.get_ref()));
        }
        let all = self.tracepoints(file)?;
        let semaphores = file.semaphores.as_ref().map(|range| self.range(file, range)).transpose()?;
        let count = file.releases.len().max(1);
        let mut contracts = Vec::with_capacity(count);
        for release in 0..count {
            let mut names = BTreeSet::new();
            let mut tracepoints = Vec::new();
            for (name, releases, tracepoint) in &all {
                if !releases.contains(&release) {
                    continue;
                }
                if !names.insert((&tracepoint.provider, &tracepoint.name)) {
                    let (provider, other) = (&tracepoint.provider, &tracepoint.name);
                    return self.invalid(name, format!("{provider:?}:{other:?} is in the file twice for one release"));
                }
                tracepoints.push(tracepoint.clone());
            }
            contracts.push(Contract {
                family: file.name.get_ref().clone(),
                release: file.releases.get(release).cloned(),
                title: file.title.clone(),
                programs: file.programs.clone(),
                semaphores: semaphores.as_ref().map(|range| range.contains(&release)),
                tracepoints,
            });
        }
        Ok(contracts)
    }

    /// The tracepoints with the releases that have them.
    #[expect(clippy::type_complexity, reason = "a list of triples")]
    fn tracepoints<'f>(
        &self,
        file: &'f File,
    ) -> Result<Vec<(&'f Spanned<String>, std::ops::Range<usize>, TracepointContract)>, ContractError> {
        let one = |tracepoint: &'f FileTracepoint| {
            let variant = |variant: &FileVariant| -> Result<Variant, ContractError> {
                let arguments = self.arguments(&tracepoint.name, &variant.arguments)?;
                Ok(Variant { note: variant.note.clone(), arguments })
            };
            let documented = tracepoint.documented.as_ref();
            let read = TracepointContract {
                provider: tracepoint.provider.clone(),
                name: tracepoint.name.get_ref().clone(),
                arguments: self.arguments(&tracepoint.name, &tracepoint.arguments)?,
                variants: tracepoint.variants.iter().map(variant).collect::<Result<_, _>>()?,
                documented: documented.map(|arguments| self.arguments(&tracepoint.name, arguments)).transpose()?,
                note: tracepoint.note.clone(),
            };
            Ok((&tracepoint.name, self.range(file, &tracepoint.releases)?, read))
        };
        file.tracepoints.iter().map(one).collect()
    }

    /// Indexes of the releases of a range.
    fn range(&self, file: &File, range: &Range) -> Result<std::ops::Range<usize>, ContractError> {
        let index = |wanted: &Spanned<String>| match file.releases.iter().position(|name| name == wanted.get_ref()) {
            Some(index) => Ok(index),
            None => self.invalid(wanted, format!("{:?} is not one of the file's releases", wanted.get_ref())),
        };
        let from = range.from.as_ref().map_or(Ok(0), index)?;
        let end = match &range.until {
            Some(until) => index(until)? + 1,
            None => file.releases.len().max(1),
        };
        match (&range.until, from < end) {
            (Some(until), false) => self.invalid(until, format!("{:?} is before the first release", until.get_ref())),
            _ => Ok(from..end),
        }
    }

    fn arguments(
        &self,
        tracepoint: &Spanned<String>,
        arguments: &[FileArgument],
    ) -> Result<Vec<ArgumentContract>, ContractError> {
        if arguments.len() > MAX_ARGUMENTS {
            return self.invalid(tracepoint, format!("{} arguments are more than {MAX_ARGUMENTS}", arguments.len()));
        }
        let mut read: Vec<ArgumentContract> = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let name = argument.name.get_ref();
            if read.iter().any(|earlier| earlier.name == *name) {
                return self.invalid(&argument.name, format!("a second argument is called {name:?}"));
            }
            read.push(ArgumentContract {
                name: name.clone(),
                kind: self.kind(argument, arguments)?,
                unit: argument.unit.clone(),
                values: self.values(argument)?,
                note: argument.note.clone(),
            });
        }
        Ok(read)
    }

    fn kind(&self, argument: &FileArgument, all: &[FileArgument]) -> Result<Kind, ContractError> {
        let kind = argument.kind.get_ref().as_str();
        let given = [
            ("to", argument.to.is_some(), "pointer"),
            ("max", argument.max.is_some(), "cstr"),
            ("length", argument.length.is_some(), "bytes"),
        ];
        if let Some((key, ..)) = given.iter().find(|(_, is_given, of)| *is_given && kind != *of) {
            return self.invalid(&argument.kind, format!("an argument of kind {kind:?} has no {key:?}"));
        }
        Ok(match kind {
            "cstr" => Kind::CString { max: argument.max },
            "hash32" => Kind::Hash32,
            "bytes" => {
                Kind::Bytes(argument.length.as_ref().map(|length| self.length(argument, length, all)).transpose()?)
            }
            "pointer" => Kind::Pointer(argument.to.as_ref().map(|to| self.scalar(to)).transpose()?),
            _ => Kind::Scalar(self.scalar(&argument.kind)?),
        })
    }

    fn scalar(&self, name: &Spanned<String>) -> Result<Scalar, ContractError> {
        match Scalar::from_name(name.get_ref()) {
            Some(scalar) => Ok(scalar),
            None => self.invalid(name, format!("unknown kind {:?}", name.get_ref())),
        }
    }

    fn length(
        &self,
        argument: &FileArgument,
        length: &FileLength,
        all: &[FileArgument],
    ) -> Result<Length, ContractError> {
        let name = match length {
            FileLength::Fixed(length) => return Ok(Length::Fixed(*length)),
            FileLength::Argument(name) => name,
        };
        let is_integer = |kind: &str| {
            Scalar::from_name(kind).is_some_and(|kind| kind.shape().class != Class::Float && kind != Scalar::Bool)
        };
        match all.iter().position(|other| other.name.get_ref() == name && is_integer(other.kind.get_ref())) {
            Some(index) => Ok(Length::Argument(index)),
            None => {
                self.invalid(&argument.name, format!("its length {name:?} is no integer argument of the tracepoint"))
            }
        }
    }

    fn values(&self, argument: &FileArgument) -> Result<BTreeMap<i64, String>, ContractError> {
        let mut values = BTreeMap::new();
        for (value, meaning) in &argument.values {
            let Ok(value) = value.parse() else {
                return self.invalid(&argument.name, format!("value {value:?} is no integer"));
            };
            values.insert(value, meaning.clone());
        }
        Ok(values)
    }
}
