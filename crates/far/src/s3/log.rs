//! Which page is in which object: a log of segments, and which of them is cleaned next.
//!
//! An object cannot be changed, and a request for one takes as long as one for thousands of pages. So pages are never written
//! to places of their own: they are appended to a segment in memory, which becomes an object when it is full. A page that is
//! written again leaves a dead copy behind. Segments with few live pages are cleaned: read, and their live pages appended
//! to a segment that has only such pages, because a page that has stayed for long stays longer; mixed with new ones, it
//! would be moved again and again.
//!
//! A segment keeps its memory until its object is stored. Pages count as written before that: the table of places is in the
//! memory of the same process, without which the objects say nothing.
//!
//! This decides only. [`super::served`] carries out.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};

use super::PAGE;

/// Segments of new pages that may be in memory. Eight objects of 8 MiB on their way are 600 MiB/s if one takes 100 ms.
const MOST_STAGED: usize = 10;
/// Segments of moved pages that may be in memory beside them.
const MOST_MOVED: usize = 6;
/// Cleaning begins when a fourth of what is stored is dead, and so many segments more, and new pages wait for it at the double.
const SLACK: u64 = 4;

/// The number of a segment, and of its object.
pub type Number = u32;

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Spot {
    #[default]
    Never,
    Lost,
    At(Number, u32),
}

/// What is known of a page.
#[derive(PartialEq, Eq, Debug)]
pub enum Found<'a> {
    /// It was never written.
    Never,
    /// It was written, and its object is gone.
    Lost,
    /// In memory.
    Here(&'a [u8]),
    /// In an object, at an index in units of pages.
    There(Number, u32),
}

/// Whether pages are new, or come from a segment that is cleaned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    New,
    Moved,
}

#[derive(PartialEq, Eq, Debug)]
enum State {
    /// Pages are appended.
    Open(BytesMut),
    /// To be stored.
    Full(Bytes),
    /// Being stored.
    Storing(Bytes),
    Stored,
    /// Being read, for its live pages to be moved.
    Cleaning,
    /// Its object is to be removed.
    Dead,
    Removing,
}

#[derive(Debug)]
struct Segment {
    kind: Kind,
    state: State,
    /// The pages of the area that were appended, live or not.
    owners: Vec<u32>,
    /// Those of them whose place is still here.
    live: u32,
    /// Reads of the object that are under way.
    readers: u32,
    /// An object may be there.
    was_sent: bool,
}

impl Segment {
    fn memory(&self) -> Option<&[u8]> {
        match &self.state {
            State::Open(bytes) => Some(bytes),
            State::Full(bytes) | State::Storing(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// All of an area.
pub struct Log {
    segment_pages: u32,
    spots: Vec<Spot>,
    segments: BTreeMap<Number, Segment>,
    next: Number,
    /// The segments that new and moved pages are appended to.
    open: [Option<Number>; 2],
    /// Pages that are somewhere.
    live: u64,
    /// Pages in objects that are stored, live or not.
    stored: u64,
    /// Segments of each kind that are full or being stored.
    staged: [usize; 2],
    full: BTreeSet<Number>,
    cleaning: usize,
    dead: BTreeSet<Number>,
}

impl Log {
    /// Without a page. Segments have `segment_pages` pages.
    pub fn new(segment_pages: u32) -> Self {
        Self {
            segment_pages,
            spots: Vec::new(),
            segments: BTreeMap::new(),
            next: 0,
            open: [None; 2],
            live: 0,
            stored: 0,
            staged: [0; 2],
            full: BTreeSet::new(),
            cleaning: 0,
            dead: BTreeSet::new(),
        }
    }

    /// Changes the state of a segment, or forgets it, and what is counted of it.
    fn turn(&mut self, number: Number, state: Option<State>) {
        let Some(mut segment) = self.segments.remove(&number) else {
            return;
        };
        self.count(number, &segment, false);
        if let Some(state) = state {
            segment.state = state;
            self.count(number, &segment, true);
            self.segments.insert(number, segment);
        }
    }

    fn count(&mut self, number: Number, segment: &Segment, is_more: bool) {
        let step = |count: usize| match is_more {
            true => count + 1,
            false => count - 1,
        };
        let pages = segment.owners.len() as u64;
        match segment.state {
            State::Full(_) | State::Storing(_) => {
                let staged = &mut self.staged[segment.kind as usize];
                *staged = step(*staged);
            }
            State::Stored | State::Cleaning if is_more => self.stored += pages,
            State::Stored | State::Cleaning => self.stored -= pages,
            State::Open(_) | State::Dead | State::Removing => {}
        }
        let set = match segment.state {
            State::Full(_) => &mut self.full,
            State::Dead => &mut self.dead,
            State::Cleaning => {
                self.cleaning = step(self.cleaning);
                return;
            }
            _ => return,
        };
        match is_more {
            true => set.insert(number),
            false => set.remove(&number),
        };
    }

    /// Where a page is.
    pub fn find(&self, page: u32) -> Found<'_> {
        match self.spot(page) {
            Spot::Never => Found::Never,
            Spot::Lost => Found::Lost,
            Spot::At(number, index) => {
                let segment = self.segments.get(&number);
                let memory = segment.and_then(Segment::memory);
                match memory {
                    Some(memory) => {
                        let from = index as usize * PAGE;
                        Found::Here(&memory[from..from + PAGE])
                    }
                    None => Found::There(number, index),
                }
            }
        }
    }

    fn spot(&self, page: u32) -> Spot {
        self.spots.get(page as usize).copied().unwrap_or_default()
    }

    /// Whether as many new pages as a segment has can be appended.
    pub fn has_room(&self) -> bool {
        self.staged[Kind::New as usize] + 1 < MOST_STAGED
    }

    /// Whether cleaning is so far behind that new pages have to wait.
    pub fn is_behind(&self) -> bool {
        let slack = 2 * SLACK * u64::from(self.segment_pages);
        self.stored > 2 * self.live + slack
    }

    /// Takes a new version of a page. There must be room.
    pub fn write(&mut self, page: u32, bytes: &[u8]) {
        self.append(Kind::New, page, bytes);
    }

    fn append(&mut self, kind: Kind, page: u32, bytes: &[u8]) {
        debug_assert_eq!(bytes.len(), PAGE);
        let number = match self.open[kind as usize] {
            Some(number) => number,
            None => self.open_segment(kind),
        };
        let Some(segment) = self.segments.get_mut(&number) else {
            return;
        };
        let State::Open(memory) = &mut segment.state else {
            return;
        };
        memory.extend_from_slice(bytes);
        let index = segment.owners.len() as u32;
        segment.owners.push(page);
        segment.live += 1;
        if segment.owners.len() as u32 == self.segment_pages {
            let full = State::Full(std::mem::take(memory).freeze());
            self.turn(number, Some(full));
            self.open[kind as usize] = None;
        }
        self.leave(page);
        if self.spots.len() <= page as usize {
            self.spots.resize(page as usize + 1, Spot::Never);
        }
        self.spots[page as usize] = Spot::At(number, index);
        self.live += 1;
    }

    fn open_segment(&mut self, kind: Kind) -> Number {
        let number = self.next;
        self.next += 1;
        let bytes = self.segment_pages as usize * PAGE;
        let segment = Segment {
            kind,
            state: State::Open(BytesMut::with_capacity(bytes)),
            owners: Vec::with_capacity(self.segment_pages as usize),
            live: 0,
            readers: 0,
            was_sent: false,
        };
        self.segments.insert(number, segment);
        self.open[kind as usize] = Some(number);
        number
    }

    /// The copy of a page, if there is one, is dead.
    fn leave(&mut self, page: u32) {
        let Spot::At(number, _) = self.spot(page) else {
            return;
        };
        self.live -= 1;
        let Some(segment) = self.segments.get_mut(&number) else {
            return;
        };
        segment.live -= 1;
        if segment.live > 0 {
            return;
        }
        match segment.state {
            State::Full(_) if !segment.was_sent => self.turn(number, None),
            State::Full(_) | State::Stored => self.turn(number, Some(State::Dead)),
            // Pages are still appended, or something is under way, at whose end this is seen.
            _ => {}
        }
    }

    /// The next segment to store, and its bytes. Ends with [`Log::on_stored`].
    pub fn next_to_store(&mut self) -> Option<(Number, Bytes)> {
        let number = self.full.first().copied()?;
        let segment = self.segments.get_mut(&number)?;
        segment.was_sent = true;
        let State::Full(bytes) = &segment.state else {
            return None;
        };
        let bytes = bytes.clone();
        self.turn(number, Some(State::Storing(bytes.clone())));
        Some((number, bytes))
    }

    /// A segment was stored, or not.
    pub fn on_stored(&mut self, number: Number, is_stored: bool) {
        let Some(segment) = self.segments.get(&number) else {
            return;
        };
        let State::Storing(bytes) = &segment.state else {
            return;
        };
        let state = match (segment.live > 0, is_stored) {
            (true, true) => State::Stored,
            (true, false) => State::Full(bytes.clone()),
            // One that nobody needs may be there all the same.
            (false, _) => State::Dead,
        };
        self.turn(number, Some(state));
    }

    /// The next segment to clean, if one should be: the one with the fewest live pages. Ends with [`Log::on_read`].
    pub fn next_to_clean(&mut self) -> Option<Number> {
        let slack = SLACK * u64::from(self.segment_pages);
        let is_due = self.stored * 3 > self.live * 4 + slack * 3;
        // The pages of each may fill one, and begin another.
        let moved = self.staged[Kind::Moved as usize] + self.cleaning;
        if !is_due || moved + 1 >= MOST_MOVED {
            return None;
        }
        let segments = self.segments.iter();
        let stored = segments.filter(|(_, segment)| segment.state == State::Stored);
        let fewest = stored.min_by_key(|(_, segment)| segment.live);
        let (&number, _) = fewest.filter(|(_, s)| s.live < s.owners.len() as u32)?;
        self.turn(number, Some(State::Cleaning));
        Some(number)
    }

    /// A segment that is cleaned was read, or could not be.
    pub fn on_read(&mut self, number: Number, bytes: Option<&[u8]>) {
        let Some(segment) = self.segments.get(&number) else {
            return;
        };
        if segment.state != State::Cleaning {
            return;
        }
        if segment.live == 0 {
            return self.turn(number, Some(State::Dead));
        }
        self.turn(number, Some(State::Stored));
        let Some(segment) = self.segments.get(&number) else {
            return;
        };
        let owners = segment.owners.clone();
        let bytes = bytes.filter(|bytes| bytes.len() == owners.len() * PAGE);
        let pages = bytes.into_iter().flat_map(|bytes| bytes.chunks_exact(PAGE));
        let live: Vec<_> = (0..)
            .zip(owners.iter().zip(pages))
            .filter(|(index, (page, _))| self.spot(**page) == Spot::At(number, *index))
            .map(|(_, (page, bytes))| (*page, bytes))
            .collect();
        for (page, bytes) in live {
            self.append(Kind::Moved, page, bytes);
        }
    }

    /// A read of an object begins.
    pub fn pin(&mut self, number: Number) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.readers += 1;
        }
    }

    /// It has ended.
    pub fn unpin(&mut self, number: Number) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.readers -= 1;
        }
    }

    /// The next object to remove, which nobody reads. Ends with [`Log::on_removed`].
    pub fn next_to_remove(&mut self) -> Option<Number> {
        let readers = |number: &Number| self.segments.get(number).map_or(0, |s| s.readers);
        let mut dead = self.dead.iter().copied();
        let number = dead.find(|number| readers(number) == 0)?;
        self.turn(number, Some(State::Removing));
        Some(number)
    }

    /// An object was removed, or not.
    pub fn on_removed(&mut self, number: Number, is_removed: bool) {
        self.turn(number, (!is_removed).then_some(State::Dead));
    }

    /// The object of a segment is not there any more. Returns whether pages are lost by that.
    pub fn on_gone(&mut self, number: Number) -> bool {
        let Some(segment) = self.segments.get(&number) else {
            return false;
        };
        if !matches!(segment.state, State::Stored | State::Cleaning) {
            return false;
        }
        let (lost, owners) = (segment.live, segment.owners.clone());
        self.live -= u64::from(lost);
        self.turn(number, None);
        for (index, page) in (0..).zip(owners) {
            let spot = &mut self.spots[page as usize];
            if *spot == Spot::At(number, index) {
                *spot = Spot::Lost;
            }
        }
        lost > 0
    }

    /// No object is there any more.
    pub fn on_all_gone(&mut self) {
        let all: Vec<Number> = self.segments.keys().copied().collect();
        for number in all {
            self.on_gone(number);
        }
    }

    /// Whether an object is on its way.
    pub fn is_storing(&self) -> bool {
        let mut segments = self.segments.values();
        segments.any(|segment| matches!(segment.state, State::Storing(_)))
    }

    /// Nothing is stored any more. Returns the objects that may be there.
    pub fn close(&mut self) -> Vec<Number> {
        self.segments.retain(|_, segment| segment.was_sent);
        self.full.clear();
        self.segments.keys().copied().collect()
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
