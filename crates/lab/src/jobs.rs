//! Parallel independent runs: the results depend neither on their number at a time nor on their order of completion.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The maximum of `--jobs`.
const MOST: usize = 1024;

/// Parses the value of `--jobs`.
///
/// # Errors
///
/// The expected form.
pub fn count(text: &str) -> Result<NonZeroUsize, String> {
    let jobs = text.parse().ok().and_then(NonZeroUsize::new);
    jobs.filter(|jobs| jobs.get() <= MOST)
        .ok_or_else(|| format!("expected a whole number from 1 to {MOST}"))
}

/// As many as there are CPUs, unless `asked` for another number.
pub fn number(asked: Option<NonZeroUsize>) -> NonZeroUsize {
    asked
        .or_else(|| thread::available_parallelism().ok())
        .unwrap_or(NonZeroUsize::MIN)
}

/// Runs `work` on each of `items`, at most `jobs` at a time; the results have the order of the items. A panic is
/// propagated to the caller.
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
