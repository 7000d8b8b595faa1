//! Interpreting a session (decrypt, assemble, decode, hash, preview) against nothing but opening the same chunks with crypto_box.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use chainscope_tezos::{Conversation, Direction, Identity, Limits, Output, Piece, Role};

use super::Spread;
use crate::node::messages::{Messages, Sizes};
use crate::node::reactor;
use crate::node::wire::{self, Chunks, LARGEST_PLAIN, ciphers};

/// The result for one size of messages.
#[derive(Debug)]
pub struct Figures {
    /// Bytes of a message, framing included.
    pub size: usize,
    /// Messages a second that crypto_box opens, median.
    pub open: f64,
    /// Messages a second that come out of the interpreter, median.
    pub interpret: f64,
    /// The second to the first, by pairs.
    pub ratio: Spread,
}

/// Measures `count` messages of `size` bytes, `pairs` times each way.
///
/// # Errors
/// If not all messages come out.
pub fn measure(size: usize, count: usize, pairs: usize) -> Result<Figures> {
    let mut random = rand::rng();
    let (local, remote) = (wire::Identity::generate(&mut random, 0), wire::Identity::generate(&mut random, 0));
    let hello = |identity: &wire::Identity, random: &mut _| identity.connection_message(random, 9732, b"TEZOS_MAINNET");
    let (ours, theirs) = (hello(&local, &mut random), hello(&remote, &mut random));
    let keys = || ciphers(local.secret_key(), reactor::Role::Initiator, &ours, &theirs).context("keys");
    let (mut cipher, _) = keys()?;
    let mut writes = vec![cipher.seal(&[0, 0]), cipher.seal(&[0])];
    for message in Messages::new(1, Sizes::Fixed(size)).take(count) {
        writes.extend(message.framed.chunks(LARGEST_PLAIN).map(|plain| cipher.seal(plain)));
    }
    let identity = Arc::new(Identity::from_json(&serde_json::to_vec(&local)?)?);
    let (mut open, mut interpret, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..pairs {
        let started = Instant::now();
        let (mut cipher, _) = keys()?;
        let mut chunks = Chunks::default();
        let mut opened = 0;
        for write in &writes {
            chunks.push(write);
            while let Some(chunk) = chunks.pop() {
                opened += usize::from(cipher.open(chunk.get(2..).unwrap_or_default()).is_some());
            }
        }
        let alone = count as f64 / started.elapsed().as_secs_f64();
        ensure!(opened == writes.len(), "only {opened} chunks opened");

        let started = Instant::now();
        let messages = interpreted(&identity, &ours, &theirs, &writes);
        let with = count as f64 / started.elapsed().as_secs_f64();
        ensure!(messages == count + 4, "{messages} messages came out of {count}");
        open.push(alone);
        interpret.push(with);
        ratio.push(with / alone);
    }
    Ok(Figures {
        size,
        open: Spread::of(open).median,
        interpret: Spread::of(interpret).median,
        ratio: Spread::of(ratio),
    })
}

fn interpreted(identity: &Arc<Identity>, ours: &[u8], theirs: &[u8], writes: &[Vec<u8>]) -> usize {
    let mut conversation = Conversation::new(Some(Role::Initiator), Limits::default()).with_start(0, 0);
    let mut keys = identity.clone();
    let mut messages = 0;
    let mut out = |output: Output| {
        messages += usize::from(matches!(&output, Output::Message(_)));
        std::hint::black_box(&output);
    };
    conversation.push(Piece::whole(Direction::Sent, 0, ours, 0), &mut keys, &mut out);
    conversation.push(Piece::whole(Direction::Received, 0, theirs, 0), &mut keys, &mut out);
    let mut offset = ours.len() as u64;
    for write in writes {
        conversation.push(Piece::whole(Direction::Sent, offset, write, 0), &mut keys, &mut out);
        offset += write.len() as u64;
    }
    messages
}
