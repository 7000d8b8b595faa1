//! Which nodes of a call tree have memory: few of them are the end of a stack.

use std::sync::Arc;

/// A node without a sample.
const NO_SAMPLE: u32 = u32::MAX;

/// The samples of a call tree: one for each node at which a stack ends that holds memory, or held some before. Values of
/// samples are in columns of their own, by number of the sample. A clone shares the columns (copy on write).
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    /// Node of each sample.
    nodes: Arc<Vec<u32>>,
    /// Number of each node's sample, or [`NO_SAMPLE`].
    of_node: Arc<Vec<u32>>,
}

impl Samples {
    /// Node of each sample.
    pub(crate) fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Number of samples.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Number of a node's sample, if it has one.
    pub(crate) fn get(&self, node: u32) -> Option<usize> {
        self.of_node.get(node as usize).filter(|sample| **sample != NO_SAMPLE).map(|sample| *sample as usize)
    }

    /// Number of a node's sample, which is added if the node has none.
    pub(crate) fn get_or_add(&mut self, node: u32) -> usize {
        if let Some(sample) = self.get(node) {
            return sample;
        }
        let of_node = Arc::make_mut(&mut self.of_node);
        if of_node.len() <= node as usize {
            of_node.resize(node as usize + 1, NO_SAMPLE);
        }
        let sample = self.nodes.len();
        of_node[node as usize] = sample as u32;
        Arc::make_mut(&mut self.nodes).push(node);
        sample
    }
}
