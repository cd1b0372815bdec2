//! Background reclaim of one NUMA node as in Linux (seed 001): when it works, when it naps, when it sleeps. For the lab;
//! the engine's background reclaim is `reclaim/`.
//!
//! An allocation that finds its zones below low requests a number of pages (an *order*) and names the highest zone that
//! may serve it. Reclaim then continues until the node is *balanced*: one zone up to that one has more than its high
//! level free for that order. Then it naps for a tenth of a second, checks whether the node stayed balanced, and only
//! then sleeps until the next request. A nap that ends early shows that it would have slept too soon.
//!
//! This is a state machine without a clock. The driver calls [`Kswapd::next`] with the current zones, carries out the
//! [`Action`] and reports the outcome by the method that the action names. Requests may come at any time
//! ([`Kswapd::on_request`]); they wait until the current run is done and only grow until then. Which pages reclaim
//! takes is not decided here.
//!
//! The seed's three defects are switches ([`Defects`]); without any the machine is the repaired one.
//!
//! ```
//! use foreswap_core::linux_kswapd::{Action, Config, Kswapd, Reclaimed, Watermarks, Zone, ZoneIndex};
//!
//! let marks = Watermarks { min: 100, low: 125, high: 150 };
//! let zone = |free| Zone { pages: 10_000, free, largest: Some(0), marks, ..Zone::default() };
//! let mut kswapd = Kswapd::new(Config { zones: 1, ..Config::default() });
//!
//! // Nothing was asked for and there is enough: it naps, and then sleeps.
//! assert_eq!(kswapd.next(&[zone(500)]), Action::Nap);
//! kswapd.on_nap_over();
//! assert_eq!(kswapd.next(&[zone(500)]), Action::Sleep);
//!
//! // An allocation below low wakes it, and it reclaims.
//! assert!(kswapd.on_request(&[zone(120)], 0, ZoneIndex(0)));
//! kswapd.on_woken();
//! let Action::Reclaim(round) = kswapd.next(&[zone(120)]) else { panic!() };
//! assert_eq!((round.priority, round.target), (12, 150));
//! kswapd.on_reclaimed(Reclaimed { scanned: 400, freed: 64 });
//! assert_eq!(kswapd.next(&[zone(184)]), Action::Nap);
//! ```

mod defects;
#[cfg(test)]
mod tests;
mod watermark;

pub use defects::{Defects, UnknownDefect};
pub use watermark::{
    Allocation, DEFAULT_SCALE, MAX_ZONES, RECLAIM_BATCH, Watermarks, Zone, ZoneIndex, allocate,
    min_free,
};

use crate::units::Nanos;
use watermark::eligible;

/// How long a nap lasts.
pub const NAP: Nanos = 100_000_000;
/// The first round of reclaim looks at the 2^12th part of each list, each further one at twice as much.
pub const FIRST_PRIORITY: u32 = 12;
/// After this many consecutive runs that freed nothing, it gives up and sleeps until a direct reclaim has freed
/// something. A thread that reclaims for itself is better than a background thread that never stops.
pub const FAILURES_TO_GIVE_UP: u32 = 16;

/// Parameters of the reclaim of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Zones of the node, at most [`MAX_ZONES`].
    pub zones: usize,
    /// Defects that are on.
    pub defects: Defects,
}

impl Default for Config {
    /// One zone, no defect.
    fn default() -> Self {
        Config {
            zones: 1,
            defects: Defects::default(),
        }
    }
}

/// The next action of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Wait for [`NAP`], then call [`Kswapd::on_nap_over`]; [`Kswapd::on_woken`] if a request ends it.
    Nap,
    /// Wait for a request, then call [`Kswapd::on_woken`].
    Sleep,
    /// Reclaim, then call [`Kswapd::on_reclaimed`].
    Reclaim(Round),
    /// Look again: it may not sleep yet. Costs the time of a look at the zones, which the driver must let pass. With a
    /// defect that keeps it awake, this is all that it does.
    Again,
}

/// One round of reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// The part of each list to look at: its 2^`priority`th. From [`FIRST_PRIORITY`] down to 1.
    pub priority: u32,
    /// The request: a block of 2^`order` pages.
    pub order: u32,
    /// The highest zone that may serve it; pages of higher zones are no use.
    pub highest: ZoneIndex,
    /// Pages to free.
    pub target: u64,
}

/// The outcome of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reclaimed {
    /// Pages that were looked at.
    pub scanned: u64,
    /// Pages that were freed.
    pub freed: u64,
}

/// The states of a node that reclaim noticed during its scan. The driver sets the flags; this module clears them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeFlags {
    /// The devices behind its pages cannot keep up: a direct reclaimer waits before it continues.
    pub congested: bool,
    /// Many dirty file pages at the end of the lists: background reclaim writes them itself.
    pub dirty: bool,
    /// Many pages under writeback come round again: background reclaim waits for them.
    pub writeback: bool,
}

/// Event counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Naps begun.
    pub naps: u64,
    /// Naps that a request ended.
    pub naps_cut: u64,
    /// Sleeps begun.
    pub sleeps: u64,
    /// It could not nap or sleep, as the node was not balanced.
    pub kept_awake: u64,
    /// Rounds of reclaim.
    pub rounds: u64,
    /// Runs of rounds that freed nothing.
    pub failures: u64,
}

/// A requested order and zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Request {
    order: u32,
    highest: ZoneIndex,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// About to check whether it may nap.
    BeforeNap,
    Napping,
    /// About to check whether it may sleep.
    AfterNap,
    Asleep,
    /// About to read the next request.
    Begin,
    /// Between two rounds.
    Reclaiming {
        priority: u32,
        freed: u64,
    },
    /// In a round.
    InRound {
        priority: u32,
        freed: u64,
        target: u64,
    },
}

/// Background reclaim of one node.
#[derive(Clone, Debug)]
pub struct Kswapd {
    config: Config,
    state: State,
    /// Requests since the last run began.
    pending: Option<Request>,
    /// The request of the current run, or of the last one.
    current: Request,
    /// The order to which reclaim has come down. A large order that cannot be had soon is left to compaction.
    order: u32,
    failures: u32,
    flags: NodeFlags,
    counters: Counters,
}

impl Kswapd {
    /// A node's reclaim, about to nap. A number of zones above [`MAX_ZONES`], or none, is clamped.
    pub fn new(config: Config) -> Self {
        let zones = config.zones.clamp(1, MAX_ZONES);
        let highest = ZoneIndex(match config.defects.zero_classzone {
            true => 0,
            false => zones - 1,
        });
        Kswapd {
            config: Config { zones, ..config },
            state: State::BeforeNap,
            pending: None,
            current: Request { order: 0, highest },
            order: 0,
            failures: 0,
            flags: NodeFlags::default(),
            counters: Counters::default(),
        }
    }

    /// Events so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The node's flags.
    pub fn flags(&self) -> NodeFlags {
        self.flags
    }

    /// The flags, for the driver to set.
    pub fn flags_mut(&mut self) -> &mut NodeFlags {
        &mut self.flags
    }

    /// It waits for a request: it naps or sleeps.
    pub fn waits(&self) -> bool {
        matches!(self.state, State::Napping | State::Asleep)
    }

    /// It has given up: nothing can be freed.
    pub fn hopeless(&self) -> bool {
        self.failures >= FAILURES_TO_GIVE_UP
    }

    /// A direct reclaim freed pages: background reclaim is worth another try.
    pub fn on_direct_reclaim(&mut self) {
        self.failures = 0;
    }

    /// An allocation of this order, for zones up to `highest`, found less than low. Returns whether it wakes reclaim:
    /// then the driver calls [`Kswapd::on_woken`]. A request that does not wake it is still recorded.
    pub fn on_request(&mut self, zones: &[Zone], order: u32, highest: ZoneIndex) -> bool {
        let highest = highest.min(ZoneIndex(self.config.zones - 1));
        self.ask(Request { order, highest });
        self.waits() && !self.hopeless() && !self.any_balanced(zones, order, highest)
    }

    /// The nap was not disturbed.
    pub fn on_nap_over(&mut self) {
        debug_assert_eq!(self.state, State::Napping, "no nap that could be over");
        self.state = State::AfterNap;
    }

    /// A request ended the nap or the sleep.
    pub fn on_woken(&mut self) {
        debug_assert!(self.waits(), "woken while {:?}", self.state);
        if self.state == State::Napping {
            self.counters.naps_cut += 1;
            // It was about to sleep too soon: the request that it worked for still counts.
            let Request { highest, .. } = self.current;
            let order = self.order;
            self.ask(Request { order, highest });
        }
        self.state = State::Begin;
    }

    /// The outcome of the round that [`Action::Reclaim`] asked for.
    pub fn on_reclaimed(&mut self, outcome: Reclaimed) {
        let State::InRound {
            priority,
            freed,
            target,
        } = self.state
        else {
            debug_assert!(false, "no round in {:?}", self.state);
            return;
        };
        let freed = freed.saturating_add(outcome.freed);
        // Enough is free for compaction to make the block; more is not needed.
        let enough = 2u64.checked_shl(self.order).unwrap_or(u64::MAX);
        if self.order > 0 && freed >= enough {
            self.order = 0;
        }
        let harder = outcome.freed == 0 || outcome.scanned < target;
        let priority = priority - u32::from(harder);
        self.state = State::Reclaiming { priority, freed };
    }

    /// The next action, for the current zones of the node, lowest first.
    pub fn next(&mut self, zones: &[Zone]) -> Action {
        loop {
            match self.state {
                State::BeforeNap | State::AfterNap => {
                    let napped = self.state == State::AfterNap;
                    if !self.may_sleep(zones) {
                        self.counters.kept_awake += 1;
                        self.state = State::Begin;
                        return Action::Again;
                    }
                    if napped {
                        self.counters.sleeps += 1;
                        self.state = State::Asleep;
                    } else {
                        self.counters.naps += 1;
                        self.state = State::Napping;
                    }
                }
                State::Napping => return Action::Nap,
                State::Asleep => return Action::Sleep,
                State::Begin => self.begin(),
                State::Reclaiming { priority, freed } => {
                    let Request { highest, .. } = self.current;
                    if priority == 0 || self.any_balanced(zones, self.order, highest) {
                        self.end(priority == 0 && freed == 0);
                        continue;
                    }
                    let target = |zone: &Zone| zone.marks.high.max(RECLAIM_BATCH);
                    let target = eligible(zones, highest).map(target).sum();
                    self.counters.rounds += 1;
                    self.state = State::InRound {
                        priority,
                        freed,
                        target,
                    };
                }
                State::InRound {
                    priority, target, ..
                } => {
                    return Action::Reclaim(Round {
                        priority,
                        order: self.order,
                        highest: self.current.highest,
                        target,
                    });
                }
            }
        }
    }

    /// A request joins the pending ones: both numbers only grow.
    fn ask(&mut self, request: Request) {
        self.pending = Some(match self.pending {
            Some(pending) => Request {
                order: pending.order.max(request.order),
                highest: pending.highest.max(request.highest),
            },
            None => request,
        });
    }

    /// The pending request. Without one the order is 0, and the zone that of the last request.
    fn next_request(&self) -> Request {
        self.pending.unwrap_or(Request {
            order: 0,
            highest: match self.config.defects.zero_classzone {
                true => ZoneIndex(0),
                false => self.current.highest,
            },
        })
    }

    fn begin(&mut self) {
        self.current = self.next_request();
        self.order = self.current.order;
        self.pending = None;
        self.state = State::Reclaiming {
            priority: FIRST_PRIORITY,
            freed: 0,
        };
    }

    /// The run is over. If the order was given up, it naps for the rest; otherwise for requests that came meanwhile.
    fn end(&mut self, failed: bool) {
        if failed {
            self.failures = self.failures.saturating_add(1);
            self.counters.failures += 1;
        } else {
            self.failures = 0;
        }
        if self.order >= self.current.order {
            self.current = self.next_request();
            self.order = self.current.order;
        }
        self.state = State::BeforeNap;
    }

    fn balanced(&mut self, zone: &Zone, order: u32, highest: ZoneIndex) -> bool {
        let balanced = zone.allows(order, zone.marks.high, highest);
        if balanced && self.config.defects.early_flag_clear {
            self.flags = NodeFlags::default();
        }
        balanced
    }

    /// The node is balanced: one zone is.
    fn any_balanced(&mut self, zones: &[Zone], order: u32, highest: ZoneIndex) -> bool {
        eligible(zones, highest)
            .rev()
            .any(|zone| self.balanced(zone, order, highest))
    }

    fn may_sleep(&mut self, zones: &[Zone]) -> bool {
        if self.hopeless() {
            return true;
        }
        let (order, highest) = (self.order, self.current.highest);
        let may = if self.config.defects.strict_zone_check {
            eligible(zones, highest).all(|zone| self.balanced(zone, order, highest))
        } else {
            self.any_balanced(zones, order, highest)
        };
        // With early clearing, the zones that were found balanced have cleared them, if there are any.
        if may && !self.config.defects.early_flag_clear {
            self.flags = NodeFlags::default();
        }
        may
    }
}
