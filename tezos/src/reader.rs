//! Reads the binary encoding of Octez (`lib_data_encoding`): big-endian integers, `dyn` = u32 length and that many bytes.
use std::marker::PhantomData;

use serde::{Serialize, Serializer};

/// What is wrong with an encoded message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A fixed field goes beyond the end.
    #[error("{needed} bytes needed, {left} left")]
    Short {
        /// Length of the field.
        needed: usize,
        /// Bytes there are.
        left: usize,
    },
    /// A length prefix goes beyond the end.
    #[error("length {length} exceeds the {left} bytes left")]
    Length {
        /// As it says.
        length: u32,
        /// Bytes there are.
        left: usize,
    },
    /// The message goes on after its last field.
    #[error("{0} bytes after the end of the message")]
    Trailing(usize),
    /// Neither 00 nor ff.
    #[error("invalid boolean 0x{0:02x}")]
    Boolean(u8),
    /// Not a case of a union.
    #[error("invalid {what} tag 0x{tag:02x}")]
    Tag {
        /// Name of the union.
        what: &'static str,
        /// As it is.
        tag: u8,
    },
    /// The path of a Merkle tree that no tree has.
    #[error("path deeper than {0}")]
    Deep(usize),
    /// A tag that no version of Octez knows.
    #[error("unknown tag")]
    UnknownTag,
    /// The u32 at the start of a message is not the length of what follows.
    #[error("length prefix {prefix} for {bytes} bytes")]
    Frame {
        /// As it says.
        prefix: u32,
        /// Bytes that follow.
        bytes: usize,
    },
    /// Longer than any message may be.
    #[error("message length {length} exceeds {limit}")]
    TooLong {
        /// As the prefix says.
        length: u32,
        /// Octez's limit.
        limit: u64,
    },
    /// The messages of DAL nodes.
    #[error("DAL messages are not decoded")]
    Dal,
}

/// A cause and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) offset: usize,
    pub(crate) cause: Cause,
}

/// A cursor over encoded bytes that knows their offset in the message.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    offset: usize,
    /// The message is cut: what ends at the cut is kept as far as it goes.
    cut: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { rest: bytes, offset, cut: false }
    }

    /// Over the first part of a longer message.
    pub(crate) fn of_prefix(bytes: &'a [u8], offset: usize) -> Self {
        Self { rest: bytes, offset, cut: true }
    }

    pub(crate) fn fault(&self, cause: Cause) -> Fault {
        Fault { offset: self.offset, cause }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let Some((head, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.fault(Cause::Short { needed: length, left: self.rest.len() }));
        };
        self.rest = rest;
        self.offset += length;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], Fault> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.fault(Cause::Short { needed: N, left: self.rest.len() }));
        };
        self.rest = rest;
        self.offset += N;
        Ok(head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Fault> {
        self.array::<1>().map(|[byte]| *byte)
    }

    pub(crate) fn i8(&mut self) -> Result<i8, Fault> {
        self.array().copied().map(i8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Fault> {
        self.array().copied().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().copied().map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Fault> {
        self.array().copied().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Fault> {
        self.array().copied().map(i64::from_be_bytes)
    }

    /// 00 is false, ff is true.
    pub(crate) fn boolean(&mut self) -> Result<bool, Fault> {
        let fault = self.clone();
        match self.u8()? {
            0x00 => Ok(false),
            0xff => Ok(true),
            other => Err(fault.fault(Cause::Boolean(other))),
        }
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.offset += self.rest.len();
        std::mem::take(&mut self.rest)
    }

    /// A reader over what a u32 length announces.
    pub(crate) fn dynamic(&mut self) -> Result<Self, Fault> {
        let before = self.clone();
        let length = self.u32()?;
        let left = self.rest.len();
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        if wanted > left {
            if !self.cut {
                return Err(before.fault(Cause::Length { length, left }));
            }
            let part = self.clone();
            self.rest();
            return Ok(part);
        }
        let offset = self.offset;
        let rest = self.take(wanted)?;
        Ok(Self { rest, offset, cut: false })
    }

    /// Everything must have been read.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        if self.rest.is_empty() || self.cut {
            return Ok(());
        }
        Err(self.fault(Cause::Trailing(self.rest.len())))
    }
}

/// Something that can be read again and again from the same bytes, without allocation.
pub(crate) trait Decode<'a>: Sized {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault>;
}

/// A list that goes to the end of its reader. Checked once when read; decoded again whenever it is walked.
#[derive(Clone, Debug)]
pub struct List<'a, T> {
    bytes: &'a [u8],
    item: PhantomData<T>,
}

#[expect(private_bounds, reason = "what a list holds is this crate's affair")]
impl<'a, T: Decode<'a>> List<'a, T> {
    pub(crate) fn decode_rest(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let bytes = reader.rest;
        let mut walker = reader.clone();
        let mut good = 0;
        while !walker.is_empty() {
            match T::decode(&mut walker) {
                Ok(_) => good = bytes.len() - walker.rest.len(),
                Err(_) if reader.cut => break,
                Err(fault) => return Err(fault),
            }
        }
        reader.rest();
        Ok(Self { bytes: bytes.get(..good).unwrap_or_default(), item: PhantomData })
    }

    /// A list behind its length in bytes.
    pub(crate) fn decode_dynamic(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Self::decode_rest(&mut reader.dynamic()?)
    }

    /// The items, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let mut reader = Reader::of_prefix(self.bytes, 0);
        std::iter::from_fn(move || if reader.is_empty() { None } else { T::decode(&mut reader).ok() })
    }

    /// No items.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a, T: Decode<'a> + Serialize> Serialize for List<'a, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// An item behind its own length in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Dynamic<T>(pub(crate) T);

impl<'a, T: Decode<'a>> Decode<'a> for Dynamic<T> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let mut inner = reader.dynamic()?;
        let item = T::decode(&mut inner)?;
        inner.finish()?;
        Ok(Self(item))
    }
}

impl<T: Serialize> Serialize for Dynamic<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}
