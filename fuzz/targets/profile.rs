//! Merging of memory states from arbitrary bytes: a rejected state changes nothing, a profile stays within its limits, and
//! a stored snapshot of it is the same profile.
#![no_main]
use chainscope_profile::{Limits, MergeOutcome, Profile, encode};
use chainscope_proto::v1::MemoryState;
use libfuzzer_sys::fuzz_target;

/// The parts of a snapshot.
fn snapshot(profile: &Profile) -> Vec<MemoryState> {
    profile.data().map(|data| encode(data, "node", 1)).unwrap_or_default()
}

fuzz_target!(|data: &[u8]| {
    let limits = Limits { nodes: 256, frames: 128, string_bytes: 4 << 10, state_bytes: 16 << 10 };
    let mut profile = Profile::default();
    for state in chainscope_fuzz::messages::<MemoryState>(data) {
        let (before, sequence) = (snapshot(&profile), profile.sequence());
        match profile.merge(state, &limits) {
            MergeOutcome::Merged(merged) => assert!(merged >= sequence && merged == profile.sequence()),
            MergeOutcome::Incomplete | MergeOutcome::KeyframeRequired(_) => {
                assert!(snapshot(&profile) == before && profile.sequence() == sequence);
            }
        }
        let Some(data) = profile.data() else { continue };
        assert!(data.nodes() <= limits.nodes);
        let _ = data.stacks();
    }
    let stored = snapshot(&profile);
    let mut restored = Profile::default();
    for part in stored.clone() {
        let outcome = restored.merge(part, &Limits::default());
        assert!(matches!(outcome, MergeOutcome::Merged(1) | MergeOutcome::Incomplete), "{outcome:?}");
    }
    assert_eq!(snapshot(&restored), stored);
});
