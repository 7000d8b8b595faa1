//! Suffixes that compilers append to symbols of copies and parts of functions.

/// What a symbol names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The function, or a specialised copy of it.
    Whole,
    /// Code that is rarely executed, apart from the rest. Not called but jumped to.
    Cold,
    /// A part that became a function of its own, called by the rest.
    Partial,
}

/// Copies of the whole function: gcc's `.constprop.0`, `.isra.0`, `.lto_priv.0`, LLVM's `.llvm.123`.
const COPIES: [&str; 6] = ["constprop", "isra", "lto_priv", "localalias", "llvm", "clone"];

/// What compilers call the bodies of coroutines and their clean-up: gcc, clang.
const BODIES: [&str; 4] = ["actor", "destroy", "resume", "cleanup"];

/// The word at the end of a symbol by which a pattern has to name it, because the path alone means the function that calls it: of the
/// body of a coroutine, and of a part that became a function.
pub(crate) fn own_word(symbol: &str) -> Option<&str> {
    let word = |text: &'_ str| BODIES.into_iter().find(|body| *body == text);
    match split(symbol) {
        (_, Kind::Partial) => Some("part"),
        (base, _) => word(base.rsplit_once('.')?.1),
    }
}

/// Whether a symbol is that of the body of a coroutine.
pub(crate) fn is_coroutine_body(symbol: &str) -> bool {
    matches!(own_word(symbol), Some("actor" | "resume"))
}

/// Splits a symbol into that of the function and what it names of it.
pub(crate) fn split(symbol: &str) -> (&str, Kind) {
    let (mut base, mut kind) = (symbol, Kind::Whole);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    while let Some((before, last)) = base.rsplit_once('.') {
        let (before, word) = match before.rsplit_once('.') {
            Some((earlier, word)) if is_number(last) => (earlier, word),
            _ => (before, last),
        };
        if before.is_empty() {
            break;
        }
        match word {
            "cold" => kind = Kind::Cold,
            "part" if kind == Kind::Whole => kind = Kind::Partial,
            "part" => {}
            word if COPIES.contains(&word) => {}
            _ => break,
        }
        base = before;
    }
    (base, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_their_own() {
        assert_eq!(own_word("_ZN4work5stepsEPZNS_5stepsElE22_ZN4work5stepsEl.Frame.actor"), Some("actor"));
        assert_eq!((own_word("_Z4stepv.resume"), own_word("_Z4holdm.part.0")), (Some("resume"), Some("part")));
        assert_eq!((own_word("_Z4holdm"), own_word("_Z4holdm.constprop.0"), own_word("a.1")), (None, None, None));
    }

    #[test]
    fn copies_and_parts() {
        for (symbol, base, kind) in [
            ("_Z4holdm.constprop.0", "_Z4holdm", Kind::Whole),
            ("_Z4holdm.isra.0.cold", "_Z4holdm", Kind::Cold),
            ("_Z4holdm.part.0", "_Z4holdm", Kind::Partial),
            ("_Z4holdm.part.0.cold", "_Z4holdm", Kind::Cold),
            ("_ZN4node3runE.llvm.1234", "_ZN4node3runE", Kind::Whole),
            ("_Z4stepv.actor", "_Z4stepv.actor", Kind::Whole),
            ("camlStdlib.map_123", "camlStdlib.map_123", Kind::Whole),
            ("main.(*Tree).Hold", "main.(*Tree).Hold", Kind::Whole),
            (".cold", ".cold", Kind::Whole),
            ("a.1", "a.1", Kind::Whole),
        ] {
            assert_eq!(split(symbol), (base, kind), "{symbol}");
        }
    }
}
