//! `chainscope support-bundle`.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::{fake::Fake, stdout};

#[test]
fn only_its_owner_can_read_the_archive() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let archive = path("bundle.tar.gz");
    let server = Fake::start(|_| ("200 OK", "{}".to_owned()));
    stdout(&["support-bundle", "--config", &path("missing.toml"), "--api", &server.url, "--output", &archive]);
    let metadata = fs::metadata(archive).expect("written");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
}
