//! A frame of a stack, by what it is shown as.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
    sync::Arc,
};

use chainscope_proto::v1::FunctionCategory;

/// Whose code it is, and in which language.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// The node's own code in Rust.
    NodeRust,
    /// The node's own code in any other language.
    NodeCpp,
    /// Everything else.
    #[default]
    SystemLib,
}

impl Category {
    /// Its name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NodeRust => "nodeRust",
            Self::NodeCpp => "nodeCpp",
            Self::SystemLib => "systemLib",
        }
    }

    pub(crate) fn of_wire(number: i32) -> Self {
        match FunctionCategory::try_from(number) {
            Ok(FunctionCategory::NodeRust) => Self::NodeRust,
            Ok(FunctionCategory::NodeCpp) => Self::NodeCpp,
            _ => Self::SystemLib,
        }
    }

    pub(crate) fn to_wire(self) -> i32 {
        (match self {
            Self::NodeRust => FunctionCategory::NodeRust,
            Self::NodeCpp => FunctionCategory::NodeCpp,
            Self::SystemLib => FunctionCategory::SystemLib,
        })
        .into()
    }
}

/// Where an instruction is. Two frames are the same if they are shown by the same name.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    /// File offset of the return address; of code in no file its address.
    pub offset: u64,
    /// Base name of the file, or a text in brackets; empty if nothing is known.
    pub executable: Arc<str>,
    /// Demangled name of the function, if a symbol covers the place.
    pub function: Option<Arc<str>>,
    /// Whose code it is.
    pub category: Category,
    /// The function was inlined into its caller, which has the same offset.
    pub inlined: bool,
    /// The file was deleted or replaced, and the name is not known for certain.
    pub deleted: bool,
}

impl Frame {
    /// Whether the frame can be named at all. What is not cuts its subtree off: the API shows it as `unknown`.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        !self.executable.is_empty()
    }

    /// What the API orders equal values by. It shows 32 bits of the offset.
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
