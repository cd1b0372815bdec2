//! A store that takes its time and fails where it is told to.
//!
//! A transfer ends `delay` after its bytes have passed a link of `bandwidth`, one transfer after the other: latency is
//! shared by transfers in flight, bandwidth is not. Jitter is drawn from a seed, by the number of the transfer. The
//! other store moves the bytes at once; only their arrival is late.

use std::collections::BinaryHeap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Direction, Done, Span, Store};

/// How slow a store is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slowness {
    /// Added to each transfer.
    pub delay: Duration,
    /// Bytes per second; 0: unlimited.
    pub bandwidth: u64,
    /// Added at most, at random.
    pub jitter: Duration,
    /// For the jitter.
    pub seed: u64,
}

#[derive(Debug)]
struct Late {
    due: Instant,
    number: u64,
    result: io::Result<u64>,
    done: Done,
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Late {}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Late {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

#[derive(Debug, Default)]
struct Link {
    free_at: Option<Instant>,
    transfers: u64,
    late: BinaryHeap<Late>,
    failing: Vec<(Direction, Range<u64>)>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    link: Mutex<Link>,
    changed: Condvar,
}

impl Shared {
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces ends when they are due.
    fn run(&self) {
        let mut link = self.link();
        loop {
            let now = Instant::now();
            let next = link.late.peek().map(|late| late.due);
            link = match next {
                Some(due) if due <= now => {
                    let Some(late) = link.late.pop() else {
                        continue;
                    };
                    drop(link);
                    late.done.end(late.result);
                    self.link()
                }
                Some(due) => {
                    let waited = self.changed.wait_timeout(link, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None if link.closed => return,
                None => self
                    .changed
                    .wait(link)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// A slow store on top of another.
#[derive(Debug)]
pub struct SlowStore {
    inner: Arc<dyn Store>,
    slowness: Slowness,
    shared: Arc<Shared>,
}

impl SlowStore {
    /// Makes `inner` slow.
    ///
    /// # Errors
    /// The thread that announces the ends cannot be started.
    pub fn new(inner: Arc<dyn Store>, slowness: Slowness) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let timer = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("foreswap-slow".to_owned());
        thread.spawn(move || timer.run())?;
        Ok(SlowStore {
            inner,
            slowness,
            shared,
        })
    }

    /// From now on transfers in this direction that touch these bytes fail with EIO.
    pub fn fail(&self, direction: Direction, bytes: Range<u64>) {
        self.shared.link().failing.push((direction, bytes));
    }

    /// No transfer fails any more.
    pub fn heal(&self) {
        self.shared.link().failing.clear();
    }

    /// The number of a transfer and when it ends; the error with which it fails.
    fn plan(&self, span: &Span) -> (u64, Instant, io::Result<()>) {
        let (now, mut link) = (Instant::now(), self.shared.link());
        let number = link.transfers;
        link.transfers += 1;
        let through = match self.slowness.bandwidth {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(span.bytes() as f64 / rate as f64),
        };
        let free_at = link.free_at.map_or(now, |at| at.max(now)) + through;
        link.free_at = Some(free_at);
        let part = (mix(self.slowness.seed ^ number) >> 40) as f64 / (1u64 << 24) as f64;
        let due = free_at + self.slowness.delay + self.slowness.jitter.mul_f64(part);
        let touched = span.offset()..span.offset() + span.bytes() as u64;
        let fails = link.failing.iter().any(|(direction, bytes)| {
            *direction == span.direction() && bytes.start < touched.end && touched.start < bytes.end
        });
        let result = match fails {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        };
        (number, due, result)
    }
}

/// The finaliser of SplitMix64: a number that looks random, for each number.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Store for SlowStore {
    fn start(&self, span: Span, done: Done) {
        let (number, due, planned) = self.plan(&span);
        let shared = Arc::clone(&self.shared);
        let later = move |result| {
            let late = Late {
                due,
                number,
                result,
                done,
            };
            let mut link = shared.link();
            // The thread sleeps until the earliest end.
            let is_earliest = link.late.peek().is_none_or(|next| due < next.due);
            link.late.push(late);
            drop(link);
            if is_earliest {
                shared.changed.notify_one();
            }
        };
        match planned {
            Ok(()) => self.inner.start(span, Done::new(later)),
            Err(error) => later(Err(error)),
        }
    }

    fn carry_out(&self, span: &Span) -> io::Result<u64> {
        let (_, due, planned) = self.plan(span);
        let result = planned.and_then(|()| self.inner.carry_out(span));
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        result
    }

    fn bytes(&self) -> io::Result<u64> {
        self.inner.bytes()
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        self.inner.set_bytes(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

impl Drop for SlowStore {
    fn drop(&mut self) {
        self.shared.link().closed = true;
        self.shared.changed.notify_one();
    }
}
