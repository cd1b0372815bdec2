//! How long the runs of a region are, so that a run is read in full at its first miss and not beyond its end.
//!
//! A stream shows neither its length nor its end in advance: until it is proven it is read in small windows, a latency
//! each, and what was read ahead when it ends is lost. Programs that take records of one size from random places
//! (tensors of a file of weights, rows of a table) have runs of about the same length. So the lengths of the last runs
//! of a region are kept. If they agree, a miss that continues nothing begins a run that ends as they did. A run that
//! goes on is an ordinary stream from there on.
//!
//! A run ends when a miss in its region continues nothing. What was read beyond its end may be the begin of a later run,
//! which then continues an old stream, once. If streams take turns, the misses between were those of other cursors, and
//! the lengths are worth nothing: they are forgotten.

use super::streams::StreamId;
use crate::units::Vpn;

/// Runs whose lengths must agree.
const RUNS: usize = 4;
/// The longest run may have this many times the pages of the shortest.
const AGREE: u64 = 2;
/// The shortest run that is worth knowing, in pages: what streams are read without any evidence.
const LEAST: u64 = 16;

/// The last runs of a region.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunLengths {
    last: [u64; RUNS],
    next: usize,
    current: Option<Current>,
    /// Streams that went on beside the current run since the last end of one.
    others: u32,
}

/// The run that has not ended: its first page, and its stream once it has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Current {
    /// Where it began.
    pub first: Vpn,
    /// What follows it.
    pub stream: Option<StreamId>,
}

impl RunLengths {
    /// A miss of `page` continues nothing: the run before it has ended. Returns that one.
    pub fn begin(&mut self, page: Vpn) -> Option<Current> {
        self.current.replace(Current {
            first: page,
            stream: None,
        })
    }

    /// The run that [`RunLengths::begin`] returned has ended after this many pages; `None` if that is not known.
    pub fn end(&mut self, pages: Option<u64>) {
        // One that continued an old stream has no length of its own.
        let others = core::mem::take(&mut self.others);
        if let Some(pages) = pages.filter(|_| others == 0) {
            self.last[self.next] = pages;
            self.next = (self.next + 1) % RUNS;
        }
    }

    /// A stream that began with this page is found, or goes on.
    pub fn follow(&mut self, stream: StreamId, first: Vpn) {
        let followed = Current {
            first,
            stream: Some(stream),
        };
        match self.current {
            Some(current) if current == followed => {}
            Some(current) if current.first == first && current.stream.is_none() => {
                self.current = Some(followed);
            }
            _ if self.others == 0 => {
                self.current = Some(followed);
                self.others = 1;
            }
            _ => *self = RunLengths::default(),
        }
    }

    /// The pages of a run that begins now, if the last ones agree.
    pub fn expected(&self) -> Option<u64> {
        let shortest = self.last.into_iter().min()?;
        let longest = self.last.into_iter().max()?;
        (shortest >= LEAST && longest <= AGREE * shortest).then_some(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lengths: &[u64]) -> RunLengths {
        let mut runs = RunLengths::default();
        lengths.iter().for_each(|&pages| runs.end(Some(pages)));
        runs
    }

    #[test]
    fn runs_of_one_length_are_expected() {
        assert_eq!(after(&[64, 64, 64]).expected(), None, "three are too few");
        assert_eq!(after(&[64, 48, 64, 60]).expected(), Some(64));
        assert_eq!(
            after(&[9, 1000, 64, 48, 64, 60]).expected(),
            Some(64),
            "the last four count"
        );
        assert_eq!(after(&[64, 64, 1, 64]).expected(), None);
        assert_eq!(after(&[8, 8, 8, 8]).expected(), None, "short");
    }

    #[test]
    fn streams_that_take_turns_are_no_evidence() {
        let mut runs = after(&[64; 4]);
        let (stream, other) = (StreamId::of(0), StreamId::of(1));
        runs.begin(Vpn(100));
        runs.follow(stream, Vpn(100));
        assert!(runs.expected().is_some());
        let ended = runs.begin(Vpn(5000));
        assert_eq!(
            ended,
            Some(Current {
                first: Vpn(100),
                stream: Some(stream)
            })
        );
        runs.follow(other, Vpn(5000));
        runs.follow(stream, Vpn(100));
        assert!(runs.expected().is_some(), "once is no turn");
        runs.follow(other, Vpn(5000));
        assert_eq!(runs.expected(), None);
    }
}
