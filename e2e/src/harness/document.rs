//! Documents with commands, in fenced blocks and in the text.

use std::{cell::Cell, path::Path};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Programs that commands in the text run.
const PROGRAMS: [&str; 8] = ["kubectl", "helm", "docker", "skopeo", "ctr", "k3d", "minikube", "kind"];

/// A document of this repository.
pub struct Document {
    /// Its path in the repository.
    pub path: String,
    blocks: Vec<Block>,
}

/// A fenced block, or a command in the text, whose language is `sh`.
struct Block {
    language: String,
    text: String,
    /// Set when [`Document::block`] returns it.
    is_used: Cell<bool>,
}

impl Block {
    fn new(language: &str, text: String) -> Self {
        Self { language: language.to_owned(), text, is_used: Cell::new(false) }
    }
}

impl Document {
    /// Reads a document of the repository.
    ///
    /// # Panics
    /// If it cannot be read, or a block has no end.
    #[must_use]
    pub fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let (mut blocks, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
        let mut paragraph = String::new();
        for line in text.lines() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(language), None) => {
                    blocks.extend(commands_in_text(&std::mem::take(&mut paragraph)));
                    open = Some(Block::new(language, String::new()));
                }
                (None, Some(block)) => block.text += &format!("{line}\n"),
                (None, None) if line.is_empty() => {
                    blocks.extend(commands_in_text(&std::mem::take(&mut paragraph)));
                }
                (None, None) => paragraph += &format!("{line}\n"),
            }
        }
        blocks.extend(commands_in_text(&paragraph));
        assert!(open.is_none(), "{path}: a block has no end");
        Self { path: path.to_owned(), blocks }
    }

    /// The text of the first block, or the first command in the text, that contains this.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn block(&self, text: &str) -> &str {
        let block = self.blocks.iter().find(|block| block.text.contains(text));
        let block = block.unwrap_or_else(|| panic!("{} has no block with {text}", self.path));
        self.blocks.iter().filter(|same| same.text == block.text).for_each(|same| same.is_used.set(true));
        &block.text
    }

    /// The blocks of shell commands, and commands in the text, that [`block`](Self::block) has not returned.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let unused = self.blocks.iter().filter(|block| block.language == "sh" && !block.is_used.get());
        unused.map(|block| block.text.as_str())
    }

    /// The commands, without comments: the lines of blocks of shell commands, in other blocks those after a prompt (`$ `), and
    /// those in the text. Lines that belong to one command are one.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        for block in &self.blocks {
            match block.language.as_str() {
                "sh" => commands.extend(commands_of(&block.text)),
                _ => commands.extend(block.text.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned)),
            }
        }
        commands
    }
}

/// Asserts that a table of kubectl has the columns that a document shows after the command.
///
/// # Panics
/// If it has others.
pub fn assert_has_columns(printed: &str, shown: &str) {
    let columns = |line: Option<&str>| line.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(columns(printed.lines().next()), columns(shown.lines().nth(1)));
}

/// The commands among the inline code of a paragraph. Two words, such as `helm upgrade`, only name one.
fn commands_in_text(paragraph: &str) -> impl Iterator<Item = Block> {
    let code = paragraph.split('`').skip(1).step_by(2);
    let words = code.map(|code| code.split_whitespace().collect::<Vec<_>>());
    let commands = words.filter(|words| {
        let is_command =
            words.first().is_some_and(|first| PROGRAMS.contains(first)) || words.starts_with(&["for", "name"]);
        is_command && words.len() > 2
    });
    commands.map(|words| Block::new("sh", words.join(" ") + "\n"))
}

/// The commands of a shell script.
fn commands_of(script: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        let mut command = line.split_once(" # ").map_or(line, |(command, _)| command).trim_end().to_owned();
        while let Some(part) = command.strip_suffix('\\') {
            command = part.to_owned() + lines.next().unwrap_or_default();
        }
        if let Some((_, end)) = line.split_once("<<") {
            let end = end.trim_matches('\'');
            let body = lines.by_ref().take_while(|line| *line != end).collect::<Vec<_>>();
            command = format!("{command}\n{}\n{end}", body.join("\n"));
        }
        if !command.is_empty() && !command.starts_with('#') {
            commands.push(command);
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::{commands_in_text, commands_of};

    #[test]
    fn commands_of_several_lines_are_one() {
        let script = "# first\na 'b' \\\n  c   # comment\n\nd <<'END'\ne # f\nEND\ng $(h) | i .  # j\n";
        assert_eq!(commands_of(script), ["a 'b'   c   # comment", "d <<'END'\ne # f\nEND", "g $(h) | i ."]);
    }

    #[test]
    fn inline_code_is_a_command_if_it_has_a_program_and_arguments() {
        let text =
            "`helm upgrade` and `docker run\n--rm a`, `spec.ports` | `kubectl get pods` | `for name in a; do b; done`.";
        let found: Vec<_> = commands_in_text(text).map(|block| block.text).collect();
        assert_eq!(found, ["docker run --rm a\n", "kubectl get pods\n", "for name in a; do b; done\n"]);
    }
}
