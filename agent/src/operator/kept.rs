//! The last configuration on disk, with which an agent records that starts while the operator is unavailable.
//!
//! `chainscope configuration 1\n`, the SHA-256 of what follows, and a `HostUpdate` that is a snapshot. No identity is in it:
//! one that came from a Secret is kept as missing. A file that is damaged or of another version is ignored.

use chainscope_proto::v1::HostUpdate;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::{Error, folder::Folder, targets::pod_map::PodMap};

const HEAD: &[u8] = b"chainscope configuration 1\n";

/// Writes the configuration to disk.
pub(super) fn write(folder: &Folder, map: &PodMap) -> Result<(), Error> {
    folder.set_configuration(&encode(map))
}

fn encode(map: &PodMap) -> Vec<u8> {
    let body = map.bare().encode_to_vec();
    [HEAD, &Sha256::digest(&body), &body].concat()
}

/// The kept configuration, if it is usable.
pub(crate) fn read(folder: &Folder) -> Result<Option<PodMap>, Error> {
    let Some(bytes) = folder.configuration()? else { return Ok(None) };
    let map = decode(&bytes);
    if let Err(cause) = &map {
        tracing::warn!(
            cause,
            "the kept configuration is unusable: nothing is recorded until the operator is connected"
        );
    }
    Ok(map.ok())
}

fn decode(bytes: &[u8]) -> Result<PodMap, &'static str> {
    let rest = bytes.strip_prefix(HEAD).ok_or("it is of another version")?;
    let (sum, body) = rest.split_at_checked(32).ok_or("it is cut")?;
    if Sha256::digest(body).as_slice() != sum {
        return Err("its checksum is wrong");
    }
    let update = HostUpdate::decode(body).map_err(|_| "it is damaged")?;
    let mut map = PodMap::default();
    map.apply(update, true).map_err(|_| "it is of another version")?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::{ObservedPod, observed_pod::Identity};

    use super::*;
    use crate::targets::identity::Source;

    const SECRET: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos/synthetic-two-way/identity.json"));

    fn map() -> PodMap {
        let pod = |uid: &str, identity| ObservedPod {
            uid: uid.to_owned(),
            node: "default/octez".to_owned(),
            namespace: "default".to_owned(),
            name: format!("octez-{uid}"),
            process: "octez-node".to_owned(),
            container_ids: vec!["ab".repeat(32)],
            p2p_port: Some(9732),
            identity: Some(identity),
            ..Default::default()
        };
        let pods = vec![
            pod("a", Identity::IdentityPath("/data/identity.json".to_owned())),
            pod("b", Identity::IdentityJson(SECRET.as_bytes().to_vec())),
        ];
        let mut map = PodMap::default();
        map.apply(HostUpdate { version: 1, generation: 7, snapshot: true, pods, ..Default::default() }, true).unwrap();
        map
    }

    #[test]
    fn everything_but_identities_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        assert_eq!(read(&folder).unwrap(), None);
        let map = map();
        assert!(matches!(map.pods["b"].assignment.identity, Source::Given(_)));
        write(&folder, &map).unwrap();
        let file = std::fs::read(dir.path().join("agent/configuration")).unwrap();
        let secret: serde_json::Value = serde_json::from_str(SECRET).unwrap();
        for key in ["secret_key", "public_key", "proof_of_work_stamp"] {
            let value = secret[key].as_str().unwrap();
            for part in [value.as_bytes().to_vec(), hex::decode(value).unwrap()] {
                assert!(!file.windows(part.len()).any(|window| window == part), "{key}");
            }
        }
        let kept = read(&folder).unwrap().unwrap();
        assert_eq!(kept.generation, 7);
        assert_eq!(kept.pods["a"], map.pods["a"]);
        let Source::Missing(reason) = &kept.pods["b"].assignment.identity else { panic!("{kept:?}") };
        assert!(reason.contains("operator has not been reached"), "{reason}");
        assert_eq!(kept.pods["b"].containers, map.pods["b"].containers);
    }

    #[test]
    fn a_damaged_or_foreign_file_is_ignored() {
        let whole = encode(&map());
        assert!(decode(&whole).is_ok());
        for length in 0..whole.len() {
            assert!(decode(&whole[..length]).is_err(), "{length}");
        }
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            assert!(decode(&damaged).is_err(), "{place}");
        }
        let foreign = [b"chainscope configuration 2\n", &whole[HEAD.len()..]].concat();
        assert_eq!(decode(&foreign).unwrap_err(), "it is of another version");
    }
}
