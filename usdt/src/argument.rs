//! Arguments of a tracepoint: `N@OP`, where N is the size in bytes, negative for signed integers and followed by `f` for
//! floating point, and OP an operand as the assembler of the architecture writes it.

use crate::{
    error::Unsupported,
    expression::Expression,
    register::{self, Register},
};

/// Maximum number of arguments of a location. The macros of `sys/sdt.h` allow 12.
pub const MAX_ARGUMENTS: usize = 64;

/// `EM_X86_64`
const X86_64: u16 = object::elf::EM_X86_64;

/// An argument: what is known of it at one location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The text in the note.
    pub raw: String,
    /// Size and class; `None` if the text does not begin with them.
    pub shape: Option<Shape>,
    /// Where the value is.
    pub operand: Result<Operand, Unsupported>,
}

/// Size and class of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Size in bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// How the bytes are read.
    pub class: Class,
}

/// How the bytes of a value are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Unsigned integer, pointer or Boolean.
    Unsigned,
    /// Two's complement.
    Signed,
    /// IEEE 754.
    Float,
}

/// Where a value is when its location is hit. The low [`Shape::size`] bytes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The value itself; an unsigned 64-bit value as the same bits.
    Constant(i64),
    /// A register.
    Register {
        /// The register.
        register: Register,
        /// Number of bits by which it is shifted to the right first: 8 for `%ah`, otherwise 0.
        shift: u8,
    },
    /// The memory at an address.
    Memory(Address),
}

/// An address in the process: the sum of its parts, modulo 2⁶⁴.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// What it is relative to; `None` for an absolute address.
    pub base: Option<Base>,
    /// Added, times its scale.
    pub index: Option<Index>,
    /// Added.
    pub displacement: i64,
}

/// What an address is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The contents of a register.
    Register(Register),
    /// The address of the location that is hit, that is the instruction pointer in a uprobe. Addresses of variables are
    /// expressed so: they hold wherever the image is loaded.
    Location,
}

/// A register times a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// The register.
    pub register: Register,
    /// 1, 2, 4 or 8.
    pub scale: u8,
}

/// What the operands of one location refer to.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// `e_machine`
    pub machine: u16,
    /// Address of the location in the image.
    pub location: u64,
    /// Whether the image is loaded at the addresses that it names (`ET_EXEC`).
    pub is_fixed: bool,
    /// Address of a symbol in the image.
    pub symbol: &'a dyn Fn(&str) -> Result<u64, Unsupported>,
}

impl Argument {
    /// Parses the argument string of a note. Arguments are separated by white space outside of brackets.
    #[must_use]
    pub fn parse_all(text: &str, scope: Scope<'_>) -> Vec<Self> {
        split(text).map(|raw| Self::parse(raw, scope)).collect()
    }

    fn parse(raw: &str, scope: Scope<'_>) -> Self {
        let parts = raw.split_once('@').and_then(|(size, operand)| Some((shape(size)?, operand)));
        let operand = match parts {
            None => Err(Unsupported::Size),
            Some(_) if scope.machine != X86_64 => Err(Unsupported::Machine(scope.machine)),
            Some((shape, operand)) => scope.operand(shape, operand),
        };
        Self { raw: raw.to_owned(), shape: parts.map(|(shape, _)| shape), operand }
    }
}

/// Splits at white space outside of brackets: `-4@[sp, 128]` is one argument.
pub(crate) fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let is_separator = move |letter: char| {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && letter.is_ascii_whitespace()
    };
    text.split(is_separator).filter(|part| !part.is_empty())
}

/// `8`, `-4`, `8f`
fn shape(text: &str) -> Option<Shape> {
    let (number, is_float) = match text.strip_suffix('f') {
        Some(number) => (number, true),
        None => (text, false),
    };
    let (digits, is_signed) = match number.strip_prefix('-') {
        Some(digits) => (digits, true),
        None => (number, false),
    };
    let size = match digits {
        "1" => 1,
        "2" => 2,
        "4" => 4,
        "8" => 8,
        _ => return None,
    };
    let class = match (is_float, is_signed) {
        (true, _) => Class::Float,
        (false, true) => Class::Signed,
        (false, false) => Class::Unsigned,
    };
    Some(Shape { size, class })
}

impl Scope<'_> {
    fn operand(&self, shape: Shape, text: &str) -> Result<Operand, Unsupported> {
        if let Some(value) = text.strip_prefix('$') {
            let value = Expression::parse(value).and_then(|value| self.absolute(value))?;
            // The bits of an unsigned value are those of a negative one.
            let bits = i64::try_from(value).or_else(|_| u64::try_from(value).map(u64::cast_signed));
            return bits.map(Operand::Constant).map_err(|_| Unsupported::Number);
        }
        if let Some(name) = text.strip_prefix('%') {
            let part = register::part(name).filter(|part| part.size >= shape.size);
            let part = part.ok_or_else(|| Unsupported::Register(name.to_owned()))?;
            return Ok(Operand::Register { register: part.register, shift: part.shift });
        }
        let Some((displacement, registers)) = text.split_once('(') else {
            let number = Expression::parse(non_empty(text)?).and_then(|address| self.absolute(address))?;
            return Ok(Operand::Memory(Address { base: None, index: None, displacement: in_range(number)? }));
        };
        let displacement = Expression::parse(displacement)?;
        let registers = registers.strip_suffix(')').ok_or(Unsupported::Operand)?;
        self.memory(displacement, registers).map(Operand::Memory)
    }

    /// `DISPLACEMENT(BASE,INDEX,SCALE)`, each part optional.
    fn memory(&self, displacement: Expression<'_>, registers: &str) -> Result<Address, Unsupported> {
        if registers == "%rip" {
            // Relative to an instruction that the note does not name, unless there is a symbol.
            let symbol = displacement.symbol.ok_or(Unsupported::Operand)?;
            let target = i128::from((self.symbol)(symbol)?) + displacement.number;
            let displacement = in_range(target - i128::from(self.location))?;
            return Ok(Address { base: Some(Base::Location), index: None, displacement });
        }
        let mut parts = registers.split(',').map(str::trim);
        let (base, index, scale) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
        if parts.next().is_some() || (base.is_empty() && index.is_none()) {
            return Err(Unsupported::Operand);
        }
        let base = if base.is_empty() { None } else { Some(Base::Register(whole(base)?)) };
        let scale = match scale {
            None | Some("" | "1") => 1,
            Some("2") => 2,
            Some("4") => 4,
            Some("8") => 8,
            Some(_) => return Err(Unsupported::Operand),
        };
        let index = match index {
            Some(index) => Some(Index { register: whole(index)?, scale }),
            None => None,
        };
        Ok(Address { base, index, displacement: in_range(self.absolute(displacement)?)? })
    }

    /// The value of an expression; a symbol stands for its address.
    fn absolute(&self, expression: Expression<'_>) -> Result<i128, Unsupported> {
        let symbol = match expression.symbol {
            None => 0,
            Some(name) if !self.is_fixed => return Err(Unsupported::Relocated(name.to_owned())),
            Some(name) => (self.symbol)(name)?,
        };
        Ok(expression.number + i128::from(symbol))
    }
}

/// A 64-bit register, which addresses are made of.
fn whole(name: &str) -> Result<Register, Unsupported> {
    let part = name.strip_prefix('%').and_then(register::part).filter(|part| part.size == 8);
    part.map(|part| part.register).ok_or_else(|| Unsupported::Register(name.to_owned()))
}

fn non_empty(text: &str) -> Result<&str, Unsupported> {
    if text.is_empty() { Err(Unsupported::Operand) } else { Ok(text) }
}

fn in_range(number: i128) -> Result<i64, Unsupported> {
    i64::try_from(number).map_err(|_| Unsupported::Number)
}
