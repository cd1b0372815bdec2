//! foreswap's own words: on standard error, each line after `foreswap: `, in one write, and never an
//! error of ours that they cannot be written.

use std::collections::HashSet;
use std::io::Write;

use foreswap::ledger::protocol::Severity;

/// Distinct texts of engines that are remembered, so that a flood cannot eat memory.
const MAX_TEXTS: usize = 1000;

/// Says what must be said.
#[derive(Debug)]
pub struct Voice {
    quiet: bool,
    said: HashSet<String>,
    warned: bool,
}

impl Voice {
    /// `quiet` leaves everything out but errors.
    pub fn new(quiet: bool) -> Self {
        Self {
            quiet,
            said: HashSet::new(),
            warned: false,
        }
    }

    /// An engine's or our own remark; each text once.
    pub fn remark(&mut self, severity: Severity, text: &str) {
        self.warned |= severity != Severity::Note;
        if self.quiet && severity != Severity::Error {
            return;
        }
        if self.said.contains(text) || self.said.len() >= MAX_TEXTS {
            return;
        }
        self.said.insert(text.to_owned());
        error(text);
    }

    /// Whether something went otherwise than the user may expect.
    pub fn has_warned(&self) -> bool {
        self.warned
    }

    /// Whether the closing block is wanted.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }
}

/// Prints an error, whatever was asked for.
pub fn error(text: &str) {
    let mut lines = String::new();
    for (number, line) in text.lines().enumerate() {
        lines.push_str(if number == 0 {
            "foreswap: "
        } else {
            "          "
        });
        // Control characters of a file's name have no business on the user's terminal.
        lines.extend(line.chars().map(|c| {
            if c.is_control() && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        }));
        lines.push('\n');
    }
    write(&lines);
}

/// Writes to standard error as it is.
pub fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
