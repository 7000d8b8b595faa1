//! Identities of this very process, in files that come, change and go.

use std::fs;

use crossbeam_channel::Receiver;

use super::*;

const CARTHAGENET: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos/carthagenet-2020/identity.json"));
const SYNTHETIC: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos/synthetic-two-way/identity.json"));

fn public_key(json: &str) -> [u8; 32] {
    *Identity::from_json(json.as_bytes()).unwrap().public_key()
}

fn peer_id(json: &str) -> String {
    Identity::from_json(json.as_bytes()).unwrap().peer_id().to_owned()
}

struct Stage {
    dir: tempfile::TempDir,
    path: PathBuf,
    keys: ProcessKeys,
    answers: Receiver<IdentityAnswer>,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.json");
        let (sender, answers) = crossbeam_channel::bounded(64);
        let reader = IdentityReader::new(Proc::default(), BlockingPool::new("test", "test"), sender);
        let facts = Proc::default().facts(std::process::id(), &|_, _| String::new()).unwrap();
        let keys = ProcessKeys::new(reader, "node".into(), &facts, Source::Path(path.clone()));
        Self { dir, path, keys, answers }
    }

    /// Reads the identity before a session needs it.
    fn reload(&mut self) {
        self.keys.reload();
        self.take_answer();
    }

    fn take_answer(&mut self) -> Option<Result<(), String>> {
        self.keys.take_answer(self.answers.recv_timeout(Duration::from_secs(60)).unwrap())
    }

    /// A session needs a key, and waits for it.
    fn identity(&mut self, key: &[u8; 32]) -> Result<Arc<Identity>, String> {
        if let Poll::Ready(found) = self.keys.identity(key) {
            return found;
        }
        let outcome = self.take_answer().unwrap();
        self.keys.known(key).ok_or_else(|| outcome.unwrap_err())
    }

    /// Puts content in place as editors do: another inode, so that the change is seen whatever the clock's grain.
    fn put(&self, content: &str) {
        let beside = self.dir.path().join("beside");
        fs::write(&beside, content).unwrap();
        fs::rename(beside, &self.path).unwrap();
    }
}

#[test]
fn an_identity_that_appears_late_is_found() {
    let mut files = Stage::new();
    files.reload();
    assert_eq!(files.keys.take_events(), [], "a missing file is no event yet");
    let reason = files.identity(&public_key(SYNTHETIC)).unwrap_err();
    assert_eq!(reason, format!("not found at {}", files.path.display()));
    assert_eq!(files.keys.take_events(), [IdentityEvent::Failed(reason.clone())]);
    assert_eq!(files.identity(&public_key(SYNTHETIC)).unwrap_err(), reason);
    assert_eq!(files.keys.take_events(), [], "the same error is reported once");
    files.put(SYNTHETIC);
    assert_eq!(files.identity(&public_key(SYNTHETIC)).unwrap().peer_id(), peer_id(SYNTHETIC));
    assert_eq!(files.keys.take_events(), [IdentityEvent::Found(peer_id(SYNTHETIC))]);
}

#[test]
fn an_identity_that_changes_is_read_again_and_the_old_one_still_serves() {
    let mut files = Stage::new();
    files.put(SYNTHETIC);
    files.reload();
    assert_eq!(files.keys.take_events(), [IdentityEvent::Found(peer_id(SYNTHETIC))]);
    files.put(CARTHAGENET);
    assert_eq!(files.identity(&public_key(CARTHAGENET)).unwrap().peer_id(), peer_id(CARTHAGENET));
    assert_eq!(files.identity(&public_key(SYNTHETIC)).unwrap().peer_id(), peer_id(SYNTHETIC));
}

#[test]
fn the_identity_of_another_node_is_named() {
    let mut files = Stage::new();
    files.put(CARTHAGENET);
    let reason = files.identity(&public_key(SYNTHETIC)).unwrap_err();
    let expected = format!("{} is of another node, {}", files.path.display(), peer_id(CARTHAGENET));
    assert_eq!(reason, expected);
    assert_eq!(files.keys.take_events(), [IdentityEvent::Failed(expected.clone())]);
    // The error stays until the right file is there.
    files.reload();
    assert_eq!(files.keys.state(), &Err(expected));
    assert_eq!(files.keys.take_events(), []);
    files.put(SYNTHETIC);
    files.reload();
    assert_eq!(files.keys.state(), &Ok(peer_id(SYNTHETIC)));
    assert_eq!(files.keys.take_events(), [IdentityEvent::Found(peer_id(SYNTHETIC))]);
}

#[test]
fn one_session_of_another_key_does_not_make_the_identity_a_wrong_one() {
    let mut files = Stage::new();
    files.put(SYNTHETIC);
    files.identity(&public_key(SYNTHETIC)).unwrap();
    files.identity(&public_key(CARTHAGENET)).unwrap_err();
    assert!(files.keys.state().is_err());
    files.identity(&public_key(SYNTHETIC)).unwrap();
    files.take_answer();
    assert_eq!(files.keys.state(), &Ok(peer_id(SYNTHETIC)));
}

#[test]
fn a_malformed_identity_is_named_and_not_quoted() {
    let mut files = Stage::new();
    let secret = "8b4622bc512c8621a35fa19ff252129b208c8cdffb57e2d29c7974df718c7ff2";
    for content in
        [format!("{{\"secret_key\": \"{secret}\""), format!("{{\"secret_key\": \"{secret}\"}}"), "\0\u{1}".to_owned()]
    {
        files.put(&content);
        let reason = files.identity(&public_key(SYNTHETIC)).unwrap_err();
        assert!(reason.starts_with(&format!("{}: ", files.path.display())), "{reason}");
        assert!(!reason.contains(&secret[..6]), "{reason}");
        assert!(!format!("{:?}", files.keys).contains(&secret[..6]));
    }
}

#[test]
fn keys_do_not_show_in_debug_output() {
    let mut files = Stage::new();
    files.put(SYNTHETIC);
    files.reload();
    let secret: serde_json::Value = serde_json::from_str(SYNTHETIC).unwrap();
    let secret = secret["secret_key"].as_str().unwrap();
    assert!(!format!("{:?}", files.keys).contains(&secret[..8]));
}

#[test]
fn a_session_that_asks_during_a_read_gets_what_was_put_in_place_before() {
    let mut files = Stage::new();
    // The answer of this read is not taken before the file is there.
    files.keys.reload();
    let early = files.answers.recv_timeout(Duration::from_secs(60)).unwrap();
    files.put(SYNTHETIC);
    assert!(files.keys.identity(&public_key(SYNTHETIC)).is_pending());
    assert_eq!(files.keys.take_answer(early), None, "the files are read once more");
    assert!(files.keys.is_reading());
    assert_eq!(files.take_answer(), Some(Ok(())));
    assert_eq!(files.keys.known(&public_key(SYNTHETIC)).unwrap().peer_id(), peer_id(SYNTHETIC));
    assert_eq!(files.keys.take_events(), [IdentityEvent::Found(peer_id(SYNTHETIC))]);
}

#[test]
fn a_read_that_does_not_return_is_reported_and_no_longer_waited_for() {
    let mut files = Stage::new();
    files.put(SYNTHETIC);
    let (release, released) = crossbeam_channel::bounded::<()>(0);
    let pool = files.keys.reader.pool.clone();
    // The node's earlier read does not return.
    pool.submit("node", move || released.recv().is_err(), |_| ()).unwrap();
    assert!(files.keys.identity(&public_key(SYNTHETIC)).is_pending());
    assert_eq!(files.keys.expire(Instant::now()), None);
    let later = Instant::now() + READ_TIMEOUT;
    let reason = files.keys.expire(later).unwrap();
    assert_eq!(reason, "its file system has not answered for 5 seconds");
    assert_eq!(files.keys.take_events(), [IdentityEvent::Failed(reason.clone())]);
    assert_eq!(files.keys.expire(later), None, "once");
    let Poll::Ready(Err(again)) = files.keys.identity(&public_key(SYNTHETIC)) else { panic!() };
    assert_eq!(again, reason);
    assert!(!files.keys.is_reading());
    // It returns after all.
    drop(release);
    assert_eq!(files.take_answer(), Some(Ok(())));
    assert_eq!(files.identity(&public_key(SYNTHETIC)).unwrap().peer_id(), peer_id(SYNTHETIC));
    assert_eq!(files.keys.take_events(), [IdentityEvent::Found(peer_id(SYNTHETIC))]);
}

#[test]
fn files_that_are_not_looked_for_any_more_are_forgotten() {
    let mut files = Stage::new();
    for round in 0..20 {
        let path = files.dir.path().join(format!("{round}.json"));
        fs::write(&path, SYNTHETIC).unwrap();
        files.keys.set_source(Source::Path(path));
        files.take_answer();
        assert_eq!(files.keys.state(), &Ok(peer_id(SYNTHETIC)), "round {round}");
        assert!(files.keys.files.count() <= 2, "{} files in round {round}", files.keys.files.count());
    }
}
