//! Keys of what fills the terminal, and where they go in a list.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A key with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Left,
    Right,
    Enter,
    Back,
    Quit,
}

impl Key {
    /// The meaning of a key that was pressed; `space` is that of the space bar.
    pub(crate) fn of(event: KeyEvent, space: Self) -> Option<Self> {
        if event.modifiers.contains(KeyModifiers::CONTROL) {
            return (event.code == KeyCode::Char('c')).then_some(Self::Quit);
        }
        Some(match event.code {
            KeyCode::Up | KeyCode::Char('k' | 'K') => Self::Up,
            KeyCode::Down | KeyCode::Char('j' | 'J') => Self::Down,
            KeyCode::PageUp => Self::PageUp,
            KeyCode::PageDown => Self::PageDown,
            KeyCode::Char(' ') => space,
            KeyCode::Home | KeyCode::Char('g') => Self::First,
            KeyCode::End | KeyCode::Char('G') => Self::Last,
            KeyCode::Left | KeyCode::Char('h') => Self::Left,
            KeyCode::Right | KeyCode::Char('l') => Self::Right,
            KeyCode::Enter => Self::Enter,
            KeyCode::Esc => Self::Back,
            KeyCode::Char('q') => Self::Quit,
            _ => return None,
        })
    }
}

/// Where a key goes from `index` in a list of `length`; `page` is the number of lines of a page.
pub(crate) fn step(key: Key, index: usize, length: usize, page: usize) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_c_quits_and_other_control_keys_mean_nothing() {
        let key = |code, modifiers| Key::of(KeyEvent::new(KeyCode::Char(code), modifiers), Key::PageDown);
        assert_eq!(key('c', KeyModifiers::CONTROL), Some(Key::Quit));
        assert_eq!(key('j', KeyModifiers::CONTROL), None);
        assert_eq!(key('c', KeyModifiers::NONE), None);
        assert_eq!(key('G', KeyModifiers::SHIFT), Some(Key::Last));
    }
}
