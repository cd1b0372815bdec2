//! The counts of readahead: of the process, of each region, and of mapped files apart.

use super::Mm;
use crate::space::vma::Vma;
use crate::stats::Ahead;
use crate::units::Vpn;

impl Mm {
    /// Readahead asked for `count` pages from `page` on.
    pub(super) fn count_ahead(&mut self, page: Vpn, count: u64) {
        self.note_ahead(page, |ahead| ahead.pages += count);
    }

    /// A page that readahead asked for was not read after all.
    pub(super) fn uncount_ahead(&mut self, page: Vpn) {
        self.note_ahead(page, |ahead| ahead.pages = ahead.pages.saturating_sub(1));
    }

    /// Counts for the process, for the region of `page`, and apart for mapped files. Returns the region.
    pub(super) fn note_ahead(&mut self, page: Vpn, note: impl Fn(&mut Ahead)) -> Option<&mut Vma> {
        note(&mut self.stats.ahead);
        let vma = self.vmas.find_mut(page)?;
        note(&mut vma.ahead);
        if vma.backing().is_some() {
            note(&mut self.stats.file_ahead);
        }
        Some(vma)
    }
}
