// Allocation workload, release build without frame pointers: closures, boxes, collections, threads, caught panics,
// recursion.
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::Write;

#[inline(never)]
fn grow(depth: u32, seed: u64) -> Vec<Vec<u8>> {
    if depth == 0 {
        return (0..200).map(|i| black_box(vec![1_u8; 3000 + (seed as usize + i) % 2000])).collect();
    }
    let inner: Box<dyn Fn(u64) -> Vec<Vec<u8>>> = Box::new(move |s| grow(depth - 1, s));
    black_box(inner)(seed.wrapping_mul(31) + 7)
}

#[inline(never)]
fn map(seed: u64) -> usize {
    let mut tree = BTreeMap::new();
    for i in 0..5000_u64 {
        tree.insert(i.wrapping_mul(seed | 1), vec![i as u8; 64]);
    }
    tree.values().map(Vec::len).sum()
}

fn work(seed: u64) -> usize {
    let mut kept = Vec::new();
    let mut sum = 0;
    for round in 0..30_u64 {
        kept.push(grow((round % 40) as u32, seed + round));
        sum += map(seed + round);
        if round % 3 == 0 {
            kept.clear();
        }
        let caught = std::panic::catch_unwind(|| {
            if black_box(round % 5) == 0 {
                std::panic::resume_unwind(Box::new(grow(3, round)));
            }
        });
        sum += usize::from(caught.is_err());
    }
    let mut words: Vec<String> = (0..20_000).map(|i: u64| format!("{:x}", i.wrapping_mul(seed | 3))).collect();
    words.sort();
    sum + words.len() + kept.len()
}

fn main() {
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let threads: Vec<_> = (0..4).map(|seed| std::thread::spawn(move || work(seed))).collect();
    let sum: usize = work(99) + threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>();
    black_box(sum);
    println!("done");
    std::io::stdout().flush().unwrap();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {}
}
