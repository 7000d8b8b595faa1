//! JSON representation of values, and truncated serialisation for previews.
use std::{
    fmt::{self, Write as _},
    io,
};

use serde::{Serialize, Serializer};

/// Bytes displayed as hexadecimal. Written in pieces, so that a truncated serialisation does not encode all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in self.0.chunks(128) {
            let mut digits = [0; 256];
            let digits = digits.get_mut(..2 * piece.len()).ok_or(fmt::Error)?;
            hex::encode_to_slice(piece, digits).map_err(|_| fmt::Error)?;
            f.write_str(std::str::from_utf8(digits).map_err(|_| fmt::Error)?)?;
        }
        Ok(())
    }
}

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Text received from a peer: any bytes. Invalid UTF-8 is replaced by U+FFFD; JSON escapes control characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'a>(pub &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in self.0.utf8_chunks() {
            f.write_str(piece.valid())?;
            if !piece.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        Ok(())
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Seconds since 1970, displayed as RFC 3339; outside the years 0 to 9999 displayed as the number, as Octez does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp(pub i64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 0000-01-01T00:00:00Z and 9999-12-31T23:59:59Z
        if !(-62_167_219_200..=253_402_300_799).contains(&self.0) {
            return write!(f, "{}", self.0);
        }
        let (year, month, day) = civil(self.0.div_euclid(86_400));
        let second = self.0.rem_euclid(86_400);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the proleptic Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years are counted from March, so that the leap day is the last one; an era of 400 years has 146,097 days.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// The first bytes of a value's compact JSON, at most `limit`, truncated at a character boundary.
///
/// Stops serialising at the limit. `None` if the value cannot be serialised.
pub fn first_bytes(value: &impl Serialize, limit: usize) -> Option<String> {
    let mut head = Truncated { bytes: Vec::with_capacity(limit), limit };
    let result = serde_json::to_writer(&mut head, value);
    if result.is_err() && head.bytes.len() < limit {
        return None;
    }
    let mut bytes = head.bytes;
    if let Err(error) = std::str::from_utf8(&bytes) {
        bytes.truncate(error.valid_up_to());
    }
    String::from_utf8(bytes).ok()
}

/// A writer that accepts bytes up to its limit, then none.
struct Truncated {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Truncated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.limit - self.bytes.len());
        self.bytes.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
