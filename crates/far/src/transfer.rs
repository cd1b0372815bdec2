//! A transfer, and the parts in which it goes over the connections.
//!
//! Parts are small: a page that a thread waits for does not wait behind megabytes that are written, and a large transfer
//! uses all connections.

use std::cell::Cell;
use std::rc::Rc;

use foreswap_store::ring::Direction;
use tokio::time::Instant;

/// The most bytes of a part.
pub const PART: u32 = 256 << 10;

/// The byte from which on parts end at multiples of [`PART`]: behind the mark, as clusters of slots do.
const FIRST: u64 = 4096;

/// The owner of a transfer's memory, who hears of its end.
pub trait Target {
    /// The first byte. The memory stays mapped as long as the value lives; nobody else uses it before the end.
    fn start(&self) -> *mut u8;
    /// All bytes were transferred (0), or the transfer has failed with an errno. Called once.
    fn end(&self, errno: i32);
}

/// One transfer.
pub struct Transfer {
    /// From or to the server.
    pub direction: Direction,
    /// The first byte in the export.
    pub offset: u64,
    /// When it came.
    pub began: Instant,
    target: Box<dyn Target>,
    /// Parts that have not ended.
    left: Cell<u32>,
    errno: Cell<i32>,
}

/// A part of one.
pub struct Part {
    /// The whole.
    pub of: Rc<Transfer>,
    /// The first byte in it.
    from: u32,
    /// Bytes.
    pub bytes: u32,
    /// Attempts that have failed.
    pub tries: u32,
}

impl Transfer {
    /// The parts of a transfer of `bytes` bytes.
    pub fn parts(
        direction: Direction,
        offset: u64,
        bytes: u32,
        target: Box<dyn Target>,
    ) -> impl Iterator<Item = Part> {
        let unit = u64::from(PART);
        // How far the first part goes.
        let first = (unit - offset.wrapping_sub(FIRST) % unit).min(bytes.into()) as u32;
        let rest = (first..bytes).step_by(PART as usize);
        let of = Rc::new(Self {
            direction,
            offset,
            began: Instant::now(),
            target,
            left: Cell::new(1 + (bytes - first).div_ceil(PART)),
            errno: Cell::new(0),
        });
        std::iter::once(0).chain(rest).map(move |from| Part {
            of: Rc::clone(&of),
            from,
            bytes: match from {
                0 => first,
                _ => PART.min(bytes - from),
            },
            tries: 0,
        })
    }
}

impl Part {
    /// The first byte in the export.
    pub fn offset(&self) -> u64 {
        self.of.offset + u64::from(self.from)
    }

    /// Whether it goes to the server.
    pub fn is_write(&self) -> bool {
        self.of.direction == Direction::Write
    }

    /// Its memory.
    #[expect(clippy::mut_from_ref, reason = "see the argument")]
    pub fn memory(&self) -> &mut [u8] {
        // SAFETY: the target's memory is as long as the transfer and nobody else uses it before its end, which comes after
        // that of its parts; each byte belongs to one part, and a part is used by one connection at a time.
        unsafe {
            let start = self.of.target.start().add(self.from as usize);
            std::slice::from_raw_parts_mut(start, self.bytes as usize)
        }
    }

    /// It has ended, successfully (0) or not.
    pub fn end(self, errno: i32) {
        let of = &self.of;
        if of.errno.get() == 0 {
            of.errno.set(errno);
        }
        of.left.set(of.left.get() - 1);
        if of.left.get() == 0 {
            of.target.end(of.errno.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Seen(*mut u8, Rc<Cell<Option<i32>>>);

    impl Target for Seen {
        fn start(&self) -> *mut u8 {
            self.0
        }
        fn end(&self, errno: i32) {
            assert_eq!(self.1.replace(Some(errno)), None);
        }
    }

    fn parts(bytes: u32, memory: &mut [u8]) -> (Vec<Part>, Rc<Cell<Option<i32>>>) {
        let ended = Rc::default();
        let target = Seen(memory.as_mut_ptr(), Rc::clone(&ended));
        let parts = Transfer::parts(Direction::Write, 8192, bytes, Box::new(target));
        (parts.collect(), ended)
    }

    #[test]
    fn parts_cover_it_and_the_first_error_is_the_result() {
        let mut memory = vec![0; 3 * PART as usize];
        let (all, ended) = parts(2 * PART + 4096, &mut memory);
        let places: Vec<_> = all
            .iter()
            .map(|part| (part.offset() - 8192, part.bytes))
            .collect();
        assert_eq!(
            places,
            [
                (0, PART - 4096),
                (u64::from(PART) - 4096, PART),
                (u64::from(2 * PART) - 4096, 8192)
            ]
        );
        for (number, part) in (1..).zip(&all) {
            part.memory().fill(number);
        }
        for (part, errno) in all.into_iter().rev().zip([0, 5, 110]) {
            assert_eq!(ended.get(), None);
            part.end(errno);
        }
        assert_eq!(ended.get(), Some(5));
        assert_eq!(
            (
                memory[0],
                memory[PART as usize - 4096],
                memory[2 * PART as usize - 4096]
            ),
            (1, 2, 3)
        );
    }
}
