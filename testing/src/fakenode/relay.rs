//! Blocks that reach a node through several peers, at times that are known.

use super::{
    FakeNode, Fired,
    blocks::{Block, setting},
};

/// How one block reached the node.
#[derive(Clone, Debug)]
pub struct Relay {
    /// The block.
    pub block: Block,
    /// Its messages in order, then `validation:block_connected`.
    pub fired: Vec<Fired>,
}

/// Milliseconds between two steps.
const STEP_MS: u32 = 15;

impl Relay {
    /// Peer 1 announces the block by `inv`, is asked for it, and delivers nothing; peer 2 announces it by `headers`, is asked
    /// and delivers `block`; peer 3 announces it when it is too late.
    ///
    /// # Panics
    /// Like [`FakeNode::execute`].
    #[track_caller]
    pub fn after_stalling(node: &mut FakeNode, block: Block, height: u32) -> Self {
        let (inv, getdata) = (block.inv(), block.getdata());
        let steps = [
            Step::inbound(1, "inv", inv.clone()),
            Step::outbound(1, "getdata", getdata.clone()),
            Step::inbound(2, "headers", block.headers()),
            Step::outbound(2, "getdata", getdata),
            Step::inbound(2, "block", block.block()),
            Step::inbound(3, "inv", inv),
        ];
        Self::play(node, block, height, &steps)
    }

    /// Peer 3 announces the block by `cmpctblock`, with the coinbase only, and is asked for the other transactions; peer 1
    /// announces it by `inv` meanwhile.
    ///
    /// # Panics
    /// Like [`FakeNode::execute`].
    #[track_caller]
    pub fn compact(node: &mut FakeNode, block: Block, height: u32) -> Self {
        let steps = [
            Step::inbound(3, "cmpctblock", block.cmpctblock()),
            Step::outbound(3, "getblocktxn", block.getblocktxn()),
            Step::inbound(1, "inv", block.inv()),
            Step::inbound(3, "blocktxn", block.blocktxn()),
        ];
        Self::play(node, block, height, &steps)
    }

    /// The firing of a message.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    #[track_caller]
    pub fn message(&self, peer: i64, message_type: &str) -> &Fired {
        let is_it = |fired: &&Fired| {
            fired.tracepoint != CONNECTED
                && fired.number_of("peer_id") == peer
                && fired.show("message_type") == message_type
        };
        self.fired.iter().find(is_it).expect("a step")
    }

    /// The firing of `validation:block_connected`.
    ///
    /// # Panics
    /// Never: a relay ends with it.
    #[must_use]
    pub fn connected(&self) -> &Fired {
        self.fired.last().expect("the last step")
    }

    fn play(node: &mut FakeNode, block: Block, height: u32, steps: &[Step]) -> Self {
        let mut fired = Vec::new();
        for step in steps {
            node.execute(&format!("pause {STEP_MS}"));
            let Step { peer, tracepoint, message_type, payload } = step;
            let peer = format!("peer_id={peer} address=203.0.113.{peer}:8333");
            let payload = setting(payload);
            fired.push(node.fire(&format!("{tracepoint} {peer} message_type={message_type} {payload}")));
        }
        node.execute(&format!("pause {STEP_MS}"));
        let (id, transactions) = (block.id(), block.transactions.len());
        fired.push(node.fire(&format!("{CONNECTED} hash={id} height={height} transactions={transactions}")));
        Self { block, fired }
    }
}

const CONNECTED: &str = "validation:block_connected";

/// A message.
struct Step {
    peer: u32,
    tracepoint: &'static str,
    message_type: &'static str,
    payload: Vec<u8>,
}

impl Step {
    fn inbound(peer: u32, message_type: &'static str, payload: Vec<u8>) -> Self {
        Self { peer, tracepoint: "net:inbound_message", message_type, payload }
    }

    fn outbound(peer: u32, message_type: &'static str, payload: Vec<u8>) -> Self {
        Self { peer, tracepoint: "net:outbound_message", message_type, payload }
    }
}
