//! The selected element of a list that changes: it stays selected wherever it moves.

use ratatui::widgets::TableState;

use super::input::Key;

/// A selected element by its key.
#[derive(Debug)]
pub(super) struct Selection<K> {
    /// `None`: the first one.
    key: Option<K>,
    /// The part of the list that is on the screen.
    pub(super) table: TableState,
}

impl<K> Default for Selection<K> {
    fn default() -> Self {
        Self { key: None, table: TableState::new() }
    }
}

impl<K> Selection<K> {
    pub(super) fn set(&mut self, key: Option<K>) {
        self.key = key;
    }

    /// Index of the first element of a list that is the selected one, or behind its place if it is gone; `None` if the list is
    /// empty.
    pub(super) fn index<T>(
        &self,
        mut list: impl ExactSizeIterator<Item = T>,
        is_reached: impl Fn(&T, &K) -> bool,
    ) -> Option<usize> {
        let last = list.len().checked_sub(1)?;
        let Some(selected) = &self.key else { return Some(0) };
        Some(list.position(|element| is_reached(&element, selected)).unwrap_or(last))
    }
}

/// Where a key goes from `index` in a list of `length`; `page` is the number of lines of a page.
pub(super) fn step(key: Key, index: usize, length: usize, page: usize) -> usize {
    let target = match key {
        Key::Up => index.saturating_sub(1),
        Key::Down => index.saturating_add(1),
        Key::PageUp => index.saturating_sub(page),
        Key::PageDown => index.saturating_add(page),
        Key::First => 0,
        Key::Last => usize::MAX,
        Key::Left | Key::Right | Key::Enter | Key::Back | Key::Quit => index,
    };
    target.min(length.saturating_sub(1))
}
