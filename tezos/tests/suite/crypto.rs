//! Keys, nonces, encryption, proof of work and identities, compared with vectors and with `crypto_box`.
use chainscope_tezos::{
    Identity, IdentityError, Role,
    cipher::{Cipher, Nonce, SharedKey, nonces},
    pow,
};
use crypto_box::aead::AeadInPlace;
use serde_json::{Value, json};

use crate::common::{read, read_json, unhex};

fn array<const N: usize>(value: &Value) -> [u8; N] {
    unhex(value).try_into().unwrap()
}

#[test]
fn nonces_of_both_roles() {
    let vectors = read_json("crypto/crypto-vectors.json");
    for vector in vectors["nonces"].as_array().unwrap() {
        let (sent, received) = (unhex(&vector["sent"]), unhex(&vector["recv"]));
        let incoming = vector["incoming"].as_bool().unwrap();
        let (initiator, responder) = if incoming { (&received, &sent) } else { (&sent, &received) };
        let (by_initiator, by_responder) = nonces(initiator, responder);
        let (local, remote) = if incoming { (by_responder, by_initiator) } else { (by_initiator, by_responder) };
        assert_eq!(local.0, array(&vector["local"]));
        assert_eq!(remote.0, array(&vector["remote"]));
    }
    for pair in vectors["increment"].as_array().unwrap() {
        assert_eq!(Nonce(array(&pair[0])).plus(1).0, array::<24>(&pair[1]));
    }
    assert_eq!(Nonce([0xff; 24]).plus(5).0[23], 4);
}

#[test]
fn precomputed_key_and_box() {
    let vectors = read_json("crypto/crypto-vectors.json");
    let local = Identity::from_secret_key(array(&vectors["precompute"]["sk"]), [0; 24]);
    let key = SharedKey::new(&local, &array(&vectors["precompute"]["pk"]));
    let sealed = unhex(&vectors["box"]["ciphertext_with_leading_tag"]);
    let plain = unhex(&vectors["box"]["plaintext"]);
    let nonce = Nonce(array(&vectors["box"]["nonce"]));
    for key in [key, SharedKey::from_bytes(array(&vectors["box"]["key"]))] {
        let cipher = Cipher::new(key, nonce);
        assert_eq!(cipher.open(0, &sealed).unwrap(), plain);
        assert_eq!(cipher.seal(0, &plain), sealed);
        assert!(cipher.verify(0, &sealed));
        assert!(!cipher.verify(1, &sealed));
        assert!(cipher.open(1, &sealed).is_err());
        assert!(cipher.open(0, &sealed[..15]).is_err());
    }
}

/// Includes counters that carry into the part of the nonce from which the subkey is derived.
#[test]
fn ciphers_agree_with_crypto_box() {
    let secret = crypto_box::SecretKey::from([7; 32]);
    let remote = crypto_box::SecretKey::from([9; 32]).public_key();
    let theirs = crypto_box::SalsaBox::new(&remote, &secret);
    let local = Identity::from_secret_key([7; 32], [0; 24]);
    assert_eq!(local.public_key(), secret.public_key().as_bytes());
    let key = SharedKey::new(&local, remote.as_bytes());
    for base in [[0x11; 24], [0xff; 24]] {
        let cipher = Cipher::new(key.clone(), Nonce(base));
        for (index, length) in [(0, 0), (1, 1), (2, 31), (3, 32), (4, 33), (5, 64), (1 << 40, 1000), (9, 65_517)] {
            let plain: Vec<u8> = (0..length).map(|at| (at * 31) as u8).collect();
            let nonce = Nonce(base).plus(index).0;
            let mut text = plain.clone();
            let tag = theirs.encrypt_in_place_detached(&nonce.into(), b"", &mut text).unwrap();
            let sealed = [&tag[..], &text].concat();
            assert_eq!(cipher.seal(index, &plain), sealed);
            assert_eq!(cipher.open(index, &sealed).unwrap(), plain);
        }
    }
}

#[test]
fn roles_mirror_each_other() {
    let key = SharedKey::from_bytes([5; 32]);
    let (sent, received) = Cipher::pair(&key, Role::Initiator, b"local", b"remote");
    let (their_sent, their_received) = Cipher::pair(&key, Role::Responder, b"remote", b"local");
    assert_eq!(their_received.open(3, &sent.seal(3, b"x")).unwrap(), b"x");
    assert_eq!(received.open(4, &their_sent.seal(4, b"y")).unwrap(), b"y");
}

#[test]
fn proof_of_work() {
    let vectors = read_json("crypto/crypto-vectors.json");
    let work = &vectors["pow"]["ok_at_24"];
    let (key, stamp) = (array(&work["public_key"]), array(&work["stamp"]));
    // The hash has 26 leading zero bits: …25 00 00 00 as a little-endian number.
    for (difficulty, good) in [(0.0, true), (24.0, true), (26.0, true), (26.5, true), (27.0, false), (256.0, false)] {
        assert_eq!(pow::check(&key, &stamp, &pow::Target::from_difficulty(difficulty)), good, "{difficulty}");
    }
    // 2^54-1 < 2^54: the smallest distance to the next whole difficulty.
    assert_ne!(pow::Target::from_difficulty(26.0), pow::Target::from_difficulty(26.000_001));
    let easy = pow::Target::from_difficulty(8.0);
    let mined = pow::mine(&key, [0; 24], &easy, 100_000).unwrap();
    assert!(pow::check(&key, &mined, &easy));
    assert_eq!(pow::mine(&key, [0; 24], &pow::Target::from_difficulty(200.0), 10), None);
}

#[test]
fn identities_of_public_networks_are_valid() {
    let identities = read_json("identities/identities.json");
    let identities = identities.as_array().unwrap();
    assert_eq!(identities.len(), 16);
    for vector in identities {
        assert_eq!((&vector["peer_id_ok"], &vector["keys_match"]), (&json!(true), &json!(true)));
        let identity = Identity::from_json(vector.to_string().as_bytes()).unwrap();
        assert_eq!(identity.peer_id(), vector["peer_id"].as_str().unwrap());
        let bits = vector["pow_hash_le_leading_zero_bits"].as_f64().unwrap();
        let check = |difficulty| {
            let target = pow::Target::from_difficulty(difficulty);
            pow::check(identity.public_key(), identity.proof_of_work_stamp(), &target)
        };
        assert!(check(bits) && !check(bits + 1.0));
    }
}

#[test]
fn errors_of_identity_files_name_the_field_and_quote_nothing() {
    let good: Value = serde_json::from_slice(&read("carthagenet-2020/identity.json")).unwrap();
    let secret = good["secret_key"].as_str().unwrap();
    let with = |field: &str, value: Value| {
        let mut file = good.clone();
        file[field] = value;
        Identity::from_json(file.to_string().as_bytes())
    };
    let mut without_peer = good.clone();
    without_peer.as_object_mut().unwrap().remove("peer_id");
    let identity = Identity::from_json(without_peer.to_string().as_bytes()).unwrap();
    assert_eq!(identity.peer_id(), good["peer_id"].as_str().unwrap());
    assert!(!format!("{identity:?}").contains(secret));

    let other = read_json("synthetic-two-way/identity.json");
    let cases = [
        (with("secret_key", other["secret_key"].clone()), "does not belong"),
        (with("secret_key", json!(format!("{secret}00"))), "field secret_key"),
        (with("secret_key", json!(secret.replace('a', "x"))), "field secret_key"),
        (with("secret_key", Value::Null), "no field secret_key"),
        (with("secret_key", json!({"is": secret})), "not valid JSON"),
        (with("public_key", other["public_key"].clone()), "does not belong"),
        (with("proof_of_work_stamp", json!("00")), "field proof_of_work_stamp"),
        (with("peer_id", other["peer_id"].clone()), "peer_id"),
        (Identity::from_json(format!("{{\"secret_key\":\"{secret}\", {secret}").as_bytes()), "not valid JSON: line 1"),
        (Identity::from_json(b""), "not valid JSON"),
        (Identity::from_json(&[0xff; 40]), "not valid JSON"),
    ];
    for (result, says) in cases {
        let error: IdentityError = result.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(says), "{text}");
        assert!(!text.contains(&secret[..8]), "{text}");
    }
}
