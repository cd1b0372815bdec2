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
            streams.weigh(id, &mut region.stride_probe, now);
            return Some(Predictor::Stream(id));
        }
        let byte_strides = &mut history.byte_strides;
        if let Some(id) = byte_strides.touch(&mut region.byte_strides, address, now) {
            return Some(Predictor::ByteStride(id));
        }
        let needed = region.profit.needed();
        let stream = streams.find(&mut region.recent, needed, address, now)?;
        Some(Predictor::Stream(stream))
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
        match self.predictor(history) {
            // It may be chance.
            Some(Predictor::Stream(id)) if !history.streams.is_read(id) => {
                history.streams.missed(id)
            }
            Some(predictor) => return Answer::Follows(predictor),
            None => {}
        }
        let hinted = self.hint.window(touch, self.beside.max_window());
        let beside = || self.beside.on_miss(history.shared, history.region, touch);
        Answer::Window(hinted.unwrap_or_else(beside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readahead::Window;
    use crate::units::PageRange;

    const REGION: PageRange = Vpn(0)..Vpn(10_000);

    /// The answers to misses of these pages, one after the other.
    fn misses<const N: usize>(hint: Hint, pages: [u64; N]) -> [Answer<()>; N] {
        let (mut streams, mut byte_strides) = (Streams::new(32), ByteStrides::new(32));
        let (mut shared, mut region) = (Shared::default(), History::default());
        let mut now = 0;
        pages.map(|page| {
            now += 1000;
            let policy = Follow {
                beside: Policy::Streams(32),
                hint,
                at: Some((Vpn(page).address(), now)),
            };
            let mut history = Followed {
                streams: &mut streams,
                byte_strides: &mut byte_strides,
                shared: &mut shared,
                region: &mut region,
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
        })
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
