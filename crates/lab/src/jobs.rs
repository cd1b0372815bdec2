//! Runs beside each other that know nothing of each other: what comes out depends neither on how many go
//! on at a time nor on which ends first.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The most that `--jobs` may ask for.
const MOST: usize = 1024;

/// The value of `--jobs`.
///
/// # Errors
///
/// Says what was expected.
pub fn count(text: &str) -> Result<NonZeroUsize, String> {
    let jobs = text.parse().ok().and_then(NonZeroUsize::new);
    jobs.filter(|jobs| jobs.get() <= MOST)
        .ok_or_else(|| format!("expected a whole number from 1 to {MOST}"))
}

/// As many as there are CPUs, unless `asked` for otherwise.
pub fn number(asked: Option<NonZeroUsize>) -> NonZeroUsize {
    asked
        .or_else(|| thread::available_parallelism().ok())
        .unwrap_or(NonZeroUsize::MIN)
}

/// `work` on each of `items`, at most `jobs` at a time; the results in the order of the items. A panic of
/// one goes on to the caller.
pub fn each<T: Sync, R: Send>(
    jobs: NonZeroUsize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let results: Vec<_> = items.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..jobs.get().min(items.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((item, place)) = items.get(at).zip(results.get(at)) else {
                        return;
                    };
                    let result = work(item);
                    if let Ok(mut place) = place.lock() {
                        *place = Some(result);
                    }
                }
            });
        }
    });
    let results = results.into_iter();
    results
        .filter_map(|place| place.into_inner().ok().flatten())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_jobs_is_read() {
        assert_eq!(count("3").map(NonZeroUsize::get), Ok(3));
        for wrong in ["0", "1025", "-1", "two", ""] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_are_in_order_and_never_more_run_than_may() {
        let items: Vec<u64> = (0..50).collect();
        for jobs in [1, 2, 7, 100] {
            let jobs = NonZeroUsize::new(jobs).expect("not zero");
            let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let results = each(jobs, &items, |&item| {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                item * item
            });
            assert!(results.iter().copied().eq((0..50).map(|n| n * n)));
            assert!(most.into_inner() <= jobs.get());
        }
        assert!(each(NonZeroUsize::MIN, &[], |&item: &u64| item).is_empty());
    }
}
