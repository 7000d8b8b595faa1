//! Errors of reading images and contracts. Texts of a file are quoted and escaped (`{:?}`).

/// The tracepoints of a file cannot be read at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another kind of file.
    #[error("not an ELF file")]
    NotElf,
    /// Its headers are cut or inconsistent.
    #[error("not a readable ELF file: {0}")]
    Elf(String),
    /// A table is larger than any real one.
    #[error("{what}: {size} are more than {max}")]
    TooLarge {
        /// The table and its unit.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The maximum.
        max: u64,
    },
}

impl From<object::read::Error> for Error {
    fn from(cause: object::read::Error) -> Self {
        Self::Elf(cause.to_string())
    }
}

/// A note that cannot be read. The other notes of the image are unaffected, unless its length is wrong: then the rest of its
/// section has no beginning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("note {index} of section {section:?}{}: {cause}", .name.as_ref().map(|name| format!(" ({name:?})")).unwrap_or_default())]
pub struct NoteError {
    /// Name of the section.
    pub section: String,
    /// Position of the note in the section, from 1.
    pub index: usize,
    /// Provider and name, as far as they can be read.
    pub name: Option<String>,
    /// What is wrong.
    pub cause: String,
}

/// Why the place of an argument is not known. Its note and the other arguments are unaffected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// Arguments are read on x86-64 only.
    #[error("argument of another architecture (ELF machine {0})")]
    Machine(u16),
    /// The size before `@` is missing, or none of 1, 2, 4, 8.
    #[error("size unknown")]
    Size,
    /// No operand of the x86-64 assembler that holds a value.
    #[error("operand unknown")]
    Operand,
    /// A register without an integer, or narrower than the argument.
    #[error("register {0:?} cannot hold it")]
    Register(String),
    /// A number of the operand does not fit.
    #[error("number out of range")]
    Number,
    /// The image has no symbol table, or the symbol is not in it.
    #[error("symbol {0:?} is not in the symbol table")]
    NoSymbol(String),
    /// Static variables of several source files.
    #[error("symbol {0:?} has several addresses")]
    AmbiguousSymbol(String),
    /// The absolute address of a symbol is known only when the image is loaded.
    #[error("absolute address of symbol {0:?} in a position-independent image")]
    Relocated(String),
}

/// A contract file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// Invalid TOML, a value of the wrong type, or an unknown key; the message has the line.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// The file contradicts itself.
    #[error("line {line}: {message}")]
    Invalid {
        /// Line of the file, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
}
