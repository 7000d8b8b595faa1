//! Functions that take known times, which they record themselves, for the tests of the latency probe. Commands and answers are those of
//! latency_workload.cc: `nap COUNT US`, `apply COUNT US`, `panic COUNT US`; `exact NAME`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

static RECORDED: Mutex<BTreeMap<&str, Vec<u128>>> = Mutex::new(BTreeMap::new());

/// `duration` is computed by the function itself: the call may be its exit, a jump, after which its thread may be preempted.
fn record(name: &'static str, duration: Duration) {
    let duration = duration.as_nanos();
    RECORDED.lock().unwrap_or_else(|error| error.into_inner()).entry(name).or_default().push(duration);
}

mod work {
    use super::{Duration, Instant, record};

    #[inline(never)]
    pub(crate) fn nap(us: u64) {
        let start = Instant::now();
        std::thread::sleep(Duration::from_micros(us));
        record("nap", start.elapsed());
    }

    pub(crate) trait Apply<T> {
        fn apply(&self, value: T) -> T;
    }

    pub(crate) struct Chain<T>(pub(crate) T);

    impl Apply<u64> for Chain<u64> {
        #[inline(never)]
        fn apply(&self, us: u64) -> u64 {
            let start = Instant::now();
            std::thread::sleep(Duration::from_micros(us));
            record("apply", start.elapsed());
            us + self.0
        }
    }

    /// Panics if the argument is odd. What panics is not recorded.
    #[inline(never)]
    pub(crate) fn fail(us: u64) {
        let start = Instant::now();
        std::thread::sleep(Duration::from_micros(us));
        assert!(us % 2 == 0, "odd");
        record("panic", start.elapsed());
    }
}

fn exact(name: &str) -> String {
    let recorded = RECORDED.lock().unwrap_or_else(|error| error.into_inner());
    let mut values = recorded.get(name).cloned().unwrap_or_default();
    values.sort_unstable();
    let ranks = [0, 50, 90, 99, 100].map(|percent: usize| {
        // Nearest rank.
        let rank = (values.len() * percent).div_ceil(100).max(1);
        values.get(rank - 1).copied().unwrap_or(0).to_string()
    });
    format!("{} {} {}", values.len(), values.iter().sum::<u128>(), ranks.join(" "))
}

fn main() {
    use work::Apply as _;

    std::panic::set_hook(Box::new(|_| {}));
    for line in io::stdin().lock().lines() {
        let line = line.expect("readable");
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["exact", name] => exact(name),
            [name, count, us] => {
                let us: u64 = us.parse().expect("a number");
                for _ in 0..count.parse::<u64>().expect("a number") {
                    match name {
                        "nap" => work::nap(us),
                        "apply" => drop(std::hint::black_box(work::Chain(us).apply(us))),
                        "panic" => drop(std::panic::catch_unwind(|| work::fail(us))),
                        _ => {}
                    }
                }
                count.to_owned()
            }
            _ => panic!("{line}"),
        };
        println!("{answer}");
        io::stdout().flush().expect("open");
    }
}
