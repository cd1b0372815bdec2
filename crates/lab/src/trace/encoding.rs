//! Encoding of records: the inside of a block. `docs/TRACES.md` specifies it byte by byte.
//!
//! Numbers are LEB128, differences are zigzag. Repetition costs nothing: an unchanged task, an unchanged time step
//! and the page after the last one are each one bit of the tag, and a scan takes one byte per touch even before
//! compression. No state outlives its block.

use foreswap_core::units::{PageRange, Vpn, len};

use super::record::{Event, Found, Record, Start};

const KIND: u8 = 0x0f;
const SAME_TASK: u8 = 0x10;
const NEXT_PAGE: u8 = 0x20;
const SAME_STEP: u8 = 0x40;
const WRITE: u8 = 0x80;

const START: u8 = 1;
const END: u8 = 2;
const MAP: u8 = 3;
const UNMAP: u8 = 4;
const DISCARD: u8 = 5;
const MOVE: u8 = 6;
const TOUCH: u8 = 7;
const TOUCH_NEW: u8 = 8;
const TOUCH_KEPT: u8 = 9;
const TOUCH_AHEAD: u8 = 10;
const TOUCH_AWAY: u8 = 11;
const FILE: u8 = 12;
const PREFETCHED: u8 = 13;
const EVICTED: u8 = 14;
const LOST: u8 = 15;

/// Bytes of the longest record.
pub(super) const LONGEST: usize = 64;

/// The state relative to which the next record is encoded.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Context {
    time: u64,
    step: u64,
    task: u32,
    /// The page after the last one named.
    next: u64,
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A difference modulo 2^64, small in either direction.
fn put_difference(out: &mut Vec<u8>, from: u64, to: u64) {
    let difference = to.wrapping_sub(from) as i64;
    put(out, ((difference << 1) ^ (difference >> 63)) as u64);
}

impl Context {
    /// Append `record`.
    pub(super) fn encode(&mut self, record: &Record, out: &mut Vec<u8>) {
        let (kind, pages, write) = match &record.event {
            Event::Start(_) => (START, None, false),
            Event::End => (END, None, false),
            Event::Map(pages) => (MAP, Some(pages.clone()), false),
            Event::Unmap(pages) => (UNMAP, Some(pages.clone()), false),
            Event::Discard(pages) => (DISCARD, Some(pages.clone()), false),
            Event::Move { from, .. } => (MOVE, Some(from.clone()), false),
            Event::Touch { page, found, write } => {
                let kind = match found {
                    Found::Unknown => TOUCH,
                    Found::New => TOUCH_NEW,
                    Found::Kept => TOUCH_KEPT,
                    Found::Ahead => TOUCH_AHEAD,
                    Found::Away => TOUCH_AWAY,
                };
                (kind, Some(*page..page.plus(1)), *write)
            }
            Event::File { pages, write, .. } => (FILE, Some(pages.clone()), *write),
            Event::Prefetched(pages) => (PREFETCHED, Some(pages.clone()), false),
            Event::Evicted(pages) => (EVICTED, Some(pages.clone()), false),
            Event::Lost(_) => (LOST, None, false),
        };
        let step = record.time.wrapping_sub(self.time);
        let mut tag = kind;
        if record.task == self.task {
            tag |= SAME_TASK;
        }
        if pages.as_ref().is_some_and(|p| p.start.0 == self.next) {
            tag |= NEXT_PAGE;
        }
        if step == self.step {
            tag |= SAME_STEP;
        }
        if write {
            tag |= WRITE;
        }
        out.push(tag);
        if tag & SAME_TASK == 0 {
            put(out, record.task.into());
        }
        if tag & SAME_STEP == 0 {
            put_difference(out, self.time, record.time);
        }
        if let Some(pages) = &pages {
            if tag & NEXT_PAGE == 0 {
                put_difference(out, self.next, pages.start.0);
            }
            if !(TOUCH..=TOUCH_AWAY).contains(&kind) {
                put(out, len(pages));
            }
            self.next = pages.end.0;
        }
        match &record.event {
            Event::Start(start) => {
                put(out, start.space.into());
                put(out, start.pid.into());
                put(out, start.tid.into());
                put(out, start.parent.map_or(0, |parent| u64::from(parent) + 1));
            }
            Event::Move { from, to } => put_difference(out, from.start.0, to.0),
            Event::File { file, .. } => put(out, (*file).into()),
            Event::Lost(records) => put(out, *records),
            _ => {}
        }
        (self.time, self.step, self.task) = (record.time, step, record.task);
    }

    /// Remove a record from the front of `bytes`, or return the expected form.
    pub(super) fn decode(&mut self, bytes: &mut &[u8]) -> Result<Record, String> {
        let (&tag, rest) = bytes
            .split_first()
            .ok_or("the block's bytes end; expected a record")?;
        *bytes = rest;
        let kind = tag & KIND;
        let named = matches!(kind, MAP..=EVICTED);
        if kind == 0 || tag & NEXT_PAGE != 0 && !named {
            return Err(format!("tag {tag:#04x}; expected a kind of record"));
        }
        if tag & WRITE != 0 && !matches!(kind, TOUCH..=FILE) {
            return Err(format!(
                "tag {tag:#04x}; only touches and files are written to"
            ));
        }
        let task = match tag & SAME_TASK {
            0 => small(bytes, "a task")?,
            _ => self.task,
        };
        let step = match tag & SAME_STEP {
            0 => difference(bytes, "a time")?,
            _ => self.step,
        };
        let time = self.time.wrapping_add(step);
        let mut pages = Vpn(0)..Vpn(0);
        if named {
            let start = match tag & NEXT_PAGE {
                0 => self.next.wrapping_add(difference(bytes, "a page")?),
                _ => self.next,
            };
            let count = match kind {
                TOUCH..=TOUCH_AWAY => 1,
                _ => number(bytes, "a number of pages")?,
            };
            pages = range(start, count)?;
            self.next = pages.end.0;
        }
        let touch = |found| Event::Touch {
            page: pages.start,
            found,
            write: tag & WRITE != 0,
        };
        let event = match kind {
            START => Event::Start(Start {
                space: small(bytes, "an address space")?,
                pid: small(bytes, "a pid")?,
                tid: small(bytes, "a tid")?,
                parent: small(bytes, "a parent")?.checked_sub(1),
            }),
            END => Event::End,
            MAP => Event::Map(pages),
            UNMAP => Event::Unmap(pages),
            DISCARD => Event::Discard(pages),
            MOVE => Event::Move {
                to: Vpn(pages.start.0.wrapping_add(difference(bytes, "a page")?)),
                from: pages,
            },
            TOUCH => touch(Found::Unknown),
            TOUCH_NEW => touch(Found::New),
            TOUCH_KEPT => touch(Found::Kept),
            TOUCH_AHEAD => touch(Found::Ahead),
            TOUCH_AWAY => touch(Found::Away),
            FILE => Event::File {
                file: small(bytes, "a file")?,
                pages,
                write: tag & WRITE != 0,
            },
            PREFETCHED => Event::Prefetched(pages),
            EVICTED => Event::Evicted(pages),
            _ => Event::Lost(number(bytes, "a number of records")?),
        };
        (self.time, self.step, self.task) = (time, step, task);
        Ok(Record { time, task, event })
    }
}

fn range(start: u64, count: u64) -> Result<PageRange, String> {
    match start.checked_add(count) {
        Some(end) => Ok(Vpn(start)..Vpn(end)),
        None => Err(format!(
            "{count} pages from {start:#x} on; no address space is that large"
        )),
    }
}

fn number(bytes: &mut &[u8], what: &str) -> Result<u64, String> {
    let mut value = 0u64;
    for (n, &byte) in bytes.iter().enumerate() {
        let part = u64::from(byte & 0x7f);
        let shift = 7 * n as u32;
        if shift > 63 || part << shift >> shift != part {
            return Err(format!("more than 64 bits; expected {what}"));
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            *bytes = &bytes[n + 1..];
            return Ok(value);
        }
    }
    Err(format!("the block's bytes end; expected {what}"))
}

fn small(bytes: &mut &[u8], what: &str) -> Result<u32, String> {
    let value = number(bytes, what)?;
    u32::try_from(value).map_err(|_| format!("{value}; expected {what}, of 32 bits"))
}

fn difference(bytes: &mut &[u8], what: &str) -> Result<u64, String> {
    let zigzag = number(bytes, what)?;
    Ok((zigzag >> 1) ^ (zigzag & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(time: u64, page: u64) -> Record {
        let (page, found, write) = (Vpn(page), Found::Unknown, false);
        let event = Event::Touch { page, found, write };
        Record {
            time,
            task: 0,
            event,
        }
    }

    #[test]
    fn a_scan_is_a_byte_a_touch() {
        let (mut context, mut out) = (Context::default(), Vec::new());
        for n in 0..100 {
            context.encode(&touch(n * 1000, 0x7f00_0000_0000 + n), &mut out);
        }
        assert!(out.len() < 100 + 12, "{} bytes", out.len());
        let (mut context, mut bytes) = (Context::default(), &out[..]);
        for n in 0..100 {
            let record = context.decode(&mut bytes).expect("a record");
            assert_eq!(record, touch(n * 1000, 0x7f00_0000_0000 + n));
        }
        assert!(bytes.is_empty());
    }

    #[test]
    fn extreme_numbers_come_back() {
        let whole = Vpn(0)..Vpn(u64::MAX);
        let last = Vpn(u64::MAX - 1)..Vpn(u64::MAX);
        let events = [
            Event::Start(Start {
                space: u32::MAX,
                pid: u32::MAX,
                tid: 1,
                parent: Some(u32::MAX - 1),
            }),
            Event::Map(whole.clone()),
            Event::Unmap(last.clone()),
            Event::Discard(Vpn(0)..Vpn(1)),
            Event::Move {
                from: last,
                to: Vpn(0),
            },
            Event::File {
                file: u32::MAX,
                pages: whole,
                write: true,
            },
            Event::Lost(u64::MAX),
            Event::End,
        ];
        let times = [0, u64::MAX, 0, 1 << 63, 5, 5, 5, 4];
        let (mut context, mut out) = (Context::default(), Vec::new());
        let records: Vec<_> = events
            .into_iter()
            .zip(times)
            .map(|(event, time)| Record {
                time,
                task: u32::MAX - time as u32,
                event,
            })
            .collect();
        for record in &records {
            let before = out.len();
            context.encode(record, &mut out);
            assert!(out.len() - before <= LONGEST);
        }
        let (mut context, mut bytes) = (Context::default(), &out[..]);
        for record in &records {
            assert_eq!(context.decode(&mut bytes).as_ref(), Ok(record));
        }
    }
}
