//! Names of the general-purpose registers of x86-64.

/// A general-purpose register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names of the architecture")]
pub enum Register {
    Rax,
    Rbx,
    Rcx,
    Rdx,
    Rsi,
    Rdi,
    Rbp,
    Rsp,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

/// Each register with the names of its low 8, 4, 2 and 1 bytes.
const NAMES: [(Register, [&str; 4]); 16] = [
    (Register::Rax, ["rax", "eax", "ax", "al"]),
    (Register::Rbx, ["rbx", "ebx", "bx", "bl"]),
    (Register::Rcx, ["rcx", "ecx", "cx", "cl"]),
    (Register::Rdx, ["rdx", "edx", "dx", "dl"]),
    (Register::Rsi, ["rsi", "esi", "si", "sil"]),
    (Register::Rdi, ["rdi", "edi", "di", "dil"]),
    (Register::Rbp, ["rbp", "ebp", "bp", "bpl"]),
    (Register::Rsp, ["rsp", "esp", "sp", "spl"]),
    (Register::R8, ["r8", "r8d", "r8w", "r8b"]),
    (Register::R9, ["r9", "r9d", "r9w", "r9b"]),
    (Register::R10, ["r10", "r10d", "r10w", "r10b"]),
    (Register::R11, ["r11", "r11d", "r11w", "r11b"]),
    (Register::R12, ["r12", "r12d", "r12w", "r12b"]),
    (Register::R13, ["r13", "r13d", "r13w", "r13b"]),
    (Register::R14, ["r14", "r14d", "r14w", "r14b"]),
    (Register::R15, ["r15", "r15d", "r15w", "r15b"]),
];

/// Names of the second byte of a register.
const SECOND_BYTES: [(&str, Register); 4] =
    [("ah", Register::Rax), ("bh", Register::Rbx), ("ch", Register::Rcx), ("dh", Register::Rdx)];

/// A part of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) register: Register,
    /// Size in bytes.
    pub(crate) size: u8,
    /// Position of its lowest bit in the register.
    pub(crate) shift: u8,
}

/// Finds a name without its `%`.
pub(crate) fn part(name: &str) -> Option<Part> {
    if let Some((_, register)) = SECOND_BYTES.iter().find(|(second, _)| *second == name) {
        return Some(Part { register: *register, size: 1, shift: 8 });
    }
    NAMES.iter().find_map(|(register, names)| {
        let (_, size) = names.iter().zip([8, 4, 2, 1]).find(|(known, _)| **known == name)?;
        Some(Part { register: *register, size, shift: 0 })
    })
}

impl Register {
    /// Name of the whole register, without `%`.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(register, _)| *register == self).map_or("", |(_, names)| names[0])
    }
}
