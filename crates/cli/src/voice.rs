//! foreswap's messages: on standard error, each line after `foreswap: `, in one write; a failure to write is ignored.

use std::collections::HashSet;
use std::io::Write;

use foreswap::ledger::protocol::Severity;

/// Distinct texts of engines that are remembered: a flood cannot use up memory.
const MAX_TEXTS: usize = 1000;

/// The output of messages.
#[derive(Debug)]
pub struct Voice {
    quiet: bool,
    said: HashSet<String>,
    warned: bool,
    /// What was said since the last look, and whether it was an error; `None` if nobody else wants to know.
    copy: Option<Vec<(bool, String)>>,
}

impl Voice {
    /// `quiet` suppresses everything except errors.
    pub fn new(quiet: bool) -> Self {
        Self {
            quiet,
            said: HashSet::new(),
            warned: false,
            copy: None,
        }
    }

    /// From now on, keeps a copy of each message.
    pub fn copies(&mut self) {
        self.copy = Some(Vec::new());
    }

    /// The messages since the last call.
    pub fn take_copies(&mut self) -> Vec<(bool, String)> {
        self.copy.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// An engine's or the supervisor's remark; each text once.
    pub fn remark(&mut self, severity: Severity, text: &str) {
        let is_error = severity == Severity::Error;
        self.warned |= severity != Severity::Note;
        if self.quiet && !is_error && self.copy.is_none() {
            return;
        }
        if self.said.contains(text) || self.said.len() >= MAX_TEXTS {
            return;
        }
        self.said.insert(text.to_owned());
        if let Some(copy) = &mut self.copy {
            copy.push((is_error, text.to_owned()));
        }
        if is_error || !self.quiet {
            error(text);
        }
    }

    /// An error that concerns all.
    pub fn error(&mut self, text: &str) {
        if let Some(copy) = &mut self.copy {
            copy.push((true, text.to_owned()));
        }
        error(text);
    }

    /// Whether there was a warning.
    pub fn has_warned(&self) -> bool {
        self.warned
    }

    /// Whether the closing block is wanted.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }
}

/// Prints an error, even if quiet.
pub fn error(text: &str) {
    let mut lines = String::new();
    for (number, line) in text.lines().enumerate() {
        lines.push_str(if number == 0 {
            "foreswap: "
        } else {
            "          "
        });
        // Control characters of a file's name must not reach the terminal.
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

/// Writes to standard error unchanged.
pub fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
