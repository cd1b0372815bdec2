//! The first page of an export in use: whose it is, and that its run lives.
//!
//! Nothing locks an export against a second foreswap on another machine. The page therefore has foreswap's mark, the number
//! of the run and a count that grows while the run lives. Whoever finds a count waits whether it grows. At its end a run
//! leaves the mark alone, or the header of `mkswap` that was there before.

use std::time::Duration;

use foreswap_store::area::contents::{self, Page};
use rustix::rand::{GetRandomFlags, getrandom};

/// The interval at which the count grows.
pub const BEAT: Duration = Duration::from_secs(2);
/// How long it must stand still for the run to count as dead.
pub const WATCH: Duration = Duration::from_secs(5);

/// Where the run and its count are.
const FROM: usize = 512;
const TO: usize = 640;

/// The number of a run.
pub type Run = u128;

/// A random number.
pub fn draw() -> std::io::Result<Run> {
    let mut bytes = [0u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(Run::from_ne_bytes(bytes))
}

/// The page of a run whose count is `beat`.
pub fn page(run: Run, beat: u64) -> Box<Page> {
    let mut page = contents::header();
    let text = format!("in use by run {run:032x}, beat {beat:016x}\n");
    page.0[FROM..FROM + text.len()].copy_from_slice(text.as_bytes());
    page
}

/// The run and its count in a page that is otherwise foreswap's.
pub fn read(page: &Page) -> Option<(Run, u64)> {
    let mut bare = page.clone();
    bare.0[FROM..TO].fill(0);
    if bare != *contents::header() {
        return None;
    }
    let text = str::from_utf8(&page.0[FROM..TO]).ok()?;
    let (run, rest) = text.strip_prefix("in use by run ")?.split_once(", beat ")?;
    let (beat, _) = rest.split_once('\n')?;
    let run = Run::from_str_radix(run, 16).ok()?;
    Some((run, u64::from_str_radix(beat, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        for (run, beat) in [(0, 0), (u128::MAX, u64::MAX), (77, 5)] {
            assert_eq!(read(&page(run, beat)), Some((run, beat)));
        }
        assert_ne!(draw().expect("random"), draw().expect("random"));
    }

    #[test]
    fn other_pages_have_none() {
        assert_eq!(read(&contents::header()), None);
        assert_eq!(read(&Page::zeroed()), None);
        for at in [0, 300, FROM, FROM + 20, 700, 4095] {
            let mut page = page(3, 4);
            page.0[at] ^= 0x80;
            assert_eq!(read(&page), None, "{at}");
        }
    }
}
