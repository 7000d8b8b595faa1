//! Ownership of code: the node or the system.
//!
//! The executable belongs to the node, wherever it is installed. A library belongs to the system if it is in a
//! distribution's library directory, or is the C or C++ runtime or the loader in any directory; other libraries belong
//! to the node. Code of the node is further classified by language: Rust by its symbols, everything else as C++.

use std::path::Path;

/// Directories in which distributions install libraries.
const SYSTEM_DIRS: [&str; 8] =
    ["/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32"];

/// Name prefixes of runtime libraries, which may be bundled with a node.
const SYSTEM_NAMES: [&str; 14] = [
    "ld-linux",
    "ld-musl",
    "libc.",
    "libc-",
    "libdl.",
    "libgcc_s.",
    "libm.",
    "libpthread.",
    "libpthread-",
    "libresolv.",
    "librt.",
    "libstdc++.",
    "libc++",
    "libunwind.",
];

/// Owner of the code in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Node,
    System,
}

/// One of the three values of `functionCategory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Category {
    NodeRust,
    NodeCpp,
    SystemLib,
}

impl Owner {
    /// Returns the owner of a mapped file, by its path in the mount namespace of the process.
    pub(super) fn of(path: &Path, is_executable: bool) -> Self {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_system = SYSTEM_DIRS.iter().any(|dir| path.starts_with(dir))
            || SYSTEM_NAMES.iter().any(|system| name.starts_with(system))
            || name.starts_with('[');
        if !is_executable && is_system { Self::System } else { Self::Node }
    }

    pub(super) fn category(self, is_rust: bool) -> Category {
        match (self, is_rust) {
            (Self::System, _) => Category::SystemLib,
            (Self::Node, true) => Category::NodeRust,
            (Self::Node, false) => Category::NodeCpp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_belong_to_the_node_in_any_directory() {
        for path in ["/usr/local/bin/octez-node", "/light-node", "/usr/lib/postgresql/15/bin/postgres"] {
            assert_eq!(Owner::of(Path::new(path), true), Owner::Node, "{path}");
        }
    }

    #[test]
    fn libraries_are_classified_by_directory_and_name() {
        for path in [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/lib/x86_64-linux-gnu/librocksdb.so.7",
            "/lib/ld-musl-x86_64.so.1",
            "/nix/store/abc-glibc-2.38/lib/libc.so.6",
            "/opt/node/lib/libstdc++.so.6",
            "[vdso]",
        ] {
            assert_eq!(Owner::of(Path::new(path), false), Owner::System, "{path}");
        }
        for path in
            ["/opt/node/lib/libledger.so", "/usr/local/lib/libsodium.so", "/home/a/libcrypto.so", "/library/x.so"]
        {
            assert_eq!(Owner::of(Path::new(path), false), Owner::Node, "{path}");
        }
    }

    #[test]
    fn only_code_of_the_node_is_classified_by_language() {
        assert_eq!(Owner::Node.category(true), Category::NodeRust);
        assert_eq!(Owner::Node.category(false), Category::NodeCpp);
        assert_eq!(Owner::System.category(true), Category::SystemLib);
    }
}
