//! What a check finds.

use std::fmt;

use crate::{
    argument::{Class, Shape},
    contract::Kind,
    error::Unsupported,
    image::Tracepoint,
};

/// Something that disagrees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// `provider:name`
    pub tracepoint: String,
    /// Address of the location in the image; `None` if it is the same for all.
    pub location: Option<u64>,
    /// What disagrees.
    pub problem: Problem,
}

impl Finding {
    pub(super) fn of(tracepoint: &Tracepoint, problem: Problem) -> Self {
        Self { tracepoint: tracepoint.full_name(), location: None, problem }
    }
}

/// What disagrees. Arguments are numbered from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are explained by the variants")]
pub enum Problem {
    /// The contract has the tracepoint, the image does not.
    MissingTracepoint,
    /// The image has the tracepoint, the contract does not.
    UnknownTracepoint,
    /// There is no semaphore, or there is one.
    Semaphore { expected: bool },
    /// Number of arguments.
    Count { expected: usize, found: usize },
    /// Size, sign or class of an argument.
    Shape { argument: usize, name: String, expected: Kind, found: Shape },
    /// The arguments have the right sizes and signs, in another order.
    Order { arguments: Vec<usize> },
    /// The place of an argument is not known.
    Unreadable { argument: usize, cause: Unsupported },
    /// A known deviation of this location.
    Variant { note: String },
    /// The location passes what is documented, and not what the contract says of the code.
    AsDocumented,
    /// The documentation says another number of arguments than the code passes.
    DocumentedCount { documented: usize, passed: usize },
    /// An argument that is passed is not documented.
    NotDocumented { argument: usize, name: String },
    /// A documented argument is not passed.
    NotPassed { argument: usize, name: String },
    /// An argument is documented at another position.
    DocumentedOrder { name: String, documented: usize, passed: usize },
    /// An argument is documented with another type.
    DocumentedKind { argument: usize, name: String, documented: Kind, passed: Kind },
    /// An argument is documented with another unit.
    DocumentedUnit { argument: usize, name: String, documented: String, passed: String },
}

impl Problem {
    /// Whether the documentation of the node disagrees with its code, and not the image with the contract.
    #[must_use]
    pub fn is_documentation(&self) -> bool {
        matches!(
            self,
            Self::DocumentedCount { .. }
                | Self::NotDocumented { .. }
                | Self::NotPassed { .. }
                | Self::DocumentedOrder { .. }
                | Self::DocumentedKind { .. }
                | Self::DocumentedUnit { .. }
        )
    }

    /// Stable identifier of the kind of problem.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::MissingTracepoint => "missing_tracepoint",
            Self::UnknownTracepoint => "unknown_tracepoint",
            Self::Semaphore { .. } => "semaphore",
            Self::Count { .. } => "argument_count",
            Self::Shape { expected, found, .. } if expected.shape().size != found.size => "argument_size",
            Self::Shape { .. } => "argument_class",
            Self::Order { .. } => "argument_order",
            Self::Unreadable { .. } => "argument_unreadable",
            Self::Variant { .. } => "known_deviation",
            Self::AsDocumented => "as_documented",
            Self::DocumentedCount { .. } => "documented_count",
            Self::NotDocumented { .. } => "not_documented",
            Self::NotPassed { .. } => "not_passed",
            Self::DocumentedOrder { .. } => "documented_order",
            Self::DocumentedKind { .. } => "documented_kind",
            Self::DocumentedUnit { .. } => "documented_unit",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingTracepoint => f.write_str("missing from the image"),
            Self::UnknownTracepoint => f.write_str("not in the contract"),
            Self::Semaphore { expected: true } => f.write_str("has no semaphore"),
            Self::Semaphore { expected: false } => f.write_str("has a semaphore, which the contract does not"),
            Self::Count { expected, found } => write!(f, "passes {found} arguments instead of {expected}"),
            Self::Shape { argument, name, expected, found } => {
                write!(f, "argument {argument} ({name}) is {found}, not {}", expected.shape())?;
                let is_pointer = *found == Kind::Hash32.shape() && expected.shape().class == Class::Signed;
                if is_pointer { f.write_str(": possibly a pointer to it") } else { Ok(()) }
            }
            Self::Order { arguments } => {
                f.write_str("passes in another order: arguments")?;
                arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
            }
            Self::Unreadable { argument, cause } => write!(f, "argument {argument} cannot be read: {cause}"),
            Self::Variant { note } => write!(f, "known deviation: {note}"),
            Self::AsDocumented => f.write_str("passes what is documented, not what the contract says of the code"),
            Self::DocumentedCount { documented, passed } => {
                write!(f, "passes {passed} arguments, {documented} are documented")
            }
            Self::NotDocumented { argument, name } => write!(f, "argument {argument} ({name}) is not documented"),
            Self::NotPassed { argument, name } => write!(f, "documented argument {argument} ({name}) is not passed"),
            Self::DocumentedOrder { name, documented, passed } => {
                write!(f, "argument {passed} is {name}, which is documented as argument {documented}")
            }
            Self::DocumentedKind { argument, name, documented, passed } => {
                write!(f, "argument {argument} ({name}) is {passed}, documented as {documented}")
            }
            Self::DocumentedUnit { argument, name, documented, passed } => {
                write!(f, "argument {argument} ({name}) is in {passed}, documented in {documented}")
            }
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class {
            Class::Unsigned => "unsigned",
            Class::Signed => "signed",
            Class::Float => "floating-point",
        };
        write!(f, "{class} {}-bit", u32::from(self.size) * 8)
    }
}
