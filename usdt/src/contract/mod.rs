//! Contracts: the tracepoints of a node with the meaning of their arguments, as data.
//!
//! A file describes the releases of one node ([`parse`]); those of well-known nodes are part of the program ([`built_in`]).
//! `docs/tracepoints.md` documents the format.

mod file;

use std::{collections::BTreeMap, fmt, sync::LazyLock};

use crate::argument::{Class, Shape};
pub use file::parse;

/// The tracepoints of one release of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// Name of the node in lower case, such as `bitcoin-core`.
    pub family: String,
    /// Release, if the file distinguishes several.
    pub release: Option<String>,
    /// Name of the node for people.
    pub title: String,
    /// File names of its programs.
    pub programs: Vec<String>,
    /// Whether each tracepoint has a semaphore; `None` if the file does not say.
    pub semaphores: Option<bool>,
    /// Tracepoints in the order of the file.
    pub tracepoints: Vec<TracepointContract>,
}

/// A tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracepointContract {
    /// Namespace of the name.
    pub provider: String,
    /// Name.
    pub name: String,
    /// What the code passes.
    pub arguments: Vec<ArgumentContract>,
    /// What it passes at other locations.
    pub variants: Vec<Variant>,
    /// What the node's documentation says, where it differs from the code.
    pub documented: Option<Vec<ArgumentContract>>,
    /// What to know about it.
    pub note: Option<String>,
}

/// Arguments that some locations pass instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The arguments.
    pub arguments: Vec<ArgumentContract>,
    /// How they differ.
    pub note: String,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentContract {
    /// Name in `snake_case`.
    pub name: String,
    /// Type.
    pub kind: Kind,
    /// Unit: `ns`, `us`, `ms` or `s` of a duration, otherwise any text.
    pub unit: Option<String>,
    /// Names of values.
    pub values: BTreeMap<i64, String>,
    /// What to know about it.
    pub note: Option<String>,
}

/// Type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number or Boolean in the argument itself.
    Scalar(Scalar),
    /// Pointer to text that ends with NUL.
    CString {
        /// Documented maximum length in bytes, without the NUL.
        max: Option<u64>,
    },
    /// Pointer to a hash of 32 bytes, which is shown in reverse order.
    Hash32,
    /// Pointer to bytes; of unknown number if there is no length.
    Bytes(Option<Length>),
    /// Pointer to a number, or to anything.
    Pointer(Option<Scalar>),
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Always this.
    Fixed(u64),
    /// The value of the argument with this index, from 0.
    Argument(usize),
}

/// A number or Boolean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the types")]
pub enum Scalar {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    Bool,
}

impl Contract {
    /// The name by which it is selected: family, and release if there is one.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.release {
            Some(release) => format!("{}-{release}", self.family),
            None => self.family.clone(),
        }
    }

    /// The tracepoint of this name.
    #[must_use]
    pub fn tracepoint(&self, provider: &str, name: &str) -> Option<&TracepointContract> {
        self.tracepoints.iter().find(|tracepoint| tracepoint.provider == provider && tracepoint.name == name)
    }

    /// Whether it has tracepoints of this provider.
    #[must_use]
    pub fn has_provider(&self, provider: &str) -> bool {
        self.tracepoints.iter().any(|tracepoint| tracepoint.provider == provider)
    }
}

impl Kind {
    /// How a compiler passes it.
    #[must_use]
    pub fn shape(self) -> Shape {
        match self {
            Self::Scalar(scalar) => scalar.shape(),
            Self::CString { .. } | Self::Hash32 | Self::Bytes(_) | Self::Pointer(_) => {
                Shape { size: 8, class: Class::Unsigned }
            }
        }
    }
}

impl Scalar {
    /// Size and class.
    #[must_use]
    pub fn shape(self) -> Shape {
        let (size, class) = match self {
            Self::I8 => (1, Class::Signed),
            Self::I16 => (2, Class::Signed),
            Self::I32 => (4, Class::Signed),
            Self::I64 => (8, Class::Signed),
            Self::U8 | Self::Bool => (1, Class::Unsigned),
            Self::U16 => (2, Class::Unsigned),
            Self::U32 => (4, Class::Unsigned),
            Self::U64 => (8, Class::Unsigned),
            Self::F32 => (4, Class::Float),
            Self::F64 => (8, Class::Float),
        };
        Shape { size, class }
    }

    /// The type of this name in contract files.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        SCALARS.iter().find(|(known, _)| *known == name).map(|(_, scalar)| *scalar)
    }

    /// Its name in contract files.
    #[must_use]
    pub fn name(self) -> &'static str {
        SCALARS.iter().find(|(_, scalar)| *scalar == self).map_or("", |(name, _)| name)
    }
}

const SCALARS: [(&str, Scalar); 11] = [
    ("i8", Scalar::I8),
    ("i16", Scalar::I16),
    ("i32", Scalar::I32),
    ("i64", Scalar::I64),
    ("u8", Scalar::U8),
    ("u16", Scalar::U16),
    ("u32", Scalar::U32),
    ("u64", Scalar::U64),
    ("f32", Scalar::F32),
    ("f64", Scalar::F64),
    ("bool", Scalar::Bool),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(scalar) => f.write_str(scalar.name()),
            Self::CString { max: None } => f.write_str("cstr"),
            Self::CString { max: Some(max) } => write!(f, "cstr({max})"),
            Self::Hash32 => f.write_str("hash32"),
            Self::Bytes(Some(Length::Fixed(length))) => write!(f, "bytes({length})"),
            Self::Bytes(_) => f.write_str("bytes"),
            Self::Pointer(None) => f.write_str("pointer"),
            Self::Pointer(Some(scalar)) => write!(f, "pointer to {}", scalar.name()),
        }
    }
}

/// Contracts of well-known nodes. Of those that match an image equally, the last one is the best guess.
pub fn built_in() -> &'static [Contract] {
    static CONTRACTS: LazyLock<Vec<Contract>> = LazyLock::new(|| {
        let files = [
            include_str!("../../contracts/rippled.toml"),
            include_str!("../../contracts/moneyrocket.toml"),
            include_str!("../../contracts/tapyrus.toml"),
            include_str!("../../contracts/bitcoin-core.toml"),
        ];
        files.into_iter().flat_map(|text| parse(text).expect("an embedded contract is valid")).collect()
    });
    &CONTRACTS
}
