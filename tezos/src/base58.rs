//! Base58check encoding of short byte strings.
//!
//! `bs58` divides the number byte by byte and digit by digit, which is a quarter of the time to decode a message of 1 KiB. Here
//! it is an array of 32-bit limbs that is divided by 58^5: five digits a pass, and each step is a multiplication.
use sha2::{Digest, Sha256};

/// Maximum length before encoding: prefix 3, hash 32, checksum 4.
pub(crate) const MAX_BYTES: usize = 39;
/// Buffer length for the encoded text: 39 bytes have at most 54 digits.
pub(crate) const MAX_DIGITS: usize = 55;

/// Bytes of the checksum: the first ones of SHA-256 applied twice.
const CHECKSUM_BYTES: usize = 4;
/// Limbs of the longest number, in 32 bits each.
const LIMBS: usize = MAX_BYTES.div_ceil(4);
/// Digits of a pass.
const GROUP: usize = 5;
/// 58^5: with a remainder below it, a limb divided by it has a quotient of 32 bits.
const DIVISOR: u64 = 58_u64.pow(GROUP as u32);
const ALPHABET: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// Encodes the concatenated parts and their checksum into `out`; `None` if they are too long.
pub(crate) fn encode_check<'o>(parts: [&[u8]; 2], out: &'o mut [u8; MAX_DIGITS]) -> Option<&'o str> {
    // Aligned at the end: leading zeros do not change the number.
    let mut bytes = [0; LIMBS * 4];
    let length = parts.iter().map(|part| part.len()).sum::<usize>() + CHECKSUM_BYTES;
    if length > MAX_BYTES {
        return None;
    }
    let mut rest = bytes.get_mut(LIMBS * 4 - length..)?;
    let mut digest = Sha256::new();
    for part in parts {
        let (place, after) = rest.split_at_mut_checked(part.len())?;
        place.copy_from_slice(part);
        digest.update(part);
        rest = after;
    }
    rest.copy_from_slice(Sha256::digest(digest.finalize()).get(..CHECKSUM_BYTES)?);

    let zeros = bytes.iter().skip(LIMBS * 4 - length).take_while(|byte| **byte == 0).count();
    let start = digits(&bytes, out).checked_sub(zeros)?;
    out.get_mut(start..start + zeros)?.fill(ALPHABET[0]);
    std::str::from_utf8(out.get(start..)?).ok()
}

/// Writes the digits of a big-endian number to the end of `out`; returns where they begin.
fn digits(bytes: &[u8; LIMBS * 4], out: &mut [u8; MAX_DIGITS]) -> usize {
    let mut limbs = [0; LIMBS];
    for (limb, bytes) in limbs.iter_mut().zip(bytes.as_chunks().0) {
        *limb = u32::from_be_bytes(*bytes);
    }
    let mut number = skip_zeros(&mut limbs);
    let mut start = MAX_DIGITS;
    for group in out.as_rchunks_mut::<GROUP>().1.iter_mut().rev() {
        if number.is_empty() {
            break;
        }
        let mut remainder = 0;
        for limb in number.iter_mut() {
            let dividend = remainder << 32 | u64::from(*limb);
            *limb = (dividend / DIVISOR) as u32;
            remainder = dividend % DIVISOR;
        }
        let mut remainder = remainder as u32;
        for digit in group.iter_mut().rev() {
            *digit = ALPHABET[(remainder % 58) as usize];
            remainder /= 58;
        }
        start -= GROUP;
        number = skip_zeros(number);
    }
    // The most significant group has leading zeros.
    start + out.iter().skip(start).take_while(|digit| **digit == ALPHABET[0]).count()
}

fn skip_zeros(limbs: &mut [u32]) -> &mut [u32] {
    let zeros = limbs.iter().take_while(|limb| **limb == 0).count();
    limbs.get_mut(zeros..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expected(parts: [&[u8]; 2]) -> String {
        bs58::encode(parts.concat()).with_check().into_string()
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let mut out = [0; MAX_DIGITS];
        assert!(encode_check([&[255; 3], &[255; 32]], &mut out).is_some());
        assert_eq!(encode_check([&[255; 3], &[255; 33]], &mut out), None);
    }

    #[test]
    fn zeros_are_digits() {
        for length in 0..=35 {
            let bytes = vec![0; length];
            assert_eq!(encode_check([&[], &bytes], &mut [0; MAX_DIGITS]), Some(&*expected([&[], &bytes])));
        }
    }

    proptest! {
        #[test]
        fn equals_bs58(
            zeros in 0..36_usize,
            prefix in proptest::collection::vec(any::<u8>(), 0..=3),
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(255)], 0..=32),
        ) {
            let zeros = vec![0; zeros.min(35 - prefix.len() - bytes.len())];
            for parts in [[&prefix[..], &bytes[..]], [&zeros[..], &bytes[..]]] {
                let mut out = [7; MAX_DIGITS];
                prop_assert_eq!(encode_check(parts, &mut out), Some(&*expected(parts)));
            }
        }
    }
}
