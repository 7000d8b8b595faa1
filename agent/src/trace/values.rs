//! What of an argument the probe fetches, and what the fetched value means.

use bytes::Bytes;
use chainscope_ebpf::trace::{ArgumentValue, Data, End, Fetch, Value as Captured};
use chainscope_trace::{Incomplete, Value};
use chainscope_usdt::{Argument, Class, Kind, Length, Scalar};

/// How an argument of this type is fetched. At most `max_payload` bytes of one that has a length are.
pub(super) fn fetch_of(kind: Kind, max_payload: u64) -> Fetch {
    match kind {
        Kind::CString { .. } => Fetch::String,
        Kind::Hash32 => Fetch::Bytes(32),
        Kind::Bytes(Some(Length::Fixed(length))) => {
            Fetch::Bytes(u32::try_from(length.min(max_payload)).unwrap_or(u32::MAX))
        }
        Kind::Bytes(Some(Length::Argument(index))) => Fetch::Payload(index),
        Kind::Pointer(Some(scalar)) => Fetch::Bytes(u32::from(scalar.shape().size)),
        Kind::Scalar(_) | Kind::Bytes(None) | Kind::Pointer(None) => Fetch::Value,
    }
}

/// The value of an argument of this type. `arguments` are all those of the event, `argument` is what the note says of it.
pub(super) fn value_of(kind: Kind, argument: &Argument, captured: ArgumentValue, arguments: &[Captured]) -> Value {
    let value = match captured.value {
        Captured::Known(value) => value,
        Captured::Unsupported => return Value::Unsupported,
        Captured::Unreadable(address) => return Value::Unreadable { address },
    };
    match (kind, captured.data) {
        (Kind::Scalar(scalar), _) => number(scalar, passed_bits(scalar, argument, value)),
        (_, None) => Value::Unsigned(value),
        (Kind::CString { .. }, Some(data)) => text(value, data),
        (Kind::Pointer(Some(scalar)), Some(data)) if data.end == End::Whole => {
            number(scalar, little_endian(&data.bytes))
        }
        (Kind::Pointer(_), Some(_)) => Value::Unreadable { address: value },
        (kind, Some(data)) => bytes(value, data, claimed(kind, arguments)),
    }
}

/// The value as bits of a type. A float that is passed in 4 bytes is one of 4 bytes, whatever the contract says.
fn passed_bits(scalar: Scalar, argument: &Argument, value: u64) -> u64 {
    let size = argument.shape.map(|shape| shape.size);
    match (scalar, size) {
        (Scalar::F64, Some(4)) => u32::try_from(value).map_or(value, |bits| f64::from(f32::from_bits(bits)).to_bits()),
        _ => value,
    }
}

fn number(scalar: Scalar, bits: u64) -> Value {
    let shape = scalar.shape();
    let unused = 64 - 8 * u32::from(shape.size);
    match (scalar, shape.class) {
        (Scalar::Bool, _) => Value::Bool(bits & 0xff != 0),
        (_, Class::Signed) => Value::Signed((bits << unused).cast_signed() >> unused),
        (_, Class::Unsigned) => Value::Unsigned(bits << unused >> unused),
        (Scalar::F32, Class::Float) => {
            Value::Float(f64::from(f32::from_bits(u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0))))
        }
        (_, Class::Float) => Value::Float(f64::from_bits(bits)),
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Text of which nothing could be read is not an empty text.
fn text(address: u64, data: Data) -> Value {
    match data.end {
        End::Whole => Value::Text { bytes: Bytes::from(data.bytes), is_truncated: false },
        End::Limit => Value::Text { bytes: Bytes::from(data.bytes), is_truncated: true },
        End::Unreadable | End::RingFull | End::Unknown if data.bytes.is_empty() => Value::Unreadable { address },
        End::Unreadable | End::RingFull | End::Unknown => {
            Value::Text { bytes: Bytes::from(data.bytes), is_truncated: true }
        }
    }
}

fn bytes(address: u64, data: Data, claimed: Option<u64>) -> Value {
    let captured = data.bytes.len() as u64;
    let incomplete = match data.end {
        // As many as were to be fetched.
        End::Whole => claimed.is_some_and(|claimed| claimed > captured).then_some(Incomplete::Limit),
        End::Limit => Some(Incomplete::Limit),
        End::RingFull => Some(Incomplete::Dropped),
        End::Unreadable => Some(Incomplete::Unreadable),
        End::Unknown => return Value::Unreadable { address },
    };
    let claimed = claimed.unwrap_or(captured);
    if data.bytes.is_empty() && incomplete == Some(Incomplete::Unreadable) {
        return Value::Unreadable { address };
    }
    Value::Bytes { bytes: Bytes::from(data.bytes), claimed, incomplete }
}

/// The number of bytes that there are to be.
fn claimed(kind: Kind, arguments: &[Captured]) -> Option<u64> {
    match kind {
        Kind::Hash32 => Some(32),
        Kind::Bytes(Some(Length::Fixed(length))) => Some(length),
        Kind::Bytes(Some(Length::Argument(index))) => match arguments.get(index)? {
            Captured::Known(length) => Some(*length),
            Captured::Unsupported | Captured::Unreadable(_) => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chainscope_usdt::Shape;

    fn argument(size: u8, class: Class) -> Argument {
        let operand = Err(chainscope_usdt::Unsupported::Operand);
        Argument { raw: String::new(), shape: Some(Shape { size, class }), operand }
    }

    fn scalar(kind: Scalar, argument: &Argument, value: u64) -> Value {
        let captured = ArgumentValue { value: Captured::Known(value), data: None };
        value_of(Kind::Scalar(kind), argument, captured, &[])
    }

    fn pointed(kind: Kind, bytes: &[u8], end: End) -> Value {
        let data = Some(Data { bytes: bytes.to_vec(), end });
        let captured = ArgumentValue { value: Captured::Known(0x1000), data };
        value_of(kind, &argument(8, Class::Unsigned), captured, &[Captured::Known(9)])
    }

    #[test]
    fn numbers_have_the_type_of_the_contract() {
        let long = argument(8, Class::Signed);
        assert_eq!(scalar(Scalar::I64, &long, u64::MAX), Value::Signed(-1));
        assert_eq!(scalar(Scalar::U64, &long, u64::MAX), Value::Unsigned(u64::MAX));
        assert_eq!(scalar(Scalar::I32, &argument(4, Class::Unsigned), 0xffff_fff9), Value::Signed(-7));
        assert_eq!(scalar(Scalar::Bool, &argument(4, Class::Signed), 0x100), Value::Bool(false));
        assert_eq!(scalar(Scalar::F64, &argument(8, Class::Float), 1.5_f64.to_bits()), Value::Float(1.5));
        let short = u64::from(2.5_f32.to_bits());
        assert_eq!(scalar(Scalar::F32, &argument(4, Class::Float), short), Value::Float(2.5));
        assert_eq!(scalar(Scalar::F64, &argument(4, Class::Float), short), Value::Float(2.5));
    }

    #[test]
    fn what_is_missing_is_marked() {
        let text = Kind::CString { max: None };
        assert_eq!(pointed(text, b"", End::Whole), Value::text(""));
        assert_eq!(pointed(text, b"", End::Unreadable), Value::Unreadable { address: 0x1000 });
        let cut = Value::Text { bytes: Bytes::from_static(b"ab"), is_truncated: true };
        assert_eq!((pointed(text, b"ab", End::Limit), pointed(text, b"ab", End::Unreadable)), (cut.clone(), cut));
        let payload = Kind::Bytes(Some(Length::Argument(0)));
        let dropped =
            Value::Bytes { bytes: Bytes::from_static(b"ab"), claimed: 9, incomplete: Some(Incomplete::Dropped) };
        assert_eq!(pointed(payload, b"ab", End::RingFull), dropped);
        let pointer = Kind::Pointer(Some(Scalar::I32));
        assert_eq!(pointed(pointer, &[0xfe, 0xff, 0xff, 0xff], End::Whole), Value::Signed(-2));
        assert_eq!(pointed(pointer, &[1, 0], End::Unreadable), Value::Unreadable { address: 0x1000 });
    }
}
