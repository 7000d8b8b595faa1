//! What a release publishes beside its images.

use std::process::Command;

use chainscope_e2e::harness::run;

#[test]
fn the_manifest_for_krew_describes_the_archive() {
    let folder = tempfile::tempdir().expect("a directory");
    for program in ["chainscope", "chainscope-demo-node"] {
        std::fs::write(folder.path().join(program), program).expect("a program");
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let out = folder.path().join("out");
    run(Command::new("scripts/krew").current_dir(root).arg("v1.2.3").arg(folder.path()).arg(&out));

    let manifest = std::fs::read_to_string(out.join("chainscope.yaml")).expect("the manifest");
    let manifest: serde_json::Value = serde_saphyr::from_str(&manifest).expect("YAML");
    assert_eq!(manifest["spec"]["version"], "v1.2.3");
    let platform = &manifest["spec"]["platforms"][0];
    let uri = platform["uri"].as_str().expect("a URI");
    let (release, name) = uri.rsplit_once('/').expect("a path");
    assert!(release.ends_with("/releases/download/v1.2.3"), "{uri}");

    let archive = out.join(name);
    let checksum = run(Command::new("sha256sum").arg(&archive));
    assert_eq!(checksum.split(' ').next(), platform["sha256"].as_str());
    let packed = run(Command::new("tar").arg("-tzf").arg(&archive));
    let packed: Vec<&str> = packed.lines().collect();
    for file in platform["files"].as_array().expect("files") {
        assert!(packed.contains(&file["from"].as_str().expect("a name")), "{file} is not in {packed:?}");
    }
    assert!(packed.contains(&platform["bin"].as_str().expect("a name")), "{packed:?}");
}

#[test]
fn the_workflow_packs_by_the_same_script() {
    let workflow = include_str!("../../../.github/workflows/release.yml");
    assert!(workflow.contains("scripts/krew \"$GITHUB_REF_NAME\" target/release out\n"));
}
