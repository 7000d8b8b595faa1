//! Validation of node names.

use chainscope_store::MAX_NODE_NAME;

/// Checks a node name: one or two parts of letters, digits and `._:@-`, so that it is safe in a path, a label and a log
/// line. The error completes "cannot be the name of a node: …".
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.len() > MAX_NODE_NAME {
        return Err("it is longer than 507 bytes");
    }
    let mut parts = name.split('/');
    let first = parts.next().unwrap_or_default();
    let second = parts.next();
    if parts.next().is_some() {
        return Err("it has more than two parts");
    }
    for part in std::iter::once(first).chain(second) {
        if part.is_empty() || part == "." || part == ".." {
            return Err("a part of it is empty or consists of dots");
        }
        if !part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:@-".contains(&byte)) {
            return Err("it has a character other than letters, digits and ._:@-");
        }
    }
    Ok(())
}
