//! Searching everything that was written for a key.

use serde_json::Value;

/// The ways a key could be written: raw, hexadecimal in both cases, base58, lists of numbers or of two-digit texts, halves, backwards.
///
/// # Panics
/// If it is no hexadecimal text of 32 bytes.
#[must_use]
pub fn needles(key: &Value) -> Vec<Vec<u8>> {
    let hexadecimal = key.as_str().expect("hex");
    let raw = hex::decode(hexadecimal).expect("hex");
    let numbers = raw.iter().map(u8::to_string).collect::<Vec<_>>();
    let spaced = raw.iter().map(|b| format!("\"{b:02x}\"")).collect::<Vec<_>>();
    let mut needles = vec![
        hexadecimal.as_bytes().to_vec(),
        hexadecimal.to_uppercase().into_bytes(),
        numbers.join(",").into_bytes(),
        numbers.join(", ").into_bytes(),
        spaced.join(",").into_bytes(),
        bs58::encode(&raw).into_vec(),
    ];
    // Half a key is a leak, too.
    needles.extend([raw[..16].to_vec(), raw[16..].to_vec()]);
    let reversed: Vec<u8> = raw.iter().rev().copied().collect();
    needles.extend([reversed, raw]);
    needles
}

/// Whether the bytes hold the needle.
#[must_use]
pub fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}
