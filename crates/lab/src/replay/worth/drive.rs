//! Programs on the machine of a replay: each produces its steps when it is about to make them.

use foreswap_core::units::Nanos;

use super::workloads::Program;
use crate::replay::machine::{Figures, Machine};

/// Steps that are taken from a program at a time.
const CHUNK: usize = 64;
/// Steps in which swapoff must end once all programs have.
const PATIENCE: u32 = 1_000_000;

impl Machine {
    /// Runs `programs` to their ends. Returns the figures, and the mean of the times at which the programs ended. An
    /// area that is being emptied counts as one more program.
    ///
    /// # Errors
    ///
    /// As [`Machine::record`].
    pub fn drive(mut self, mut programs: Vec<Program>) -> Result<(Figures, Nanos), String> {
        for _ in &programs {
            self.start(0);
        }
        let mut going: Vec<usize> = (0..programs.len()).collect();
        loop {
            for &n in &going {
                if self.tasks[n].ops.is_empty() {
                    for op in programs[n].by_ref().take(CHUNK) {
                        self.push(n as u32, op)?;
                    }
                }
            }
            going.retain(|&n| !self.tasks[n].ops.is_empty());
            if going.is_empty() {
                break;
            }
            self.step()?;
        }
        let mut ends: Vec<Nanos> = self.tasks.iter().map(|task| task.ready).collect();
        if self.mm.is_draining() {
            for _ in 0..PATIENCE {
                if self.w.used_slots() == 0 {
                    break;
                }
                self.step()?;
            }
            if self.w.used_slots() > 0 {
                return Err("swapoff does not end".into());
            }
            ends.push(self.w.now.max(ends.iter().copied().max().unwrap_or(0)));
        }
        let mean = ends.iter().sum::<Nanos>() / ends.len().max(1) as Nanos;
        Ok((self.finish()?, mean))
    }
}
