//! Keys of the live table.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A key with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
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
    /// The meaning of a key that was pressed.
    pub(super) fn of(event: KeyEvent) -> Option<Self> {
        if event.modifiers.contains(KeyModifiers::CONTROL) {
            return (event.code == KeyCode::Char('c')).then_some(Self::Quit);
        }
        Some(match event.code {
            KeyCode::Up | KeyCode::Char('k') => Self::Up,
            KeyCode::Down | KeyCode::Char('j') => Self::Down,
            KeyCode::PageUp => Self::PageUp,
            KeyCode::PageDown | KeyCode::Char(' ') => Self::PageDown,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_c_quits_and_other_control_keys_mean_nothing() {
        let key = |code, modifiers| Key::of(KeyEvent::new(KeyCode::Char(code), modifiers));
        assert_eq!(key('c', KeyModifiers::CONTROL), Some(Key::Quit));
        assert_eq!(key('j', KeyModifiers::CONTROL), None);
        assert_eq!(key('c', KeyModifiers::NONE), None);
        assert_eq!(key('G', KeyModifiers::SHIFT), Some(Key::Last));
    }
}
