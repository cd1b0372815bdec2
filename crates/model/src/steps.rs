//! Draws the steps of a run: a list that follows from the seed alone.

use foreswap_core::units::LEAF_PAGES;

use crate::chance::Chance;
use crate::plan::{Plan, Rates};
use crate::step::{Act, Says, Step, Touch};

/// How threads choose their next page.
#[derive(Clone, Copy)]
enum Pattern {
    Random,
    Forward,
    Backward,
    Stride,
    Hot,
}

/// Draws the steps of a seed.
pub struct Steps {
    chance: Chance,
    pages: u64,
    processes: u64,
    limit: u32,
    /// Its least setting.
    least: u32,
    huge: bool,
    families: bool,
    files: bool,
    rates: Rates,
    pattern: Pattern,
    at: u64,
    /// Touches until the pattern changes.
    left: u64,
    /// The next steps, the last one first.
    script: Vec<Act>,
    /// Their process.
    who: u8,
}

impl Steps {
    /// For a machine.
    pub fn new(seed: u64, plan: &Plan) -> Self {
        Steps {
            chance: Chance::new(!seed),
            pages: plan.pages.into(),
            processes: plan.processes.into(),
            limit: plan.limit as u32,
            least: if plan.clusters > 0 { 400 } else { 32 },
            huge: plan.clusters > 0,
            families: plan.families,
            files: plan.files,
            rates: plan.rates,
            pattern: Pattern::Forward,
            at: 0,
            left: 100,
            script: Vec::new(),
            who: 0,
        }
    }

    fn touch(&mut self) -> Act {
        let chance = &mut self.chance;
        let pages = self.pages;
        if self.left == 0 {
            self.left = chance.below(200);
            self.pattern = chance.pick(&[
                Pattern::Random,
                Pattern::Random,
                Pattern::Forward,
                Pattern::Backward,
                Pattern::Stride,
                Pattern::Hot,
            ]);
            self.at = chance.below(pages);
        }
        self.left -= 1;
        self.at = match self.pattern {
            Pattern::Random => chance.below(pages),
            Pattern::Forward => (self.at + 1) % pages,
            Pattern::Backward => (self.at + pages - 1) % pages,
            Pattern::Stride => (self.at + 7) % pages,
            Pattern::Hot => chance.below(pages / 4),
        };
        Act::Touch {
            page: self.at as u16,
            access: match chance.below(16) {
                0 => Touch::Zero,
                1 => Touch::Same,
                2..7 => Touch::Write,
                _ => Touch::Read,
            },
            told: chance.below(4) > 0,
        }
    }

    /// Mostly passes whole huge pages.
    fn scan(&mut self) -> Act {
        let unit = LEAF_PAGES as u64;
        let at = self.pages / 3 % unit + self.chance.below(self.pages / unit + 1) * unit;
        let n = unit * (1 + self.chance.below(3)) + self.chance.pick(&[0, 0, 1, 300]);
        let stride = self.chance.pick(&[1, 1, 1, -1]);
        Act::Burst {
            page: if stride > 0 { at } else { at + n } as u16,
            n: n as u16,
            stride,
        }
    }

    /// A page and a number of pages.
    fn stretch(&mut self, most: u64) -> (u16, u16) {
        let page = self.chance.below(self.pages) as u16;
        (page, 1 + self.chance.below(most.max(1)) as u16)
    }

    /// A file takes the place of what is there, and is read.
    fn map_file(&mut self) -> Act {
        let (page, n) = match self.huge {
            true => {
                let unit = LEAF_PAGES as u64;
                let first = self.pages / 3 % unit;
                let units = 1 + self.chance.below(2);
                (first as u16, (units * unit) as u16)
            }
            false => self.stretch(self.pages / 3),
        };
        let file = self.chance.pick(&[0, 512, 1024, 1000, 77]);
        let mut acts = vec![Act::Quiet { rounds: 3 }, Act::MapFile { page, n, file }];
        if self.chance.below(2) > 0 {
            acts.push(Act::Burst { page, n, stride: 1 });
        }
        acts.reverse();
        self.script = acts;
        Act::Unmap { page, n }
    }

    fn change(&mut self) -> Act {
        if self.files && self.chance.below(3) == 0 {
            return self.map_file();
        }
        let (page, n) = self.stretch(self.pages / 5);
        match self.chance.below(10) {
            0..4 => Act::Discard { page, n },
            4 => Act::Unmap { page, n },
            5 => Act::Remap {
                page,
                n,
                to: self.chance.below(self.pages) as u16,
            },
            6 => Act::Free { page, n },
            _ => Act::Map { page, n },
        }
    }

    fn rare(&mut self) -> Act {
        let (page, n) = self.stretch(8);
        let chance = &mut self.chance;
        let n = n as u8;
        match chance.below(32) {
            30.. => Act::Turn {
                rounds: chance.pick(&[0, 2, 10, 60]),
            },
            // A guard splits a huge page for good.
            28.. if self.huge && !chance.one_in(50) => self.empty_units(),
            28.. => Act::Guard {
                page,
                n: n.into(),
                on: chance.one_in(500),
                told: !chance.one_in(250),
            },
            24..28 => Act::Quiet {
                rounds: chance.pick(&[5, 50, 250]),
            },
            0 | 1 => Act::Lock {
                page,
                n,
                on: chance.one_in(400),
            },
            2 | 3 => Act::Pin {
                page,
                n,
                on: chance.one_in(400),
            },
            4 | 5 => Act::Limit {
                pages: chance.pick(&[
                    self.least,
                    self.least * 3 / 2,
                    self.limit,
                    self.limit,
                    self.least * 4,
                ]),
            },
            6 => Act::Pressure {
                pages: chance.below(16) as u8,
            },
            7..10 => {
                if self.families && chance.below(2) > 0 {
                    // Other threads change the memory before the fork is over, or the child is known.
                    let n = 8 * u16::from(n);
                    self.script = vec![Act::Discard { page, n }, Act::Map { page, n }, Act::Fork];
                    self.script.rotate_left(usize::from(page) % 2);
                }
                Act::Fork
            }
            10 => Act::Die,
            // Lost pages leave holes in huge pages.
            11 | 12 | 20 | 21 if self.huge && !chance.one_in(100) => self.empty_units(),
            11 | 12 => Act::Fill,
            13 => Act::Swapon {
                slots: chance.pick(&[40, 512, 1100]),
                at: chance.below(3) as u8,
            },
            14..19 if self.huge => self.empty_units(),
            14..19 => Act::Swapoff,
            19 => Act::Keep,
            20 => Act::Fail {
                back: chance.below(4) > 0,
            },
            21 => Act::BadSector,
            _ => Act::Wait {
                us: chance.pick(&[1, 100, 10_000, 2_000_000]),
            },
        }
    }

    /// Empties an area of huge pages. They are read whole only if none of their pages is zero or in memory, the
    /// program pauses, and there is room. The steps therefore write to some and page them out, let a few of their
    /// pages return or go, and then remove an area, from which they go to memory or to another one.
    fn empty_units(&mut self) -> Act {
        let unit = LEAF_PAGES as u64;
        let most = (self.pages / unit).min(4);
        let units = (2 + self.chance.below(3)).min(most);
        let first = self.pages / 3 % unit + self.chance.below(self.pages / unit + 1 - units) * unit;
        let (page, n) = (first as u16, (units * unit) as u16);
        let says = Says::PageOut;
        let room = self.chance.pick(&[1, 2, 4, 4]);
        let limit = |pages| Act::Limit { pages };
        let quiet = |rounds| Act::Quiet { rounds };
        let mut acts = vec![
            Act::Keep,
            limit(self.limit),
            Act::Fresh { page, n },
            Act::Advise { page, n, says },
            quiet(60),
        ];
        for _ in 0..self.chance.pick(&[0, 1, 1, 2]) {
            let page = page + self.chance.below(n.into()) as u16;
            let n = 1 + self.chance.below(40) as u16;
            let (access, told) = (Touch::Read, true);
            acts.push(match self.chance.below(3) {
                0 => Act::Touch { page, access, told },
                1 => Act::Discard { page, n },
                _ => Act::Free { page, n },
            });
        }
        acts.extend([limit(self.limit * room), Act::Swapoff]);
        // Reads are short until the core sees that there are no faults.
        acts.extend([
            quiet(1),
            Act::Wait { us: 3_000 },
            quiet(u8::MAX),
            Act::Swapoff,
        ]);
        acts.extend([limit(self.limit), Act::Burst { page, n, stride: 1 }]);
        acts.reverse();
        self.script = acts;
        Act::Map { page, n }
    }

    /// A program and its forks only read for a while, from memory that was full at the fork.
    fn readers(&mut self) -> Act {
        let reads = Act::Readers {
            touches: self.chance.pick(&[100, 1_000, 1_000, 10_000]),
            protected: self.chance.below(4) == 0,
        };
        let all = Act::Burst {
            page: 0,
            n: self.pages as u16,
            stride: 1,
        };
        let mut acts = Vec::new();
        if self.chance.below(2) > 0 {
            // Room for a child.
            acts.push(Act::Die);
        }
        if self.chance.below(2) > 0 {
            acts.push(all);
        }
        // Only the parent reads, or its children as well.
        let alone = self.chance.below(4) == 0;
        if !alone {
            acts.push(reads);
        }
        for _ in 0..1 + self.chance.below(self.processes) {
            acts.extend([Act::Fork, Act::Quiet { rounds: 20 }]);
        }
        acts.extend(alone.then_some(reads));
        acts.reverse();
        self.script = acts;
        Act::Round { faults: u8::MAX }
    }

    fn disorder(&mut self) -> Act {
        match self.chance.below(12) {
            0..4 => Act::Fault,
            4..8 => Act::Complete,
            8 => Act::Event,
            9 => Act::Acknowledge,
            10 => Act::Vanish,
            _ => Act::Unshare,
        }
    }

    /// One action of a thread, the driver or a device, whatever would come next.
    fn single(&mut self) -> Act {
        match self.chance.below(20) {
            0..5 => self.touch(),
            5..9 => Act::Fault,
            9..11 => Act::Complete,
            11 => Act::Event,
            12 => self.chance.pick(&[Act::Acknowledge, Act::Vanish]),
            13 => Act::Retry,
            14 => Act::Unshare,
            _ => Act::Drive,
        }
    }

    fn act(&mut self) -> Act {
        if let Some(act) = self.script.pop() {
            return act;
        }
        let rates = self.rates;
        if self.chance.one_in(rates.changes) {
            return self.change();
        }
        if self.chance.one_in(rates.readers) {
            return self.readers();
        }
        if self.chance.one_in(rates.rare) {
            return self.rare();
        }
        if self.chance.one_in(rates.advice) {
            let (page, n) = self.stretch(self.pages / 2);
            let says = self.chance.pick(&[
                Says::Normal,
                Says::Sequential,
                Says::Random,
                Says::WillNeed,
                Says::Cold,
                Says::PageOut,
            ]);
            return Act::Advise { page, n, says };
        }
        if self.chance.one_in(rates.single) {
            return self.single();
        }
        if self.chance.one_in(rates.disorder) {
            return match self.chance.below(4) {
                0 => self.disorder(),
                _ => self.touch(),
            };
        }
        if self.huge && self.chance.one_in(40) {
            return self.scan();
        }
        match self.chance.below(2_048) {
            0 => Act::Settle,
            1..150 => Act::Round {
                faults: 1 + self.chance.below(8) as u8,
            },
            150..450 => self.touch(),
            _ => Act::Burst {
                page: self.chance.below(self.pages) as u16,
                n: 1 + self.chance.below(32) as u16,
                stride: self.chance.pick(&[0, 0, 0, 1, 1, -1, 7]),
            },
        }
    }
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let goes_on = !self.script.is_empty();
        let act = self.act();
        let numbers = self.chance.draw();
        if !goes_on {
            self.who = (numbers % self.processes) as u8;
        }
        Some(Step {
            who: self.who,
            salt: (numbers >> 32) as u32,
            act,
        })
    }
}
