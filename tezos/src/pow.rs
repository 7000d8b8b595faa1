//! Proof of work of an identity (Octez `lib_crypto/crypto_box.ml`).
//!
//! The Blake2b-256 of public key and stamp, read as a *little-endian* integer, must not exceed the target of the
//! difficulty.
use crate::hash::blake2b_256;

/// Length of a proof-of-work stamp, in bytes.
pub const STAMP_BYTES: usize = 24;

/// Maximum accepted hash, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target([u8; 32]);

impl Target {
    /// Target of a difficulty in bits, from 0 (every hash is accepted) to 256; values outside are clamped.
    ///
    /// The arithmetic is that of Octez: the fractional part scales a mantissa of 54 bits.
    pub fn from_difficulty(difficulty: f64) -> Self {
        let difficulty = if difficulty.is_nan() { 0.0 } else { difficulty.clamp(0.0, 256.0) };
        let shift = difficulty.trunc() as u32;
        let fraction = difficulty.fract();
        let mantissa: u64 = if fraction == 0.0 { (1 << 54) - 1 } else { (2f64.powf(54.0 - fraction)).trunc() as u64 };
        let mut bytes = [0; 32];
        if shift < 202 {
            // (mantissa << up) with all lower bits set
            let up = 202 - shift;
            set_bits(&mut bytes, mantissa, up);
            for bit in 0..up {
                bytes[(bit / 8) as usize] |= 1 << (bit % 8);
            }
        } else {
            set_bits(&mut bytes, mantissa.checked_shr(shift - 202).unwrap_or(0), 0);
        }
        Self(bytes)
    }
}

/// Ors `value << up` into a little-endian number.
fn set_bits(bytes: &mut [u8; 32], value: u64, up: u32) {
    for bit in 0..64 {
        if value >> bit & 1 == 1 {
            let at = bit + up;
            if let Some(byte) = bytes.get_mut((at / 8) as usize) {
                *byte |= 1 << (at % 8);
            }
        }
    }
}

/// Whether the stamp meets the target for this key.
pub fn check(public_key: &[u8; 32], stamp: &[u8; STAMP_BYTES], target: &Target) -> bool {
    let hash = blake2b_256(&[public_key, stamp]);
    hash.iter().rev().cmp(target.0.iter().rev()).is_le()
}

/// Searches for a stamp that meets the target: from `seed` on, incrementing its last 8 bytes, at most `attempts` times.
pub fn mine(
    public_key: &[u8; 32],
    seed: [u8; STAMP_BYTES],
    target: &Target,
    attempts: u64,
) -> Option<[u8; STAMP_BYTES]> {
    let mut stamp = seed;
    let start = u64::from_be_bytes(seed.last_chunk().copied().unwrap_or_default());
    (0..attempts).find_map(|attempt| {
        if let Some(tail) = stamp.last_chunk_mut::<8>() {
            *tail = start.wrapping_add(attempt).to_be_bytes();
        }
        check(public_key, &stamp, target).then_some(stamp)
    })
}
