//! Reads that came together, and the few requests that answer them.
//!
//! A request for a page takes as long as one for a megabyte, and costs as much. Pages that were written together are beside each
//! other in a segment, so that the parts of a transfer, and transfers of several threads, often need one range; a gap that takes
//! less time than another request is read along.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::PAGE;
use super::log::{Found, Log, Number};
use crate::area::Area;
use crate::errno;
use crate::transfer::Part;

/// Pages that are read along (256 KiB: a few milliseconds of a connection, where a request takes tens).
const GAP: u32 = 64;
/// The most pages of a request.
const MOST: u32 = 2048;

/// A part of which pages are on their way.
pub struct Reading {
    part: RefCell<Option<Part>>,
    left: Cell<u32>,
    /// 0, or why a page cannot be had.
    errno: Cell<i32>,
    /// A page could not be read, and may be later.
    is_late: Cell<bool>,
}

impl Reading {
    fn put(&self, at: u32, bytes: &[u8]) {
        if let Some(part) = &*self.part.borrow() {
            let from = at as usize * PAGE;
            part.memory()[from..from + PAGE].copy_from_slice(bytes);
        }
    }

    /// A page is there, or is not: then the part ends with the last one.
    fn end_one(&self, area: &Area) {
        self.left.set(self.left.get() - 1);
        if self.left.get() > 0 {
            return;
        }
        let Some(part) = self.part.borrow_mut().take() else {
            return;
        };
        match (self.errno.get(), self.is_late.get()) {
            (0, true) => area.later(part),
            (errno, _) => part.end(errno),
        }
    }
}

/// A page that is wanted of an object.
struct Want {
    number: Number,
    index: u32,
    /// For whom, and which page of it.
    reading: Rc<Reading>,
    at: u32,
}

/// One request.
pub struct Get {
    /// The object.
    pub number: Number,
    /// Pages of it.
    pub pages: Range<u32>,
    wants: Vec<Want>,
}

impl Get {
    /// Bytes of the object.
    pub fn bytes(&self) -> Range<u64> {
        let byte = |page: u32| u64::from(page) * PAGE as u64;
        byte(self.pages.start)..byte(self.pages.end)
    }

    /// The answer has come.
    pub fn end(self, area: &Area, answer: Answer<'_>) {
        let expected = (self.pages.end - self.pages.start) as usize * PAGE;
        for want in self.wants {
            match answer {
                Answer::Bytes(bytes) if bytes.len() == expected => {
                    let from = (want.index - self.pages.start) as usize * PAGE;
                    want.reading.put(want.at, &bytes[from..from + PAGE]);
                }
                Answer::Gone => want.reading.errno.set(errno::IO),
                _ => want.reading.is_late.set(true),
            }
            want.reading.end_one(area);
        }
    }
}

/// What a request has got.
#[derive(Clone, Copy)]
pub enum Answer<'a> {
    /// What it asked for, or less, which is an error.
    Bytes(&'a [u8]),
    /// The object is not there.
    Gone,
    /// None.
    Failed,
}

/// Ends the parts whose pages are in memory; returns the requests for the others, whose objects are pinned.
pub fn plan(log: &mut Log, area: &Area, parts: Vec<Part>) -> Vec<Get> {
    let mut wants = Vec::new();
    for part in parts {
        let first = (part.offset() / PAGE as u64) as u32;
        let pages = part.bytes / PAGE as u32;
        let reading = Rc::new(Reading {
            part: RefCell::new(Some(part)),
            // One more, so that it does not end before all are counted.
            left: Cell::new(1),
            errno: Cell::new(0),
            is_late: Cell::new(false),
        });
        for at in 0..pages {
            match log.find(first + at) {
                Found::Here(bytes) => reading.put(at, bytes),
                // Engines read over gaps.
                Found::Never => reading.put(at, &[0; PAGE]),
                Found::Lost => reading.errno.set(errno::IO),
                Found::There(number, index) => {
                    reading.left.set(reading.left.get() + 1);
                    wants.push(Want {
                        number,
                        index,
                        reading: Rc::clone(&reading),
                        at,
                    });
                }
            }
        }
        reading.end_one(area);
    }
    wants.sort_by_key(|want| (want.number, want.index));
    let mut gets: Vec<Get> = Vec::new();
    for want in wants {
        let index = want.index;
        if let Some(get) = gets.last_mut().filter(|get| {
            let is_near = index <= get.pages.end + GAP;
            let is_short = index < get.pages.start + MOST;
            get.number == want.number && is_near && is_short
        }) {
            get.pages.end = get.pages.end.max(index + 1);
            get.wants.push(want);
            continue;
        }
        gets.push(Get {
            number: want.number,
            pages: index..index + 1,
            wants: vec![want],
        });
    }
    for get in &gets {
        log.pin(get.number);
    }
    gets
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use foreswap_store::ring::Direction;

    use super::*;
    use crate::transfer::{Target, Transfer};

    struct Seen(*mut u8, Rc<RefCell<Vec<i32>>>);

    impl Target for Seen {
        fn start(&self) -> *mut u8 {
            self.0
        }
        fn end(&self, errno: i32) {
            self.1.borrow_mut().push(errno);
        }
    }

    /// Of pages 0 to 299, with page 7 written once more behind them; the first 256 in object 0.
    fn log() -> Log {
        let mut log = Log::new(256);
        for page in 0..300u32 {
            log.write(page, &[page as u8; PAGE]);
        }
        log.write(7, &[0xee; PAGE]);
        let (number, _) = log.next_to_store().expect("a segment");
        log.on_stored(number, true);
        log
    }

    fn area() -> Area {
        Area::new(
            "s3://x".to_owned(),
            Duration::from_secs(60),
            Box::new(|_, _| ()),
        )
    }

    fn parts(first: u64, memory: &mut [u8], ended: &Rc<RefCell<Vec<i32>>>) -> Vec<Part> {
        let target = Box::new(Seen(memory.as_mut_ptr(), Rc::clone(ended)));
        let (offset, bytes) = (first * PAGE as u64, memory.len() as u32);
        Transfer::parts(Direction::Read, offset, bytes, target).collect()
    }

    #[test]
    fn parts_that_came_together_are_few_requests() {
        let (mut log, area, ended) = (log(), area(), Rc::default());
        let (mut some, mut one) = (vec![9; 200 * PAGE], vec![9; PAGE]);
        let mut all = parts(3, &mut some, &ended);
        all.extend(parts(230, &mut one, &ended));
        let mut gets = plan(&mut log, &area, all);
        assert_eq!(gets.len(), 1);
        let get = gets.pop().expect("it");
        assert_eq!((get.number, get.pages.clone()), (0, 3..231));
        assert_eq!(get.bytes(), 3 * 4096..231 * 4096);
        assert!(ended.borrow().is_empty());
        let object: Vec<u8> = (3..231u32).flat_map(|page| [page as u8; PAGE]).collect();
        get.end(&area, Answer::Bytes(&object));
        assert_eq!(*ended.borrow(), [0, 0]);
        assert_eq!((some[0], some[4 * PAGE], some[199 * PAGE]), (3, 0xee, 202));
        assert_eq!(one[0], 230);
    }

    #[test]
    fn far_pages_are_requests_of_their_own() {
        let (mut log, area, ended) = (log(), area(), Rc::default());
        let (mut first, mut last) = (vec![9; PAGE], vec![9; PAGE]);
        let mut all = parts(1, &mut first, &ended);
        all.extend(parts(200, &mut last, &ended));
        let gets = plan(&mut log, &area, all);
        let pages: Vec<_> = gets.iter().map(|get| get.pages.clone()).collect();
        assert_eq!(pages, [1..2, 200..201]);
    }

    #[test]
    fn what_is_in_memory_or_was_never_written_needs_none() {
        let (mut log, area, ended) = (log(), area(), Rc::default());
        let mut memory = vec![9; 64 * PAGE];
        let all = parts(280, &mut memory, &ended);
        assert!(plan(&mut log, &area, all).is_empty());
        assert_eq!(*ended.borrow(), [0]);
        assert_eq!((memory[0], memory[20 * PAGE]), (280u32 as u8, 0));
    }

    #[test]
    fn a_short_answer_is_tried_again_and_one_that_is_gone_is_not() {
        let (mut log, area, ended) = (log(), area(), Rc::default());
        let mut memory = vec![9; 2 * PAGE];
        for (answer, expected) in [
            (Answer::Bytes(&[0; 100]), &[][..]),
            (Answer::Failed, &[]),
            (Answer::Gone, &[errno::IO]),
        ] {
            let mut gets = plan(&mut log, &area, parts(1, &mut memory, &ended));
            gets.pop().expect("a request").end(&area, answer);
            assert_eq!(*ended.borrow(), expected);
        }
    }
}
