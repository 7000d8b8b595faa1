//! Reader of the binary encoding of Octez (`lib_data_encoding`): big-endian integers; `dyn` is a u32 length and that
//! many bytes.
use std::marker::PhantomData;

use serde::{Serialize, Serializer};

/// Kind of a decoding error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A field of fixed length exceeds the remaining bytes.
    #[error("{needed} bytes needed, {left} left")]
    Short {
        /// Length of the field.
        needed: usize,
        /// Remaining bytes.
        left: usize,
    },
    /// A length prefix exceeds the remaining bytes.
    #[error("length {length} exceeds the {left} bytes left")]
    Length {
        /// Value of the length prefix.
        length: u32,
        /// Remaining bytes.
        left: usize,
    },
    /// Bytes follow the last field of the message.
    #[error("{0} bytes after the end of the message")]
    Trailing(usize),
    /// A boolean other than 00 and ff.
    #[error("invalid boolean 0x{0:02x}")]
    Boolean(u8),
    /// An unknown case of a union.
    #[error("invalid {what} tag 0x{tag:02x}")]
    Tag {
        /// Name of the union.
        what: &'static str,
        /// Value of the tag.
        tag: u8,
    },
    /// A Merkle path deeper than any tree.
    #[error("path deeper than {0}")]
    Deep(usize),
    /// A message tag that no version of Octez defines.
    #[error("unknown tag")]
    UnknownTag,
    /// The length prefix of a message differs from the number of bytes that follow it.
    #[error("length prefix {prefix} for {bytes} bytes")]
    Frame {
        /// Value of the length prefix.
        prefix: u32,
        /// Number of bytes that follow.
        bytes: usize,
    },
    /// A message that exceeds the maximum length.
    #[error("message length {length} exceeds {limit}")]
    TooLong {
        /// Value of the length prefix.
        length: u32,
        /// Maximum length.
        limit: u64,
    },
    /// A message of which only the first bytes were kept, because the memory budget had no more.
    #[error("only the first bytes of {length} were decoded: the memory for messages is used up")]
    OutOfMemory {
        /// Length of the message, frame included.
        length: u64,
    },
    /// A message of a DAL node.
    #[error("DAL messages are not decoded")]
    Dal,
}

/// A decoding error and its offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) offset: usize,
    pub(crate) cause: Cause,
}

/// A cursor over encoded bytes that tracks the offset in the message.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    offset: usize,
    /// Whether the bytes are a prefix of a longer message: a field that ends beyond the prefix is then decoded as far
    /// as possible.
    truncated: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { rest: bytes, offset, truncated: false }
    }

    /// A reader over the prefix of a longer message.
    pub(crate) fn of_prefix(bytes: &'a [u8], offset: usize) -> Self {
        Self { rest: bytes, offset, truncated: true }
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

    /// A boolean: 00 is false, ff is true.
    pub(crate) fn boolean(&mut self) -> Result<bool, Fault> {
        let here = self.clone();
        match self.u8()? {
            0x00 => Ok(false),
            0xff => Ok(true),
            other => Err(here.fault(Cause::Boolean(other))),
        }
    }

    /// All remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.offset += self.rest.len();
        std::mem::take(&mut self.rest)
    }

    /// A reader over a `dyn` field: the bytes announced by a u32 length.
    pub(crate) fn dynamic(&mut self) -> Result<Self, Fault> {
        let before = self.clone();
        let length = self.u32()?;
        let left = self.rest.len();
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        if wanted > left {
            if !self.truncated {
                return Err(before.fault(Cause::Length { length, left }));
            }
            let part = self.clone();
            self.rest();
            return Ok(part);
        }
        let offset = self.offset;
        let rest = self.take(wanted)?;
        Ok(Self { rest, offset, truncated: false })
    }

    /// Checks that all bytes were read.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        if self.rest.is_empty() || self.truncated {
            return Ok(());
        }
        Err(self.fault(Cause::Trailing(self.rest.len())))
    }
}

/// A value that is decoded without allocation, so that it can be decoded repeatedly from the same bytes.
pub(crate) trait Decode<'a>: Sized {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Fault>;
}

/// A list that extends to the end of its reader. Validated once when read; decoded again by each iteration.
#[derive(Clone, Debug)]
pub struct List<'a, T> {
    bytes: &'a [u8],
    item: PhantomData<T>,
}

#[expect(private_bounds, reason = "items are decoded by this crate only")]
impl<'a, T: Decode<'a>> List<'a, T> {
    pub(crate) fn decode_rest(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let bytes = reader.rest;
        let mut items = reader.clone();
        let mut valid = 0;
        while !items.is_empty() {
            match T::decode(&mut items) {
                Ok(_) => valid = bytes.len() - items.rest.len(),
                Err(_) if reader.truncated => break,
                Err(fault) => return Err(fault),
            }
        }
        reader.rest();
        Ok(Self { bytes: bytes.get(..valid).unwrap_or_default(), item: PhantomData })
    }

    /// A list after its length in bytes.
    pub(crate) fn decode_dynamic(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Self::decode_rest(&mut reader.dynamic()?)
    }

    /// The items, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let mut reader = Reader::of_prefix(self.bytes, 0);
        std::iter::from_fn(move || if reader.is_empty() { None } else { T::decode(&mut reader).ok() })
    }

    /// Whether the list has no items.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a, T: Decode<'a> + Serialize> Serialize for List<'a, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// An item after its length in bytes.
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
