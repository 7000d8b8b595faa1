//! Allocates memory by commands on standard input: `hold FUNCTION PAGES` and `release`, each answered with `ok`.

use std::{
    hint::black_box,
    io::{BufRead, Write},
};

/// Reserves untouched pages, large enough for a separate mapping.
#[inline(never)]
fn reserve(pages: usize) -> Vec<u8> {
    Vec::with_capacity(pages * 4096)
}

/// Writes a distinct value for each caller, so that identical functions are not merged.
#[inline(always)]
fn touch(memory: &mut Vec<u8>, value: u8) {
    let begin = memory.as_mut_ptr();
    for page in 0..memory.capacity() / 4096 {
        unsafe { begin.add(page * 4096).write_volatile(value) };
    }
}

mod chain {
    use super::*;

    #[inline(never)]
    pub fn apply_block(pages: usize) -> Vec<u8> {
        let mut memory = reserve(pages);
        touch(&mut memory, 1);
        black_box(memory)
    }

    pub struct Context;

    impl Context {
        #[inline(never)]
        pub fn commit(&self, pages: usize) -> Vec<u8> {
            let mut memory = reserve(pages);
            touch(&mut memory, 2);
            black_box(memory)
        }
    }

    /// Called through a trait object and a closure.
    #[inline(never)]
    pub fn validate(pages: usize) -> Vec<u8> {
        let run: Box<dyn Fn(usize) -> Vec<u8>> = Box::new(|pages| {
            let mut memory = reserve(pages);
            touch(&mut memory, 3);
            black_box(memory)
        });
        black_box(run)(pages)
    }
}

fn main() {
    let mut held = Vec::with_capacity(1024);
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").unwrap();
    out.flush().unwrap();
    let mut line = String::with_capacity(1024);
    let mut input = std::io::stdin().lock();
    while {
        line.clear();
        input.read_line(&mut line).unwrap() > 0
    } {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["hold", "apply_block", pages] => held.push(chain::apply_block(pages.parse().unwrap())),
            ["hold", "commit", pages] => held.push(chain::Context.commit(pages.parse().unwrap())),
            ["hold", "validate", pages] => held.push(chain::validate(pages.parse().unwrap())),
            ["release"] => held.clear(),
            _ => panic!("{line}"),
        }
        writeln!(out, "ok").unwrap();
        out.flush().unwrap();
    }
}
