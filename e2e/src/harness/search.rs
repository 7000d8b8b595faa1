//! A search for keys in everything that Chainscope writes.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use memchr::memmem;
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

/// The encodings of a key: raw, hexadecimal in both cases, base58, lists of numbers or of two-digit strings, halves, reversed, and each
/// of these as a part of a base64 text, as Kubernetes encodes Secrets.
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
    let encoded: Vec<_> = needles.iter().flat_map(|needle| base64_parts(needle)).collect();
    needles.extend(encoded);
    needles
}

/// What is in each base64 text of contents with these bytes in it: in both alphabets, at each of the three alignments. Characters that
/// also depend on the bytes before or after are left out.
fn base64_parts(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..3_usize).flat_map(move |before| {
        let padded = [&[0; 2][..before], bytes].concat();
        // A character has six bits.
        let (first, end) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        [STANDARD_NO_PAD, URL_SAFE_NO_PAD].map(|engine| engine.encode(&padded).as_bytes()[first..end].to_vec())
    })
}

/// Whether the bytes contain the needle.
#[must_use]
fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    memmem::find(bytes, needle).is_some()
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};

    use super::*;

    #[test]
    fn a_key_is_found_in_base64_at_every_alignment() {
        let identity = vectors::json("synthetic-two-way/identity.json");
        let key = &identity["secret_key"];
        let hexadecimal = key.as_str().expect("hex");
        let raw = hex::decode(hexadecimal).expect("hex");
        let needles = needles(key);
        for content in [&raw, hexadecimal.as_bytes()] {
            for before in 0..7 {
                for after in 0..7 {
                    let file = [&b"{secret"[..before], content, &b"key: x}"[..after]].concat();
                    for text in [STANDARD.encode(&file), URL_SAFE.encode(&file)] {
                        let found = needles.iter().any(|needle| contains(text.as_bytes(), needle));
                        assert!(found, "{before} bytes before, {after} after: {text}");
                    }
                }
            }
        }
        let other = STANDARD.encode(raw.iter().map(|byte| byte.wrapping_add(1)).collect::<Vec<_>>());
        assert!(!needles.iter().any(|needle| contains(other.as_bytes(), needle)));
    }

    #[test]
    fn a_secret_of_kubernetes_is_found() {
        let file = std::fs::read(vectors::tezos("synthetic-two-way/identity.json")).expect("readable");
        let secret = serde_json::json!({"kind": "Secret", "data": {"identity.json": STANDARD.encode(file)}});
        let places = Places::from([("secret".to_owned(), secret.to_string().into_bytes())]);
        let found = std::panic::catch_unwind(|| assert_no_secret(&places, &[]));
        let message = found.expect_err("the secret key is there");
        assert!(message.downcast_ref::<String>().is_some_and(|text| text.contains("the secret key is in secret")));
    }
}
