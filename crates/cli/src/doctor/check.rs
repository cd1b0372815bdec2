//! One finding of `foreswap doctor`: what was looked at, the verdict, the facts, and the remedy as commands.
//!
//! The verdicts say what `foreswap run` will do: it works (`Ok`, `Note`), it works with a loss (`Warning`), or it
//! refuses, or leaves programs unmanaged (`Failure`).

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// What a finding means for `foreswap run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// Works, with a loss of speed or of some function.
    Warning,
    /// Programs cannot be managed.
    Failure,
}

impl Verdict {
    /// The word in the first column.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failure => "FAILURE",
        }
    }
}

/// Commands that remove an obstacle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// Who executes them and where: `as root`, `in this shell`, `where the container is started`.
    pub place: String,
    /// To be pasted into a shell, in order.
    pub commands: Vec<String>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// One word, stable: scripts may compare it.
    pub name: &'static str,
    /// What it means.
    pub verdict: Verdict,
    /// What was found, for people.
    pub found: String,
    /// The same for programs; a key ends with its unit.
    pub facts: BTreeMap<&'static str, Value>,
    /// Why it matters; empty if nothing has to be done.
    pub why: String,
    /// Alternatives, the best first.
    pub remedies: Vec<Remedy>,
}

impl Check {
    fn new(name: &'static str, verdict: Verdict, found: impl Into<String>, why: &str) -> Self {
        Self {
            name,
            verdict,
            found: found.into(),
            facts: BTreeMap::new(),
            why: why.to_owned(),
            remedies: Vec::new(),
        }
    }

    /// All is well.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, found, "")
    }

    /// Worth knowing.
    pub fn note(name: &'static str, found: impl Into<String>, why: &str) -> Self {
        Self::new(name, Verdict::Note, found, why)
    }

    /// A loss.
    pub fn warning(name: &'static str, found: impl Into<String>, why: &str) -> Self {
        Self::new(name, Verdict::Warning, found, why)
    }

    /// An obstacle.
    pub fn failure(name: &'static str, found: impl Into<String>, why: &str) -> Self {
        Self::new(name, Verdict::Failure, found, why)
    }

    /// Adds a fact.
    pub fn fact(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.facts.insert(key, value.into());
        self
    }

    /// Adds an alternative.
    pub fn remedy<T: Into<String>>(
        mut self,
        place: &str,
        commands: impl IntoIterator<Item = T>,
    ) -> Self {
        self.remedies.push(Remedy {
            place: place.to_owned(),
            commands: commands.into_iter().map(Into::into).collect(),
        });
        self
    }
}

/// A word of a shell's command line.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell() {
        assert_eq!(quoted("/var/tmp"), "/var/tmp");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
