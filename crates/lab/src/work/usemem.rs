//! `usemem` of vm-scalability: processes that write their own memory, in order or at random.

use foreswap_core::units::{Nanos, PageRange, len};

use super::nth;
use crate::sim::histogram::Histogram;
use crate::sim::program::{Op, Program};
use crate::sim::rng::Rng;

/// The order in which pages are written.
#[derive(Clone, Debug)]
pub enum Order {
    /// One after the other, each word of each.
    Sequential,
    /// One word of a page drawn at random.
    Random(Rng),
}

/// One process.
#[derive(Clone, Debug)]
pub struct Usemem {
    region: PageRange,
    order: Order,
    /// CPU time per page.
    work: Nanos,
    /// Pages after which it ends, and whether it then unmaps its memory.
    most: u64,
    unmaps: bool,
    /// It gathers after its first round.
    gathers: bool,
    mapped: bool,
    /// Pages begun.
    at: u64,
    /// When the last page was written.
    pub written: Nanos,
    /// Pages written.
    pages: u64,
    /// The waits for pages that it had written before, until it could write them again.
    pub latency: Histogram,
}

impl Usemem {
    /// A process that goes on for ever.
    pub fn new(region: PageRange, order: Order, work: Nanos) -> Self {
        Usemem {
            region,
            order,
            work,
            most: u64::MAX,
            unmaps: false,
            gathers: false,
            mapped: false,
            at: 0,
            written: 0,
            pages: 0,
            latency: Histogram::default(),
        }
    }

    /// It writes its memory once, and keeps it.
    pub fn once(self) -> Self {
        Usemem {
            most: len(&self.region),
            ..self
        }
    }

    /// It writes its memory once, gathers, does so once more, and keeps it.
    pub fn and_again(self) -> Self {
        Usemem {
            most: 2 * len(&self.region),
            gathers: true,
            ..self
        }
    }

    /// It writes its memory once, and ends.
    pub fn and_ends(self) -> Self {
        Usemem {
            unmaps: true,
            ..self.once()
        }
    }

    /// The pages that it reports as written: the written ones, and an eighth of its memory, which it counts when it
    /// has mapped it (`do_unit` in its source).
    pub fn reported(&self) -> u64 {
        self.pages + len(&self.region) / 8
    }

    /// It writes in order.
    pub fn is_sequential(&self) -> bool {
        matches!(self.order, Order::Sequential)
    }
}

impl Program for Usemem {
    fn next(&mut self, now: Nanos) -> Op {
        if !std::mem::replace(&mut self.mapped, true) {
            return Op::Map(self.region.clone());
        }
        if self.at == len(&self.region) && std::mem::take(&mut self.gathers) {
            return Op::Gather;
        }
        if self.at >= self.most {
            if self.written == 0 {
                self.written = now;
            }
            return match std::mem::take(&mut self.unmaps) {
                true => Op::Unmap(self.region.clone()),
                false => Op::End,
            };
        }
        let n = match &mut self.order {
            Order::Sequential => self.at,
            Order::Random(rng) => rng.below(len(&self.region)),
        };
        self.at += 1;
        Op::Touch {
            page: nth(&self.region, n),
            write: true,
            work: self.work,
        }
    }

    fn done(&mut self, op: &Op, took: Nanos) {
        if let Op::Touch { work, .. } = op {
            self.pages += 1;
            if self.pages > len(&self.region) {
                self.latency.add(took.saturating_sub(*work));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreswap_core::units::Vpn;

    #[test]
    fn it_gathers_between_its_rounds() {
        let region = Vpn(512)..Vpn(514);
        let mut work = Usemem::new(region, Order::Sequential, 1).and_again();
        let mut steps = Vec::new();
        while steps.last() != Some(&Op::End) {
            steps.push(work.next(0));
        }
        let kinds = steps.iter().map(|step| match step {
            Op::Touch { page, .. } => page.0.to_string(),
            other => format!("{other:?}").chars().take(3).collect(),
        });
        let kinds: Vec<_> = kinds.collect();
        assert_eq!(kinds, ["Map", "512", "513", "Gat", "512", "513", "End"]);
    }

    #[test]
    fn memory_of_earlier_writes_is_waited_for() {
        let region = Vpn(512)..Vpn(512 + 80);
        let mut work = Usemem::new(region, Order::Sequential, 30);
        assert!(matches!(work.next(0), Op::Map(_)));
        assert_eq!(work.reported(), 10);
        for n in 0..200 {
            let op = work.next(0);
            assert!(matches!(&op, Op::Touch { page, .. } if page.0 == 512 + n % 80));
            // The first round takes a second per page, which does not count as a wait.
            work.done(&op, if n < 80 { 1_000_000_000 } else { 40 });
        }
        assert_eq!((work.pages, work.reported()), (200, 210));
        assert_eq!(work.latency.mean(), 10.0);
    }
}
