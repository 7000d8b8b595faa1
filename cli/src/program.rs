//! The name of this program: `chainscope`, or `kubectl chainscope` as a plugin of kubectl.

use std::{env, ffi::OsStr, path::Path, sync::OnceLock};

/// File name of this program as a plugin of kubectl.
const PLUGIN: &str = "kubectl-chainscope";

/// Whether this program was started as a plugin of kubectl.
pub(crate) fn is_plugin() -> bool {
    static IS_PLUGIN: OnceLock<bool> = OnceLock::new();
    let by_name = || env::args_os().next().is_some_and(|path| Path::new(&path).file_name() == Some(OsStr::new(PLUGIN)));
    *IS_PLUGIN.get_or_init(by_name)
}

/// What a user types to run this program.
pub(crate) fn name() -> &'static str {
    if is_plugin() { "kubectl chainscope" } else { "chainscope" }
}
