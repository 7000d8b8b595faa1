//! Frames of stacks.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
    sync::Arc,
};

use chainscope_proto::v1::FunctionCategory;

/// Category of a frame's code: origin and language.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// Rust code of the node.
    NodeRust,
    /// Code of the node in another language.
    NodeCpp,
    /// Code of libraries.
    #[default]
    SystemLib,
}

impl Category {
    /// Name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NodeRust => "nodeRust",
            Self::NodeCpp => "nodeCpp",
            Self::SystemLib => "systemLib",
        }
    }

    /// From the wire; an unknown number is `SystemLib`.
    pub(crate) fn of_wire(number: i32) -> Self {
        match FunctionCategory::try_from(number) {
            Ok(FunctionCategory::NodeRust) => Self::NodeRust,
            Ok(FunctionCategory::NodeCpp) => Self::NodeCpp,
            _ => Self::SystemLib,
        }
    }

    /// Number on the wire.
    pub(crate) fn to_wire(self) -> i32 {
        (match self {
            Self::NodeRust => FunctionCategory::NodeRust,
            Self::NodeCpp => FunctionCategory::NodeCpp,
            Self::SystemLib => FunctionCategory::SystemLib,
        })
        .into()
    }
}

/// A code position. Frames that are displayed by the same name are equal.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    /// File offset of the return address; the address itself for code without a file.
    pub offset: u64,
    /// Base name of the file, or a text in brackets; empty if unresolved.
    pub executable: Arc<str>,
    /// Demangled name of the function, if there is a symbol.
    pub function: Option<Arc<str>>,
    /// Category of the code.
    pub category: Category,
    /// Whether the function was inlined into its caller, which has the same offset.
    pub inlined: bool,
    /// Whether the file was deleted or replaced, so that the name is uncertain.
    pub deleted: bool,
}

impl Frame {
    /// Whether the frame has a name. The API shows an unresolved frame and its subtree as `unknown`.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        !self.executable.is_empty()
    }

    /// Order of frames of equal value in the API, which shows 32 bits of the offset.
    fn key(&self) -> (u32, &str, Option<&str>, Category) {
        (self.offset as u32, &self.executable, self.function.as_deref(), self.category)
    }
}

impl PartialEq for Frame {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key() && self.offset == other.offset
    }
}

impl Eq for Frame {}

impl Hash for Frame {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.offset.hash(state);
        self.executable.hash(state);
        self.function.hash(state);
    }
}

impl PartialOrd for Frame {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Frame {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key()).then(self.offset.cmp(&other.offset))
    }
}
