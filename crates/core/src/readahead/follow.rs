//! The default policy: streams and byte strides are followed, and read on between misses. Other touches are answered by
//! the program's hint, or by a policy beside.

use super::byte_stride::{ByteStrideId, ByteStrides};
use super::hint::Hint;
use super::policy::{Answer, Readahead, Touch};
use super::streams::{StreamId, Streams};
use super::{History, Policy, Shared};
use crate::units::{Nanos, Vpn};

/// The stream or byte stride that a touch continues.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Predictor {
    Stream(StreamId),
    ByteStride(ByteStrideId),
}

/// The inputs of the policy.
pub(crate) struct Followed<'a> {
    pub streams: &'a mut Streams,
    pub byte_strides: &'a mut ByteStrides,
    /// The state of the policy beside, of all regions.
    pub shared: &'a mut Shared,
    /// The state of the region.
    pub region: &'a mut History,
}

/// The policy in a region, for a touch.
pub(crate) struct Follow {
    /// Answers the touches that continue nothing.
    pub beside: Policy,
    pub hint: Hint,
    /// Address and time of the touch; `None` if another thread was here first.
    pub at: Option<(u64, Nanos)>,
}

impl Follow {
    /// Whether it is foreswap's own policy, and none of the kernel's.
    pub fn is_own(&self) -> bool {
        matches!(self.beside, Policy::Streams(_))
    }

    /// The pattern that the touch continues, moved on. A program that touches the region in no order continues nothing.
    pub fn predictor(&self, history: &mut Followed<'_>) -> Option<Predictor> {
        let (address, now) = self.at.filter(|_| self.hint != Hint::Random)?;
        let (streams, region) = (&mut history.streams, &mut history.region);
        if let Some(id) = streams.advance(Vpn::of(address), now) {
            region.run_lengths.follow(id, streams.first(id));
            streams.weigh(id, &mut region.stride_probe, now);
            return Some(Predictor::Stream(id));
        }
        let byte_strides = &mut history.byte_strides;
        if let Some(id) = byte_strides.touch(&mut region.byte_strides, address, now) {
            return Some(Predictor::ByteStride(id));
        }
        let needed = region.profit.needed();
        let stream = streams.find(&mut region.recent, needed, address, now)?;
        region.run_lengths.follow(stream, streams.first(stream));
        streams.expect_end(stream, region.run_lengths.expected());
        Some(Predictor::Stream(stream))
    }
}

impl Follow {
    /// A miss continues nothing: a run begins, and is followed at once if it is known how long runs are here.
    fn begin_run(&self, history: &mut Followed<'_>, page: Vpn) -> Option<StreamId> {
        let (_, now) = self.at.filter(|_| self.is_own())?;
        let (streams, runs) = (&mut history.streams, &mut history.region.run_lengths);
        let ended = runs.begin(page)?;
        let length = |stream| streams.length(stream, ended.first);
        runs.end(ended.stream.map_or(Some(1), length));
        let id = streams.foretell(page, runs.expected()?, now);
        runs.follow(id, page);
        Some(id)
    }
}

impl Readahead for Follow {
    type History<'a> = Followed<'a>;
    type Follows = Predictor;

    fn on_hit(&self, history: &mut Followed<'_>, touch: &Touch) -> Option<Predictor> {
        let predictor = self.predictor(history);
        if predictor.is_none() {
            self.beside.on_hit(history.shared, history.region, touch);
        }
        predictor
    }

    fn on_miss(&self, history: &mut Followed<'_>, touch: &Touch) -> Answer<Predictor> {
        let begins = match self.predictor(history) {
            // It may be chance.
            Some(Predictor::Stream(id)) if !history.streams.is_read(id) => {
                history.streams.missed(id);
                false
            }
            Some(predictor) => return Answer::Follows(predictor),
            None => true,
        };
        let hinted = self.hint.window(touch, self.beside.max_window());
        if begins
            && hinted.is_none()
            && let Some(id) = self.begin_run(history, touch.page)
        {
            return Answer::Follows(Predictor::Stream(id));
        }
        let beside = || self.beside.on_miss(history.shared, history.region, touch);
        Answer::Window(hinted.unwrap_or_else(beside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readahead::Window;
    use crate::reclaim::refault::MISS;
    use crate::units::PageRange;

    const REGION: PageRange = Vpn(0)..Vpn(10_000);

    /// A region whose pages are all missed.
    struct Missed {
        streams: Streams,
        byte_strides: ByteStrides,
        shared: Shared,
        region: History,
        now: Nanos,
    }

    impl Missed {
        fn new() -> Self {
            Missed {
                streams: Streams::new(32),
                byte_strides: ByteStrides::new(32),
                shared: Shared::default(),
                region: History::default(),
                now: 0,
            }
        }

        fn miss(&mut self, hint: Hint, page: u64) -> Answer<()> {
            self.now += 1000;
            let policy = Follow {
                beside: Policy::Streams(32),
                hint,
                at: Some((Vpn(page).address(), self.now)),
            };
            let mut history = Followed {
                streams: &mut self.streams,
                byte_strides: &mut self.byte_strides,
                shared: &mut self.shared,
                region: &mut self.region,
            };
            let touch = Touch {
                page: Vpn(page),
                slot: None,
                ahead: false,
                region: &REGION,
            };
            match policy.on_miss(&mut history, &touch) {
                Answer::Window(window) => Answer::Window(window),
                Answer::Follows(_) => Answer::Follows(()),
            }
        }

        /// Whether the first miss of a run of `pages` pages is followed.
        fn run(&mut self, first: u64, pages: u64) -> bool {
            let answer = self.miss(Hint::Normal, first);
            for page in first + 1..first + pages {
                self.miss(Hint::Normal, page);
            }
            answer == Answer::Follows(())
        }
    }

    /// The answers to misses of these pages, one after the other.
    fn misses<const N: usize>(hint: Hint, pages: [u64; N]) -> [Answer<()>; N] {
        let mut missed = Missed::new();
        pages.map(|page| missed.miss(hint, page))
    }

    #[test]
    fn runs_of_one_length_are_foretold() {
        let mut missed = Missed::new();
        let places = [1013, 5077, 3301, 7411];
        let followed = places.map(|first| missed.run(first, 64));
        assert_eq!(followed, [false; 4], "they are learned");
        assert!(missed.run(2207, 64) && missed.run(9157, 64));
        assert!(missed.run(6373, 3), "it ends too early");
        assert!(!missed.run(4519, 64), "so the next one is not foretold");
    }

    #[test]
    fn a_run_that_must_prove_itself_is_one_run() {
        let mut missed = Missed::new();
        missed.region.profit.end(64, false, false, 2 * MISS);
        assert_eq!(missed.region.profit.needed(), 4);
        let places = [1013, 5077, 3301, 7411, 2207];
        let followed = places.map(|first| missed.run(first, 64));
        assert_eq!(followed, [false, false, false, false, true]);
    }

    #[test]
    fn cursors_in_turns_are_no_runs() {
        let mut missed = Missed::new();
        for turn in 0..20 {
            for cursor in [1000, 3000, 5000] {
                let followed = missed.run(cursor + turn * 32, 32);
                assert_eq!(followed, turn > 0, "turn {turn}");
            }
        }
        assert!(!missed.run(8000, 32));
    }

    #[test]
    fn a_run_is_followed_and_a_lone_touch_is_answered_beside() {
        let answers = misses(Hint::Normal, [100, 5000, 101, 102]);
        assert!(matches!(
            answers[..2],
            [Answer::Window(_), Answer::Window(_)]
        ));
        assert_eq!(answers[2..], [Answer::Follows(()), Answer::Follows(())]);
    }

    #[test]
    fn a_hint_comes_before_the_policy_beside() {
        let window = |start, end| Answer::Window(Window::of(&(Vpn(start)..Vpn(end))));
        let random = misses(Hint::Random, [100, 101, 102]);
        assert_eq!(
            random,
            [window(100, 101), window(101, 102), window(102, 103)]
        );
        let sequential = misses(Hint::Sequential, [100, 101]);
        assert_eq!(sequential, [window(100, 132), Answer::Follows(())]);
    }
}
