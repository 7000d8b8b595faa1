//! A search for keys in everything that Chainscope writes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::vectors;

/// Contents to search, by place: the path of a file, or of a response of the API.
pub type Places = BTreeMap<String, Vec<u8>>;

/// Fails if a place contains the secret key of the synthetic session's node, or the shared key derived from it. To check the search
/// itself, it must find the public key and each of `marks`: a part of a place's name and a text contained there.
///
/// # Panics
/// If a key is found or a mark is not.
pub fn assert_no_secret(places: &Places, marks: &[(&str, &str)]) {
    let identity = vectors::json("synthetic-two-way/identity.json");
    let expected = vectors::json("synthetic-two-way/outgoing-all-messages.expected.json");
    for (name, key) in [("secret key", &identity["secret_key"]), ("precomputed key", &expected["precomputed_key"])] {
        for needle in needles(key) {
            for (place, bytes) in places {
                assert!(!contains(bytes, &needle), "the {name} is in {place}");
            }
        }
    }
    let public = needles(&identity["public_key"]);
    let found = places.values().any(|bytes| public.iter().any(|needle| contains(bytes, needle)));
    assert!(found, "the search finds no public key");
    for (part, mark) in marks {
        let found = places.iter().any(|(place, bytes)| place.contains(part) && contains(bytes, mark.as_bytes()));
        assert!(found, "the search finds no {mark} in {part}");
    }
}

/// The encodings of a key: raw, hexadecimal in both cases, base58, lists of numbers or of two-digit strings, halves, reversed.
///
/// # Panics
/// If it is not a hexadecimal string of 32 bytes.
#[must_use]
fn needles(key: &Value) -> Vec<Vec<u8>> {
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

/// Whether the bytes contain the needle.
#[must_use]
fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}
