//! Invariants of `/v1/tree` responses.

use serde_json::Value;

/// Pseudo nodes, in their order after the frames.
const PSEUDO: [&str; 4] = ["[resident before attach]", "[unattributed]", "underThreshold", "unknown"];

/// Checks a tree: the children of a node add up to its value, `cacheValue` does not exceed `value`, frames are sorted
/// and reach the threshold, and pseudo nodes are in order. A difference (`since`) is exempt from the `cacheValue` and
/// threshold checks. Returns the number of nodes.
///
/// # Panics
/// If an invariant does not hold.
pub fn check(node: &Value, threshold: u64, is_difference: bool) -> usize {
    let number =
        |node: &Value, field: &str| node[field].as_i64().unwrap_or_else(|| panic!("no {field} in {node:.300}"));
    let value = |node: &Value| number(node, "value");
    let cache = |node: &Value| number(node, "cacheValue");
    if !is_difference {
        assert!(0 <= cache(node) && cache(node) <= value(node), "{node:.300}");
    }
    let Some(children) = node.get("frames") else {
        assert!(node["name"].is_string(), "{node:.300}");
        return 1;
    };
    let children = children.as_array().expect("a list");
    if children.is_empty() {
        return 1;
    }
    assert_eq!(children.iter().map(value).sum::<i64>(), value(node), "{node:.300}");
    assert_eq!(children.iter().map(cache).sum::<i64>(), cache(node), "{node:.300}");
    let named = children.iter().take_while(|child| child["name"].is_object()).count();
    let (frames, pseudo) = children.split_at(named);
    let text = |child: &Value, field: &str| child["name"][field].as_str().map(str::to_owned);
    let rank = |child: &Value| {
        let name = ["offset", "executable", "functionName", "functionCategory"].map(|field| text(child, field));
        (-value(child), name)
    };
    assert!(frames.is_sorted_by_key(rank), "{node:.300}");
    if !is_difference {
        assert!(frames.iter().all(|child| value(child).unsigned_abs() >= threshold), "{node:.300}");
    }
    let place = |child: &Value| PSEUDO.iter().position(|name| child["name"] == *name).expect("a known name");
    assert!(pseudo.is_sorted_by_key(place), "{node:.300}");
    1 + children.iter().map(|child| check(child, threshold, is_difference)).sum::<usize>()
}
