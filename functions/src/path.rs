//! The path of a function as patterns see it: `Chain::apply` of `<node::chain::Chain as node::Apply>::apply::<u64>`.

/// Removes template or generic arguments, and of a Rust method the trait.
pub(crate) fn plain(path: &str) -> String {
    let path = own_type(path).replace("::<", "<");
    let mut plain = String::with_capacity(path.len());
    let mut depth = 0_usize;
    for (at, letter) in path.char_indices() {
        let before = path.get(..at).unwrap_or_default();
        // `operator<`, `operator<<`, `operator<=`, `operator->`
        let is_operator = before.trim_end_matches(['<', '>', '-', '=']).ends_with("operator");
        match letter {
            '<' if depth > 0 || !is_operator => depth += 1,
            '>' if depth > 0 && !before.ends_with('-') => depth -= 1,
            letter if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    plain
}

/// `<T>::f` and `<T as Trait>::f` as `T::f`.
fn own_type(path: &str) -> String {
    let Some(inner) = path.strip_prefix('<') else { return path.to_owned() };
    let mut depth = 1_usize;
    for (at, letter) in inner.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let (own, rest) = inner.split_at(at);
            let own = own.split_once(" as ").map_or(own, |(own, _)| own);
            return format!("{own}{}", rest.get(1..).unwrap_or_default());
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_path_gets_no_longer(path in "[a-z:<>=& \\-(operator)]{0,60}") {
            prop_assert!(plain(&path).len() <= path.len());
        }
    }

    #[test]
    fn arguments_and_traits_are_removed() {
        for (path, expected) in [
            ("ripple::Payment::doApply", "ripple::Payment::doApply"),
            ("work::generic<int, std::pair<long, int> >", "work::generic"),
            ("std::vector<int>::push_back", "std::vector::push_back"),
            ("A::operator<", "A::operator<"),
            ("A<int>::operator<< <char>", "A::operator<< "),
            ("A::operator->", "A::operator->"),
            ("<node::Chain>::apply", "node::Chain::apply"),
            ("<node::Chain<u8> as node::Apply<u8>>::apply::<u64>", "node::Chain::apply"),
            ("<broken", ""),
        ] {
            assert_eq!(plain(path), expected, "{path}");
        }
    }
}
