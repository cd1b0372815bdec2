//! Shrinks a failure: fewer steps, fewer kinds of failure, fewer threads and processes, while the same assertion
//! fails.
//!
//! Shorter lists of other steps are tried first. Then steps are removed by halves, quarters and so on down to single
//! ones (delta debugging, Zeller and Hildebrandt 2002). This repeats until nothing more can be removed, or time is
//! up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foreswap_model::{Act, Plan, Readahead, Step, Steps};

use super::guard::{self, Finding, Verdict};

/// A failure: a machine and the steps that lead to it.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The machine.
    pub plan: Plan,
    /// The steps.
    pub steps: Vec<Step>,
    /// Its result.
    pub finding: Finding,
}

/// Below this number of steps, everything is checked after every call of the core.
const FEW: usize = 2_000;

/// Below this number of steps no other lists are tried, and the number of lists tried otherwise.
const FEWEST: usize = 8;
const TRIES: u64 = 300;

/// Shrinks one failure.
pub struct Shrinker {
    best: Case,
    until: Instant,
    /// Runs so far.
    pub runs: u64,
}

impl Shrinker {
    /// Shrink `case`, for about this time.
    pub fn new(case: Case, time: Duration) -> Self {
        let mut shrinker = Shrinker {
            best: case,
            until: Instant::now() + time,
            runs: 0,
        };
        shrinker.cut();
        shrinker
    }

    /// The smallest case found.
    pub fn shrink(mut self) -> (Case, u64) {
        loop {
            let before = (self.best.plan.clone(), self.best.steps.len());
            self.simplify();
            self.begin_anew();
            self.leave_out();
            let same = before == (self.best.plan.clone(), self.best.steps.len());
            if same || self.is_over() {
                return (self.best, self.runs);
            }
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Steps after the one that showed it are useless.
    fn cut(&mut self) {
        let step = self.best.finding.step as usize;
        self.best.steps.truncate(step.max(1));
    }

    /// Whether it still fails in this way; then it is the new best. `anyhow`: also if another assertion detects it.
    fn fails(&mut self, plan: Plan, steps: Vec<Step>, anyhow: bool) -> bool {
        self.runs += 1;
        let steps = Arc::new(steps);
        let all = Arc::clone(&steps);
        let each = (0..all.len()).map(move |n| all[n]);
        let Verdict::Bug(finding) = guard::run(plan.clone(), each) else {
            return false;
        };
        if !anyhow && finding.place != self.best.finding.place {
            return false;
        }
        self.best = Case {
            plan,
            steps: Arc::unwrap_or_clone(steps),
            finding,
        };
        self.cut();
        true
    }

    fn try_plan(&mut self, change: impl FnOnce(&mut Plan)) {
        let mut plan = self.best.plan.clone();
        change(&mut plan);
        if plan != self.best.plan && !self.is_over() {
            self.fails(plan, self.best.steps.clone(), false);
        }
    }

    /// A simpler machine.
    fn simplify(&mut self) {
        for n in 0..self.best.plan.chaos.rates().len() {
            self.try_plan(|plan| *plan.chaos.rates()[n] = 0);
        }
        self.try_plan(|plan| plan.processes = 1);
        for threads in [1, 2] {
            if threads < self.best.plan.threads {
                self.try_plan(|plan| plan.threads = threads);
            }
        }
        self.try_plan(|plan| plan.readahead = Readahead::None);
        self.try_plan(|plan| plan.areas.truncate(1));
        self.try_plan(|plan| plan.first_touch = 1);
        if self.best.steps.len() < FEW && self.best.plan.check_every > 1 {
            let mut plan = self.best.plan.clone();
            plan.check_every = 1;
            self.fails(plan, self.best.steps.clone(), true);
        }
    }

    /// Tries other steps on the same machine, half as many, then half of those and so on. A bug that needs several
    /// conditions is found again more easily than preserved while steps around it are removed.
    fn begin_anew(&mut self) {
        let mut again = true;
        while again && self.best.steps.len() > FEWEST {
            let half = self.best.steps.len() / 2;
            again = (0..TRIES).any(|seed| {
                let plan = self.best.plan.clone();
                let steps = Steps::new(seed, &plan).take(half).collect();
                !self.is_over() && self.fails(plan, steps, false)
            });
        }
    }

    /// Fewer steps.
    fn leave_out(&mut self) {
        let mut size = self.best.steps.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < self.best.steps.len() && !self.is_over() {
                let mut fewer = self.best.steps.clone();
                fewer.drain(at..(at + size).min(self.best.steps.len()));
                // The removed part is behind `at`, or the failure itself moved before it.
                if fewer.is_empty() || !self.fails(self.best.plan.clone(), fewer, false) {
                    at += size;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
        for n in 0..self.best.steps.len() {
            while let Some(step) = self.best.steps.get(n)
                && let Some(shorter) = shorter(step)
                && !self.is_over()
            {
                let mut steps = self.best.steps.clone();
                steps[n] = shorter;
                if !self.fails(self.best.plan.clone(), steps, false) {
                    break;
                }
            }
        }
    }
}

/// A step that touches or changes half as many pages.
fn shorter(step: &Step) -> Option<Step> {
    let mut step = *step;
    let halved = match &mut step.act {
        Act::Lock { n, .. } | Act::Pin { n, .. } if *n > 1 => {
            *n /= 2;
            true
        }
        Act::Burst { n, .. }
        | Act::Discard { n, .. }
        | Act::Free { n, .. }
        | Act::Guard { n, .. }
        | Act::Unmap { n, .. }
        | Act::Remap { n, .. }
        | Act::Map { n, .. }
        | Act::Advise { n, .. }
            if *n > 1 =>
        {
            *n /= 2;
            true
        }
        _ => false,
    };
    halved.then_some(step)
}
