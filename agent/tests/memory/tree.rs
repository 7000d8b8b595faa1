//! Call tree of one profile, as built by the API.

use std::{fmt, sync::Arc};

use chainscope_profile::{Kind, Kinds, Label, Measure, ProfileData, Stacks, Tree, TreeOptions};

/// Call tree with the outermost function first.
pub(crate) struct ProfileTree(Tree);

impl ProfileTree {
    pub(crate) fn of(data: &ProfileData, kind: Kind) -> Self {
        let options = TreeOptions { reverse: true, threshold: 0, kinds: Kinds::only(kind), measure: Measure::Now };
        Self(Tree::new(&Stacks::now(&[Arc::new(data.clone())]), &options, &|| false).unwrap())
    }

    /// Returns the pages of all stacks.
    pub(crate) fn total(&self) -> u64 {
        let children = self.0.children(self.0.root());
        let stacks =
            children.filter(|child| !matches!(self.0.node(*child).label, Label::BeforeAttach | Label::Unattributed));
        stacks.map(|child| self.pages(child)).sum()
    }

    fn pages(&self, node: u32) -> u64 {
        u64::try_from(self.0.node(node).value).unwrap() / 4
    }

    /// Returns the pages of all stacks that contain a function. `name` is its full name, or the prefix before a hash.
    pub(crate) fn inclusive(&self, name: &str) -> u64 {
        let mut sum = 0;
        let mut pending = vec![self.0.root()];
        while let Some(node) = pending.pop() {
            if self.is_function(node, name) {
                // Callees are included.
                sum += self.pages(node);
            } else {
                pending.extend(self.0.children(node));
            }
        }
        sum
    }

    /// Returns the maximum number of calls of a function in one stack.
    pub(crate) fn depth_below(&self, name: &str) -> usize {
        let mut max = 0;
        let mut pending = vec![(self.0.root(), 0)];
        while let Some((node, depth)) = pending.pop() {
            let depth = depth + usize::from(self.is_function(node, name));
            max = max.max(depth);
            pending.extend(self.0.children(node).map(|child| (child, depth)));
        }
        max
    }

    fn is_function(&self, node: u32, name: &str) -> bool {
        let Label::Frame(frame) = self.0.node(node).label else { return false };
        let function = self.0.frame(frame).function.as_deref().unwrap_or_default();
        let is_hashed = name.ends_with("::h") && function.strip_prefix(name).is_some_and(|hash| hash.len() == 16);
        function == name || is_hashed
    }
}

impl fmt::Debug for ProfileTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pending = vec![(self.0.root(), 0)];
        while let Some((node, depth)) = pending.pop() {
            let label = match self.0.node(node).label {
                Label::Frame(frame) => {
                    let frame = self.0.frame(frame);
                    format!("{} {}+{:x}", frame.function.as_deref().unwrap_or("?"), frame.executable, frame.offset)
                }
                other => format!("{other:?}"),
            };
            writeln!(f, "{:depth$}{} {label}", "", self.pages(node))?;
            pending.extend(self.0.children(node).rev().map(|child| (child, depth + 1)));
        }
        Ok(())
    }
}
