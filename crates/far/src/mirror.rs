//! Two far areas that are each other's copy.
//!
//! Every page is written to both, and counts as written when one has it. The mirror remembers the pages that a copy lacks, which
//! are those whose writes failed there while the server was away, or all from before it lost what was on it, and reads them from
//! the other. A read that fails is tried with the other copy at once. What a copy lacks is not written there later: pages that
//! are written again are on both.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use foreswap_store::ring::Direction;

use crate::area::Area;
use crate::errno;
use crate::transfer::Target;

const PAGE: u64 = 4096;
/// Attempts at a read.
const MOST_TRIES: u32 = 3;

/// Where engines' transfers go: an area, or two.
pub trait Store {
    /// Begins a transfer of `bytes` bytes at `offset`.
    fn submit(
        self: Rc<Self>,
        direction: Direction,
        offset: u64,
        bytes: u32,
        target: Box<dyn Target>,
    );
}

impl Store for Area {
    fn submit(
        self: Rc<Self>,
        direction: Direction,
        offset: u64,
        bytes: u32,
        target: Box<dyn Target>,
    ) {
        Area::submit(&self, direction, offset, bytes, target);
    }
}

/// One of the two.
struct OfTwo {
    area: Rc<Area>,
    /// Pages whose last write failed here.
    lacks: RefCell<BTreeSet<u64>>,
    /// Pages written since the server last lost what was on it, and the number of that loss.
    since: RefCell<(u32, BTreeSet<u64>)>,
}

impl OfTwo {
    fn has(&self, pages: Range<u64>) -> bool {
        if self.lacks.borrow().range(pages.clone()).next().is_some() {
            return false;
        }
        let (loss, since) = &*self.since.borrow();
        let losses = self.area.losses();
        losses == 0 || *loss == losses && pages.into_iter().all(|page| since.contains(&page))
    }

    fn note(&self, pages: Range<u64>, is_written: bool) {
        let mut lacks = self.lacks.borrow_mut();
        let (loss, since) = &mut *self.since.borrow_mut();
        if *loss != self.area.losses() {
            *loss = self.area.losses();
            since.clear();
        }
        for page in pages {
            match is_written {
                true => lacks.remove(&page),
                false => lacks.insert(page),
            };
            if is_written && *loss > 0 {
                since.insert(page);
            }
        }
    }
}

/// The two.
pub struct Mirror {
    copies: [OfTwo; 2],
}

impl Mirror {
    /// Of two areas; see [`Area::new`]: they have a copy.
    pub fn new(areas: [Rc<Area>; 2]) -> Self {
        Self {
            copies: areas.map(|area| OfTwo {
                area,
                lacks: RefCell::default(),
                since: RefCell::default(),
            }),
        }
    }

    fn write(self: Rc<Self>, offset: u64, bytes: u32, target: Box<dyn Target>) {
        let both = Rc::new(Both {
            target,
            left: Cell::new(2),
            results: Cell::new([0; 2]),
        });
        for which in 0..2 {
            let half = Half {
                mirror: Rc::clone(&self),
                both: Rc::clone(&both),
                which,
                offset,
                bytes,
            };
            let area = &self.copies[which].area;
            Area::submit(area, Direction::Write, offset, bytes, Box::new(half));
        }
    }

    fn read(self: Rc<Self>, offset: u64, bytes: u32, target: Box<dyn Target>) {
        let has = |which: &usize| self.copies[*which].has(pages(offset, bytes));
        let is_up = |which: usize| self.copies[which].area.is_up();
        let order = match [0, 1].map(is_up) {
            [false, true] => [1, 0],
            _ => [0, 1],
        };
        if let Some(which) = order.into_iter().find(has) {
            return self.read_from(which, 1, offset, bytes, target);
        }
        if u64::from(bytes) <= PAGE {
            return target.end(errno::IO);
        }
        // Neither has all of them.
        self.read_by_page(offset, bytes, target);
    }

    fn read_by_page(self: Rc<Self>, offset: u64, bytes: u32, target: Box<dyn Target>) {
        let whole: Rc<dyn Target> = Rc::from(target);
        let left = Rc::new((Cell::new(bytes / PAGE as u32), Cell::new(0)));
        for at in (0..bytes).step_by(PAGE as usize) {
            let part = Piece {
                whole: Rc::clone(&whole),
                left: Rc::clone(&left),
                at,
            };
            Rc::clone(&self).read(offset + u64::from(at), PAGE as u32, Box::new(part));
        }
    }

    fn read_from(
        self: Rc<Self>,
        which: usize,
        tries: u32,
        offset: u64,
        bytes: u32,
        target: Box<dyn Target>,
    ) {
        let area = Rc::clone(&self.copies[which].area);
        let read = Attempt {
            start: target.start(),
            target: RefCell::new(Some(target)),
            which,
            tries,
            mirror: self,
            offset,
            bytes,
        };
        area.submit(Direction::Read, offset, bytes, Box::new(read));
    }
}

impl Store for Mirror {
    fn submit(
        self: Rc<Self>,
        direction: Direction,
        offset: u64,
        bytes: u32,
        target: Box<dyn Target>,
    ) {
        match direction {
            Direction::Read => self.read(offset, bytes, target),
            Direction::Write => self.write(offset, bytes, target),
        }
    }
}

fn pages(offset: u64, bytes: u32) -> Range<u64> {
    offset / PAGE..(offset + u64::from(bytes)).div_ceil(PAGE)
}

/// A write on its way to both.
struct Both {
    target: Box<dyn Target>,
    left: Cell<u32>,
    results: Cell<[i32; 2]>,
}

/// One half of it.
struct Half {
    mirror: Rc<Mirror>,
    both: Rc<Both>,
    which: usize,
    offset: u64,
    bytes: u32,
}

impl Target for Half {
    fn start(&self) -> *mut u8 {
        self.both.target.start()
    }

    fn end(&self, errno: i32) {
        let both = &self.both;
        let copy = &self.mirror.copies[self.which];
        copy.note(pages(self.offset, self.bytes), errno == 0);
        let mut results = both.results.get();
        results[self.which] = errno;
        both.results.set(results);
        both.left.set(both.left.get() - 1);
        if both.left.get() > 0 {
            return;
        }
        both.target.end(match results {
            [0, _] | [_, 0] => 0,
            // Nothing was sent to either: the place is as it was.
            [errno::NO_SPACE, errno::NO_SPACE] => errno::NO_SPACE,
            [
                errno::IN_DOUBT | errno::NO_SPACE,
                errno::IN_DOUBT | errno::NO_SPACE,
            ] => errno::IN_DOUBT,
            _ => errno::IO,
        });
    }
}

/// A read of one copy.
struct Attempt {
    start: *mut u8,
    target: RefCell<Option<Box<dyn Target>>>,
    which: usize,
    /// Attempts, with this one.
    tries: u32,
    mirror: Rc<Mirror>,
    offset: u64,
    bytes: u32,
}

impl Target for Attempt {
    fn start(&self) -> *mut u8 {
        self.start
    }

    fn end(&self, errno: i32) {
        let Some(target) = self.target.borrow_mut().take() else {
            return;
        };
        let other = &self.mirror.copies[1 - self.which];
        // The second attempt may wait for a server that is away. After it, the first may be back.
        let may_help = self.tries == 1 || self.tries < MOST_TRIES && other.area.is_up();
        let mirror = Rc::clone(&self.mirror);
        if errno == 0 {
            target.end(0);
        } else if may_help && other.has(pages(self.offset, self.bytes)) {
            let (which, tries) = (1 - self.which, self.tries + 1);
            mirror.read_from(which, tries, self.offset, self.bytes, target);
        } else if may_help && u64::from(self.bytes) > PAGE {
            // The other has some of them, perhaps.
            mirror.read_by_page(self.offset, self.bytes, target);
        } else if errno == errno::IO && self.tries < MOST_TRIES && !self.is_up() {
            // Its server went away just now, and has the only copy: this waits until it is back.
            mirror.read_from(self.which, self.tries + 1, self.offset, self.bytes, target);
        } else {
            target.end(errno);
        }
    }
}

impl Attempt {
    fn is_up(&self) -> bool {
        self.mirror.copies[self.which].area.is_up()
    }
}

/// A page of a read that goes page by page.
struct Piece {
    whole: Rc<dyn Target>,
    /// Pages that have not ended, and the first error.
    left: Rc<(Cell<u32>, Cell<i32>)>,
    at: u32,
}

impl Target for Piece {
    fn start(&self) -> *mut u8 {
        // The memory is as long as the whole.
        self.whole.start().wrapping_add(self.at as usize)
    }

    fn end(&self, errno: i32) {
        let (left, first) = &*self.left;
        if first.get() == 0 {
            first.set(errno);
        }
        left.set(left.get() - 1);
        if left.get() == 0 {
            self.whole.end(first.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transfer::Part;

    type Ended = Rc<RefCell<Vec<(u64, i32)>>>;

    struct Seen(*mut u8, u64, Ended);

    impl Target for Seen {
        fn start(&self) -> *mut u8 {
            self.0
        }
        fn end(&self, errno: i32) {
            self.2.borrow_mut().push((self.1, errno));
        }
    }

    struct Bench {
        mirror: Rc<Mirror>,
        memory: Vec<u8>,
        ended: Ended,
    }

    fn bench() -> Bench {
        let area = || {
            let say = Box::new(|_, _| ());
            let area = Area::with_copy("nbd://x".to_owned(), Duration::from_secs(60), say);
            area.on_up();
            Rc::new(area)
        };
        Bench {
            mirror: Rc::new(Mirror::new([area(), area()])),
            memory: vec![0; 16 << 12],
            ended: Rc::default(),
        }
    }

    impl Bench {
        fn submit(&mut self, direction: Direction, page: u64, pages: u32) {
            let target = Seen(self.memory.as_mut_ptr(), page, Rc::clone(&self.ended));
            let mirror = Rc::clone(&self.mirror);
            mirror.submit(
                direction,
                page * PAGE,
                pages * PAGE as u32,
                Box::new(target),
            );
        }

        fn area(&self, which: usize) -> &Area {
            &self.mirror.copies[which].area
        }

        fn take(&self, which: usize) -> Part {
            self.area(which).next().expect("a part")
        }

        fn ended(&self) -> Vec<(u64, i32)> {
            std::mem::take(&mut self.ended.borrow_mut())
        }

        fn written(&mut self, page: u64, results: [i32; 2]) {
            self.submit(Direction::Write, page, 1);
            for (which, errno) in results.into_iter().enumerate() {
                self.take(which).end(errno);
            }
        }
    }

    use Direction::Read;

    #[test]
    fn a_page_is_written_when_one_has_it_and_read_from_that_one() {
        let mut bench = bench();
        for (page, results, expected) in [
            (1, [0, 0], 0),
            (2, [errno::IO, 0], 0),
            (3, [0, errno::NO_SPACE], 0),
            (4, [errno::NO_SPACE; 2], errno::NO_SPACE),
            (5, [errno::NO_SPACE, errno::IO], errno::IO),
            (6, [errno::NO_SPACE, errno::IN_DOUBT], errno::IN_DOUBT),
            (7, [errno::IO, errno::IN_DOUBT], errno::IO),
        ] {
            bench.written(page, results);
            assert_eq!(bench.ended(), [(page, expected)]);
        }
        for (page, which) in [(1, 0), (2, 1), (3, 0)] {
            bench.submit(Read, page, 1);
            bench.take(which).end(0);
            assert_eq!(bench.ended(), [(page, 0)]);
        }
        bench.submit(Read, 4, 1);
        assert_eq!(bench.ended(), [(4, errno::IO)]);
        // Written again, it is on both.
        bench.written(2, [0, 0]);
        bench.submit(Read, 2, 1);
        bench.take(0).end(0);
        assert_eq!(bench.ended(), [(2, 0), (2, 0)]);
    }

    #[test]
    fn a_read_that_fails_is_tried_with_the_other_copy_if_that_has_it() {
        let mut bench = bench();
        bench.written(1, [0, 0]);
        bench.written(2, [0, errno::IO]);
        bench.ended();
        bench.submit(Read, 1, 1);
        bench.take(0).end(errno::TIMED_OUT);
        bench.take(1).end(0);
        bench.submit(Read, 1, 1);
        bench.take(0).end(errno::TIMED_OUT);
        bench.take(1).end(errno::IO);
        // The first is up, and asked once more.
        bench.take(0).end(errno::IO);
        bench.submit(Read, 2, 1);
        bench.take(0).end(errno::TIMED_OUT);
        assert_eq!(
            bench.ended(),
            [(1, 0), (1, errno::IO), (2, errno::TIMED_OUT)]
        );
        assert!(bench.area(1).next().is_none());
    }

    #[test]
    fn pages_of_which_each_copy_lacks_some_are_read_one_by_one() {
        let mut bench = bench();
        bench.written(1, [0, errno::IO]);
        bench.written(2, [errno::IO, 0]);
        bench.written(3, [0, 0]);
        bench.ended();
        bench.submit(Read, 1, 3);
        for (which, page, byte) in [(0, 1, 7), (1, 2, 8), (0, 3, 9)] {
            let part = bench.take(which);
            assert_eq!((part.offset() / PAGE, part.bytes), (page, PAGE as u32));
            part.memory().fill(byte);
            assert_eq!(bench.ended(), []);
            part.end(0);
        }
        assert_eq!(bench.ended(), [(1, 0)]);
        assert_eq!([0, 1, 2].map(|page| bench.memory[page << 12]), [7, 8, 9]);
    }

    #[test]
    fn a_server_that_goes_away_is_not_waited_for() {
        let mut bench = bench();
        bench.written(1, [0, 0]);
        bench.ended();
        bench.submit(Read, 1, 1);
        let sent = vec![bench.take(0)];
        bench.area(0).on_down(0, sent, "gone");
        bench.take(1).end(0);
        assert_eq!(bench.ended(), [(1, 0)]);
        // While it is away, the other is asked first, and written to alone.
        bench.submit(Read, 1, 1);
        bench.take(1).end(0);
        bench.submit(Direction::Write, 2, 1);
        bench.take(1).end(0);
        bench.area(0).on_up();
        bench.submit(Read, 2, 1);
        bench.take(1).end(0);
        assert_eq!(bench.ended(), [(1, 0), (2, 0), (2, 0)]);
    }

    #[test]
    fn the_server_with_the_only_copy_is_waited_for() {
        let mut bench = bench();
        bench.written(1, [0, 0]);
        bench.written(2, [0, errno::IO]);
        bench.ended();
        // It goes away in the middle of the read of one page, and of both.
        for pages in [1, 2] {
            bench.submit(Read, 3 - u64::from(pages), pages);
            let sent = bench.take(0);
            bench.area(0).on_down(0, vec![sent], "gone");
            if pages == 2 {
                bench.take(1).end(0);
            }
            assert_eq!(bench.ended(), [], "{pages} pages");
            bench.area(0).on_up();
            bench.take(0).end(0);
            assert_eq!(bench.ended(), [(3 - u64::from(pages), 0)]);
        }
    }

    #[test]
    fn a_server_that_was_emptied_has_what_was_written_since() {
        let mut bench = bench();
        bench.written(1, [0, 0]);
        bench.area(0).on_lost();
        bench.written(2, [0, 0]);
        bench.ended();
        for (page, which) in [(1, 1), (2, 0)] {
            bench.submit(Read, page, 1);
            bench.take(which).end(0);
            assert_eq!(bench.ended(), [(page, 0)]);
        }
        // Once more.
        bench.area(0).on_lost();
        bench.submit(Read, 2, 1);
        bench.take(1).end(0);
        assert_eq!(bench.ended(), [(2, 0)]);
    }

    #[test]
    fn while_both_are_away_a_read_waits_for_either() {
        let mut bench = bench();
        bench.written(1, [0, 0]);
        bench.ended();
        for which in [0, 1] {
            bench.area(which).on_down(0, Vec::new(), "gone");
        }
        bench.submit(Read, 1, 1);
        assert_eq!(bench.ended(), []);
        // It waits for the first; then for the second, until the first is back.
        bench.take(0).end(errno::TIMED_OUT);
        bench.area(0).on_up();
        bench.take(1).end(errno::TIMED_OUT);
        bench.take(0).end(0);
        assert_eq!(bench.ended(), [(1, 0)]);
    }
}
