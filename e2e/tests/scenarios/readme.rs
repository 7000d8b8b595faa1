//! The `make` commands of the README, without running them. The test `documents` runs the others.

use std::process::Command;

use chainscope_e2e::harness::run;

/// That they work takes minutes to hours: `make` runs this test itself.
#[test]
fn make_commands_say_what_they_build_and_wait_for() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let readme = std::fs::read_to_string(format!("{root}/README.md")).expect("README.md");
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("make ")).collect();
    assert!(commands.len() >= 3, "{commands:?}");
    for command in commands {
        // `sh` drops the comment.
        let dry = command.replacen("make ", "make --dry-run --no-print-directory ", 1);
        let output = run(Command::new("sh").current_dir(root).arg("-c").arg(dry));
        let said: Vec<&str> = output.lines().filter(|line| line.starts_with("echo \"==> ")).collect();
        assert!(said.iter().any(|line| line.contains("minutes")), "{command}: {output}");
        assert!(!output.contains("as-root cargo"), "{command} runs cargo as root: {output}");
    }
}
