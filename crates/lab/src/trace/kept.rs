//! Which pages of a recorded run were mapped from frames that they had not left.
//!
//! A touch of a huge page in frames is recorded as a touch of one page that was kept, and its other pages are then recorded as
//! mapped before a touch, as those are that readahead has read. They were not read: they are the rest of the same huge page.

use std::collections::HashMap;

use super::{Event, Found, Vpn};

/// Pages of a huge page.
const UNIT: u64 = 512;

/// The page of each address space whose touch was the last, if it was kept.
#[derive(Debug, Default)]
pub struct KeptUnits(HashMap<u32, Vpn>);

impl KeptUnits {
    /// The next event of an address space. True: it is the mapping of the rest of a huge page that was in frames.
    pub fn is_rest(&mut self, space: u32, event: &Event) -> bool {
        match event {
            Event::Touch {
                page,
                found: Found::Kept,
                ..
            } => {
                self.0.insert(space, *page);
            }
            Event::Touch { .. } | Event::End => {
                self.0.remove(&space);
            }
            Event::Prefetched(pages) => {
                return self.0.get(&space).is_some_and(|kept| {
                    let start = kept.0 / UNIT * UNIT;
                    let below = pages.start.0 == start && pages.end == *kept;
                    below || pages.start.0 == kept.0 + 1 && pages.end.0 == start + UNIT
                });
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_kept_huge_page_was_not_read() {
        let mut kept = KeptUnits::default();
        let touch = |page, found| Event::Touch {
            page: Vpn(page),
            found,
            write: false,
        };
        let mapped = |from, to| Event::Prefetched(Vpn(from)..Vpn(to));
        assert!(!kept.is_rest(1, &mapped(512, 600)));
        assert!(!kept.is_rest(1, &touch(600, Found::Kept)));
        assert!(kept.is_rest(1, &mapped(512, 600)) && kept.is_rest(1, &mapped(601, 1024)));
        assert!(!kept.is_rest(2, &mapped(512, 600)), "of another process");
        assert!(
            !kept.is_rest(1, &mapped(601, 650)),
            "read ahead of a stream"
        );
        assert!(!kept.is_rest(1, &touch(600, Found::Away)));
        assert!(!kept.is_rest(1, &mapped(512, 600)));
    }
}
