//! Tables as text.

use chainscope_hygiene::Escaped;
use clap::builder::styling::{AnsiColor, Style};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::terminal;

/// Spaces between two columns.
const GAP: usize = 2;
/// Least width to which the text of the last column is cut.
const MIN_LAST_WIDTH: usize = 12;

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    name: &'static str,
    is_right: bool,
    /// Columns with greater numbers are left out first where a table is wider than the terminal; 0: never.
    rank: u8,
}

/// A column that is always shown, aligned left.
pub(crate) const fn left(name: &'static str) -> Column {
    Column { name, is_right: false, rank: 0 }
}

/// A column that is always shown, aligned right.
pub(crate) const fn right(name: &'static str) -> Column {
    Column { name, is_right: true, rank: 0 }
}

impl Column {
    /// The same column, left out if the terminal is too narrow, the greatest rank first.
    pub(crate) const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }
}

/// A value of a table, which is escaped.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

/// A plain value.
pub(crate) fn cell(text: impl ToString) -> Cell {
    Cell { text: Escaped(&text.to_string()).to_string(), style: Style::new() }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Cell {
    /// The value with a colour.
    pub(crate) fn style(self, style: Style) -> Self {
        Self { style, ..self }
    }
}

/// The style of a good value.
pub(crate) fn good() -> Style {
    AnsiColor::Green.on_default()
}

/// The style of an error.
pub(crate) fn bad() -> Style {
    AnsiColor::Red.on_default()
}

/// The style of a value that deserves attention.
pub(crate) fn warning() -> Style {
    AnsiColor::Yellow.on_default()
}

/// The style of an unimportant value.
pub(crate) fn faint() -> Style {
    Style::new().dimmed()
}

/// A table with a heading.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints the table as wide as the terminal; columns that are left out are named on standard error.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let (text, omitted) = self.render(terminal::columns(), terminal::has_colours());
        terminal::write(text.as_bytes())?;
        if !omitted.is_empty() {
            terminal::note(&format!("not shown at this width: {}; -o json has everything", omitted.join(", ")));
        }
        Ok(())
    }

    /// The lines of the table, and the columns that are left out. Text of the last column is cut where it does not fit; columns
    /// without any value are not shown.
    fn render(&self, limit: Option<usize>, has_colours: bool) -> (String, Vec<&'static str>) {
        let widths: Vec<usize> = (0..self.columns.len()).map(|index| self.width(index)).collect();
        let mut shown: Vec<usize> = (0..self.columns.len()).filter(|index| self.has_values(*index)).collect();
        let mut omitted = Vec::new();
        while let Some(limit) = limit {
            let least = |index: &usize| {
                if self.is_flexible(*index) { widths[*index].min(MIN_LAST_WIDTH) } else { widths[*index] }
            };
            let total = shown.iter().map(|index| least(index) + GAP).sum::<usize>().saturating_sub(GAP);
            let last = shown.iter().enumerate().max_by_key(|(_, index)| self.columns[**index].rank);
            match last {
                Some((position, index)) if total > limit && self.columns[*index].rank > 0 => {
                    omitted.insert(0, self.columns[*index].name);
                    shown.remove(position);
                }
                _ => break,
            }
        }
        let heading: Vec<Cell> =
            self.columns.iter().map(|column| cell(column.name).style(Style::new().bold())).collect();
        let mut text = String::new();
        for cells in std::iter::once(&heading).chain(&self.rows) {
            let line = self.line(cells, &shown, &widths, limit, has_colours);
            text.push_str(line.trim_end());
            text.push('\n');
        }
        (text, omitted)
    }

    fn has_values(&self, index: usize) -> bool {
        self.rows.iter().any(|row| row.get(index).is_some_and(|cell| !cell.text.is_empty()))
    }

    /// Whether text of a column may be cut: it is the last one.
    fn is_flexible(&self, index: usize) -> bool {
        index + 1 == self.columns.len()
    }

    fn width(&self, index: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.text.width());
        cells.chain([self.columns.get(index).map_or(0, |column| column.name.width())]).max().unwrap_or_default()
    }

    fn line(
        &self,
        cells: &[Cell],
        shown: &[usize],
        widths: &[usize],
        limit: Option<usize>,
        has_colours: bool,
    ) -> String {
        let (mut line, mut used) = (String::new(), 0);
        for (position, index) in shown.iter().enumerate() {
            let Some(cell) = cells.get(*index) else { continue };
            let is_last = position + 1 == shown.len();
            let text = match limit {
                Some(limit) if self.is_flexible(*index) => cut(&cell.text, limit.saturating_sub(used)),
                _ => cell.text.clone(),
            };
            let space = " ".repeat(widths[*index].saturating_sub(text.width()));
            let style = if has_colours { cell.style } else { Style::new() };
            let styled = format!("{style}{text}{style:#}");
            match (self.columns[*index].is_right, is_last) {
                (true, _) => line.push_str(&format!("{space}{styled}")),
                (false, true) => line.push_str(&styled),
                (false, false) => line.push_str(&format!("{styled}{space}")),
            }
            line.push_str(&" ".repeat(GAP));
            used += widths[*index] + GAP;
        }
        line
    }
}

/// The text, cut to a width; `…` marks that it was.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut used = 0;
    let fitting = text.chars().take_while(|character| {
        used += character.width().unwrap_or_default();
        used < width
    });
    fitting.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::{Table, bad, cell, cut, left, right};

    fn table() -> Table {
        let mut table = Table::new(&[left("NAME"), right("COUNT"), left("KIND").rank(1), left("REASON")]);
        table.row(vec![cell("a"), cell(12_345_678), cell("k"), cell("because \u{1b}[2J")]);
        table.row(vec![cell("東京"), cell(1).style(bad()), cell(""), cell("")]);
        table
    }

    #[test]
    fn columns_are_aligned_and_left_out_by_rank() {
        let (text, omitted) = table().render(None, false);
        let expected =
            ["NAME     COUNT  KIND  REASON", "a     12345678  k     because \\u{1b}[2J", "東京         1", ""];
        assert_eq!((text.split('\n').collect::<Vec<_>>(), omitted), (expected.to_vec(), vec![]));
        let (text, omitted) = table().render(Some(30), false);
        assert_eq!(text.lines().nth(1), Some("a     12345678  because \\u{1b…"));
        assert_eq!(omitted, ["KIND"]);
        let (text, omitted) = table().render(Some(10), false);
        assert!(text.starts_with("NAME     COUNT  …\n") && omitted == ["KIND"], "{text}");
        let mut empty = Table::new(&[left("A"), left("B")]);
        empty.row(vec![cell("a"), cell("")]);
        assert_eq!(empty.render(None, false).0, "A\na\n");
        assert!(table().render(None, true).0.contains("       \u{1b}[31m1\u{1b}[0m"));
    }

    #[test]
    fn text_is_cut_by_its_width() {
        assert_eq!(
            (cut("東京都", 6).as_str(), cut("東京都", 5).as_str(), cut("abc", 2).as_str()),
            ("東京都", "東京…", "a…")
        );
    }
}
