//! A tracepoint to which a source is attached.

use std::collections::BTreeMap;

use chainscope_usdt::{ArgumentContract, Class, Kind, Location, Scalar, Shape, TracepointContract, meaning};

/// A tracepoint at one location, to which a source is attached. Locations of one tracepoint may pass different arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Namespace of the name.
    pub provider: String,
    /// Name.
    pub name: String,
    /// Path of the ELF file.
    pub file: String,
    /// Address of the location in the image.
    pub location: u64,
    /// Name of the contract that describes the arguments; `None` if none does.
    pub contract: Option<String>,
    /// Arguments in order.
    pub arguments: Vec<AttachedArgument>,
    /// The id that the linker gave to this build of the file, in hexadecimal digits.
    pub build_id: Option<String>,
}

/// An argument of an attached tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedArgument {
    /// The text in the note, such as `-4@12(%rsp)`.
    pub raw: String,
    /// Name, type, unit and names of values. Without a contract the name is `arg1`, `arg2`, … and the type that of the note.
    pub meaning: ArgumentContract,
}

impl Attachment {
    /// Describes a location of an image. `contract` is the name of a contract and what it says about the tracepoint; if it does
    /// not fit the location, the arguments are those of the note.
    #[must_use]
    pub fn new(
        provider: &str,
        name: &str,
        file: &str,
        location: &Location,
        contract: Option<(&str, &TracepointContract)>,
    ) -> Self {
        let known = contract.and_then(|(contract, expected)| Some((contract, meaning(expected, location)?)));
        let arguments = location.arguments.iter().enumerate().map(|(index, argument)| AttachedArgument {
            raw: argument.raw.clone(),
            meaning: match known.and_then(|(_, arguments)| arguments.get(index)) {
                Some(meaning) => meaning.clone(),
                None => unknown(index, argument.shape),
            },
        });
        Self {
            provider: provider.to_owned(),
            name: name.to_owned(),
            file: file.to_owned(),
            location: location.address,
            contract: known.map(|(contract, _)| contract.to_owned()),
            arguments: arguments.collect(),
            build_id: None,
        }
    }

    /// `provider:name`
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }

    /// Index of the argument with this name.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.arguments.iter().position(|argument| argument.meaning.name == name)
    }
}

/// An argument of which only the note is known. One of unknown size is taken for 8 bytes.
fn unknown(index: usize, shape: Option<Shape>) -> ArgumentContract {
    let scalar = match shape.map(|shape| (shape.class, shape.size)) {
        Some((Class::Signed, 1)) => Scalar::I8,
        Some((Class::Signed, 2)) => Scalar::I16,
        Some((Class::Signed, 4)) => Scalar::I32,
        Some((Class::Signed, _)) => Scalar::I64,
        Some((Class::Unsigned, 1)) => Scalar::U8,
        Some((Class::Unsigned, 2)) => Scalar::U16,
        Some((Class::Unsigned, 4)) => Scalar::U32,
        Some((Class::Float, 4)) => Scalar::F32,
        Some((Class::Float, _)) => Scalar::F64,
        Some((Class::Unsigned, _)) | None => Scalar::U64,
    };
    ArgumentContract {
        name: format!("arg{}", index + 1),
        kind: Kind::Scalar(scalar),
        unit: None,
        values: BTreeMap::new(),
        note: None,
    }
}
