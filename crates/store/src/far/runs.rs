//! Runs of pages of a buffer. The lowest free run comes first: pages that are never needed at once are never touched.

use std::ops::Range;

/// The runs in use of a buffer.
#[derive(Debug)]
pub(crate) struct Runs {
    pages: u32,
    /// By address.
    used: Vec<Range<u32>>,
    /// Pages that may have memory, from the first on.
    touched: u32,
}

impl Runs {
    pub(crate) fn new(pages: u32) -> Self {
        Self {
            pages,
            used: Vec::new(),
            touched: 0,
        }
    }

    /// `None`: no free run is that long.
    pub(crate) fn take(&mut self, pages: u32) -> Option<Range<u32>> {
        let mut start = 0;
        let gap = self.used.iter().position(|run| {
            let fits = run.start - start >= pages;
            start = if fits { start } else { run.end };
            fits
        });
        let run = start..start.checked_add(pages)?;
        if run.end > self.pages {
            return None;
        }
        self.touched = self.touched.max(run.end);
        self.used
            .insert(gap.unwrap_or(self.used.len()), run.clone());
        Some(run)
    }

    pub(crate) fn put(&mut self, run: &Range<u32>) {
        self.used.retain(|used| used != run);
    }

    /// Pages in use.
    pub(crate) fn used(&self) -> u32 {
        self.used.iter().map(|run| run.end - run.start).sum()
    }

    /// Pages that may have memory, from the first on.
    pub(crate) fn touched(&self) -> u32 {
        self.touched
    }

    /// If no run is in use: the pages whose memory can be given back. They count as untouched from now on.
    pub(crate) fn give_back(&mut self) -> u32 {
        match self.used.is_empty() {
            true => std::mem::take(&mut self.touched),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_run_comes_first() {
        const PAGES: u32 = 64;
        let mut runs = Runs::new(PAGES);
        let [first, second, third] = [3, 5, 2].map(|pages| runs.take(pages).expect("room"));
        assert_eq!((&first, &second, &third), (&(0..3), &(3..8), &(8..10)));
        runs.put(&second);
        assert_eq!(runs.take(6), Some(10..16));
        assert_eq!(runs.take(4), Some(3..7));
        assert_eq!(runs.take(1), Some(7..8));
        assert_eq!(runs.take(PAGES - 16), Some(16..PAGES));
        assert_eq!(runs.take(1), None);
        runs.put(&first);
        assert_eq!(runs.take(3), Some(0..3));
    }

    #[test]
    fn memory_is_given_back_when_no_run_is_in_use() {
        let mut runs = Runs::new(8);
        let [first, second] = [2, 3].map(|pages| runs.take(pages).expect("room"));
        runs.put(&second);
        assert_eq!((runs.give_back(), runs.touched()), (0, 5));
        runs.put(&first);
        assert_eq!((runs.give_back(), runs.touched()), (5, 0));
        assert_eq!(runs.give_back(), 0);
    }
}
