//! Whether the disk ends at once all that it has.
//!
//! Disks of virtual machines may be worked off by one thread, an I/O after the other, that tells of their ends only
//! when nothing is left in the queue. Who gives such a disk more to do as he finds room hears nothing until no room is
//! left; then all has ended, and the disk does nothing until there is room again. It is fastest in
//! batches: while it has anything, neither reads ahead nor writes begin, and when all has ended, as many as there is
//! room for. A disk that tells of each end by itself is fastest if it has more to do, so which kind it is
//! must be found out, and is found out again all the time.

use crate::world::Disk;

/// I/Os whose ends are told together on such a disk; for fewer that may be chance.
const SEVERAL: u64 = 3;
/// How much more often it is to be seen than its contrary before it is believed, or no longer.
const SURE: u32 = 6;

/// What was seen of the disk.
#[derive(Default)]
pub(crate) struct AtOnce {
    /// As it was looked at last.
    seen: Disk,
    /// From none (0) to [`SURE`].
    evidence: u32,
    believed: bool,
}

impl AtOnce {
    /// The disk is looked at. True: neither reads ahead nor writes shall begin now.
    pub fn look(&mut self, disk: Disk) -> bool {
        let begun = disk.begun.saturating_sub(self.seen.begun);
        let ended = (self.seen.left + begun).saturating_sub(disk.left);
        // Of what it had then.
        let left = disk.left.saturating_sub(begun);
        self.seen = disk;
        if ended >= SEVERAL && left == 0 {
            self.evidence = (self.evidence + 1).min(SURE);
        } else if ended > 0 && left > 0 {
            self.evidence = self.evidence.saturating_sub(1);
        }
        self.believed = match self.believed {
            true => self.evidence > 0,
            false => self.evidence == SURE,
        };
        self.believed && disk.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that has `n` I/Os at a time, and tells of their ends `together` at a time.
    fn seen(at_once: &mut AtOnce, n: u64, together: u64) -> bool {
        let mut disk = at_once.seen;
        disk.begun += n;
        disk.left += n;
        let mut held_back = at_once.look(disk);
        while disk.left > 0 {
            disk.left = disk.left.saturating_sub(together);
            held_back |= at_once.look(disk);
        }
        assert!(!at_once.look(disk), "it has nothing");
        held_back
    }

    #[test]
    fn a_disk_that_ends_all_at_once_is_found_out_and_given_batches() {
        let mut at_once = AtOnce::default();
        for _ in 0..SURE {
            assert!(!seen(&mut at_once, 4, 4));
        }
        assert!(seen(&mut at_once, 4, 4));
        assert!(seen(&mut at_once, 1, 1));
    }

    #[test]
    fn one_that_tells_of_each_end_has_as_much_as_there_is_room_for() {
        let mut at_once = AtOnce::default();
        for n in 1..100 {
            assert!(!seen(&mut at_once, n, 1));
        }
        for _ in 0..=SURE {
            seen(&mut at_once, 8, 8);
        }
        // It was chance.
        for _ in 0..2 {
            seen(&mut at_once, 8, 1);
        }
        assert!(!seen(&mut at_once, 8, 1));
    }

    #[test]
    fn single_ends_say_nothing() {
        let mut at_once = AtOnce::default();
        for _ in 0..100 {
            assert!(!seen(&mut at_once, 1, 1));
        }
    }

    #[test]
    fn what_began_after_the_last_look_and_has_not_ended_says_nothing() {
        let mut at_once = AtOnce::default();
        let mut disk = Disk::default();
        for _ in 0..20 {
            disk.begun += 3;
            disk.left += 3;
            at_once.look(disk);
            // They ended, and two more began.
            disk.begun += 2;
            disk.left = 2;
            at_once.look(disk);
            disk.left = 0;
            at_once.look(disk);
        }
        disk.begun += 1;
        disk.left += 1;
        assert!(at_once.look(disk), "evidence was lost");
    }
}
