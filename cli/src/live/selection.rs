//! The selected element of a list that changes: it stays selected wherever it moves.

use ratatui::widgets::TableState;

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
