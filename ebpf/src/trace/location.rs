//! Locations to attach to, and how their arguments are fetched.

use chainscope_usdt::{Address, Argument, Base, Class, Index, Operand, Register};

use super::abi::{ArgumentSpec, LocationSpec, MAX_ARGUMENTS, fetch, operand};

/// `NO_REGISTER`.
const NO_REGISTER: u8 = 255;
/// `INSTRUCTION_POINTER`.
const INSTRUCTION_POINTER: u8 = 16;

/// A place in a file where hits are captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Offset in the file.
    pub offset: u64,
    /// Offset in the file of the semaphore, if there is one.
    pub semaphore: Option<u64>,
    /// Where the arguments are, and what is fetched of each.
    pub arguments: Vec<(Argument, Fetch)>,
}

/// What is fetched of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// The value.
    Value,
    /// The string that it points to, up to its NUL.
    String,
    /// This number of bytes that it points to. No limit applies.
    Bytes(u32),
    /// The bytes that it points to, as many as the argument with this index, from 0, says.
    Payload(usize),
}

/// A location cannot be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocationError {
    /// Too many arguments.
    #[error("{0} arguments are more than {MAX_ARGUMENTS}")]
    TooManyArguments(usize),
    /// A payload without length.
    #[error("the length of argument {argument} is that of argument {length}, which there is not")]
    NoLength {
        /// Number of the payload, from 1.
        argument: usize,
        /// Number of its length, from 1.
        length: usize,
    },
}

impl Location {
    /// The location as the programs in the kernel read it.
    pub(super) fn compile(&self) -> Result<LocationSpec, LocationError> {
        let count = self.arguments.len();
        let mut spec = LocationSpec::default();
        if count > MAX_ARGUMENTS {
            return Err(LocationError::TooManyArguments(count));
        }
        for (index, (slot, (argument, fetch))) in spec.arguments.iter_mut().zip(&self.arguments).enumerate() {
            *slot = compile_argument(argument);
            (slot.fetch, slot.length) = match *fetch {
                Fetch::Value => (fetch::VALUE, 0),
                Fetch::String => (fetch::STRING, 0),
                Fetch::Bytes(length) => (fetch::BYTES, length),
                Fetch::Payload(length) if length < count => (fetch::PAYLOAD, u32::try_from(length).unwrap_or(u32::MAX)),
                Fetch::Payload(length) => {
                    return Err(LocationError::NoLength { argument: index + 1, length: length + 1 });
                }
            };
        }
        spec.count = u32::try_from(count).unwrap_or(0);
        Ok(spec)
    }
}

fn compile_argument(argument: &Argument) -> ArgumentSpec {
    let (Some(shape), Ok(operand)) = (argument.shape, &argument.operand) else {
        return ArgumentSpec { operand: operand::UNSUPPORTED, ..ArgumentSpec::default() };
    };
    let spec = ArgumentSpec {
        size: shape.size,
        is_signed: u8::from(shape.class == Class::Signed),
        base: NO_REGISTER,
        index: NO_REGISTER,
        ..ArgumentSpec::default()
    };
    match *operand {
        Operand::Constant(number) => {
            ArgumentSpec { operand: operand::CONSTANT, number: number.cast_unsigned(), ..spec }
        }
        Operand::Register { register, shift } => {
            ArgumentSpec { operand: operand::REGISTER, base: saved(register), shift, ..spec }
        }
        Operand::Memory(Address { base, index, displacement }) => {
            let base = match base {
                None => NO_REGISTER,
                Some(Base::Location) => INSTRUCTION_POINTER,
                Some(Base::Register(register)) => saved(register),
            };
            let (index, scale) = match index {
                None => (NO_REGISTER, 0),
                Some(Index { register, scale }) => (saved(register), scale),
            };
            ArgumentSpec { operand: operand::MEMORY, base, index, scale, number: displacement.cast_unsigned(), ..spec }
        }
    }
}

/// Index of a register in `struct pt_regs`.
fn saved(register: Register) -> u8 {
    match register {
        Register::R15 => 0,
        Register::R14 => 1,
        Register::R13 => 2,
        Register::R12 => 3,
        Register::Rbp => 4,
        Register::Rbx => 5,
        Register::R11 => 6,
        Register::R10 => 7,
        Register::R9 => 8,
        Register::R8 => 9,
        Register::Rax => 10,
        Register::Rcx => 11,
        Register::Rdx => 12,
        Register::Rsi => 13,
        Register::Rdi => 14,
        Register::Rsp => 19,
    }
}
