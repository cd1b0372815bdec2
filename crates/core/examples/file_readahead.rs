//! How fast the file readahead policies decide: reads, misses and marks a second on one CPU, with a
//! page cache that costs next to nothing. `cargo run --release -p foreswap-core --example
//! file_readahead`

use std::time::Instant;

use foreswap_core::readahead::file::{
    Cached, Event, FilePage, Limits, OpenFile, PageCache, Policy, Run,
};

const PAGES: u64 = 1 << 20;
const PAGE: u64 = 4096;
const READS: u64 = 1 << 21;

struct Pages {
    cached: Vec<u8>,
}

impl Cached for Pages {
    fn file_pages(&self) -> u64 {
        PAGES
    }

    fn has(&self, page: FilePage) -> bool {
        self.cached.get(page.0 as usize).is_some_and(|&at| at > 0)
    }
}

impl PageCache for Pages {
    fn take_mark(&mut self, page: FilePage) -> bool {
        std::mem::replace(&mut self.cached[page.0 as usize], 1) == 2
    }

    fn read(&mut self, run: &Run) {
        for page in run.start.0..run.end().0 {
            let at = &mut self.cached[page as usize];
            if *at == 0 {
                *at = 1 + u8::from(run.mark() == Some(FilePage(page)));
            }
        }
    }
}

/// The page of the `n`th read.
type Pattern = fn(u64) -> u64;

/// The finalizer of SplitMix64. (A multiplication alone has strides, which `streams` finds.)
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn main() {
    let patterns: [(&str, Pattern); 3] = [
        ("sequential", |n| n % PAGES),
        ("4 streams", |n| (n % 4 * (PAGES / 4) + n / 4) % PAGES),
        ("random", |n| mix(n) % PAGES),
    ];
    println!(
        "{:<10} {:<12} {:>12} {:>14} {:>12}",
        "policy", "pattern", "ns a read", "decisions/s", "waited"
    );
    for policy in Policy::ALL {
        for (name, page) in patterns {
            let mut file = OpenFile::new(policy, Limits::default());
            let mut pages = Pages {
                cached: vec![0; PAGES as usize],
            };
            let (mut decisions, mut waited) = (0u64, 0u64);
            let start = Instant::now();
            for n in 0..READS {
                if n % PAGES == 0 {
                    pages.cached.fill(0);
                }
                waited += u64::from(!pages.has(FilePage(page(n))));
                let mut reading = file.begin(page(n) * PAGE, PAGE, PAGES * PAGE);
                while let Some(event) = reading.next(&mut pages) {
                    let plan = file.decide(&mut reading, &pages, event);
                    plan.runs().for_each(|run| pages.read(&run));
                    let asked = matches!(event, Event::Miss(_) | Event::Mark(_));
                    decisions += u64::from(asked || plan.runs().next().is_some());
                }
            }
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{:<10} {:<12} {:>12.1} {:>14.0} {:>12}",
                policy.name(),
                name,
                seconds * 1e9 / READS as f64,
                decisions as f64 / seconds,
                waited,
            );
        }
    }
}
