//! The threat model names tests: each of them exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The words in backticks of the last column of the tables of attempts, which are names of tests, or paths.
fn shown_by(document: &str) -> BTreeSet<String> {
    let rows = document.lines().filter(|line| line.starts_with('|') && line.matches(" | ").count() == 2);
    let cells = rows.filter_map(|row| row.trim_end_matches('|').rsplit(" | ").next());
    let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    // Commands have spaces.
    words.filter(|word| !word.contains(' ')).map(str::to_owned).collect()
}

/// All sources below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name();
        if entry.file_type().expect("its type").is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                sources(&entry.path(), found);
            }
        } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
            found.push(entry.path());
        }
    }
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let path = Path::new(ROOT).join("docs/security.md");
    let document = std::fs::read_to_string(path).expect("the threat model");
    let (paths, mut tests): (BTreeSet<_>, BTreeSet<_>) =
        shown_by(&document).into_iter().partition(|word| word.contains('/'));
    assert!(tests.len() > 50, "{tests:?}");
    for path in paths {
        assert!(Path::new(ROOT).join(&path).exists(), "{path}");
    }
    let mut files = Vec::new();
    sources(Path::new(ROOT), &mut files);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
        for name in names {
            tests.remove(name);
        }
    }
    assert!(tests.is_empty(), "there are no {tests:?}");
}
