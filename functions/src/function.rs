//! A function that is selected, and its copies.

/// Code of a function at one place: compilers make copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Virtual address, as in the file.
    pub address: u64,
    /// Size in bytes; 0 if it is not known.
    pub size: u64,
}

/// A function that is selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Demangled name.
    pub name: String,
    /// Symbol in the file.
    pub symbol: String,
    /// Its copies.
    pub parts: Vec<Part>,
    /// Code of it that is apart because it is rarely executed.
    pub cold: Vec<Part>,
}
