//! The text of a machine file: sections of `key = value`, comments after `#`.

use std::cell::Cell;
use std::collections::BTreeMap;

use thiserror::Error;

/// The error of a machine file, and its place.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{file}:{line}: {problem}")]
pub struct FileError {
    /// The file's name.
    pub file: String,
    /// The line, from 1 on; the last one if something is missing.
    pub line: usize,
    /// The value found, and the expected form.
    pub problem: String,
}

struct Value {
    text: String,
    line: usize,
    used: Cell<bool>,
}

/// All values of a file, by `section.key`.
pub struct Text {
    file: String,
    lines: usize,
    values: BTreeMap<String, Value>,
}

/// Units of time, in nanoseconds.
const TIMES: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];
/// Units of size, in bytes.
const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];
/// Units of bandwidth, in bytes a second.
const RATES: &[(&str, u64)] = &[
    ("kB/s", 1_000),
    ("MB/s", 1_000_000),
    ("GB/s", 1_000_000_000),
];

impl Text {
    /// Splits a file into its values.
    ///
    /// # Errors
    ///
    /// A line is neither a section, a value nor a comment, or a key is repeated.
    pub fn parse(file: &str, text: &str) -> Result<Self, FileError> {
        let mut found = Text {
            file: file.into(),
            lines: text.lines().count().max(1),
            values: BTreeMap::new(),
        };
        let mut section = String::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            if let Some(name) = content.strip_prefix('[').and_then(|c| c.strip_suffix(']')) {
                section = format!("{}.", name.trim());
                continue;
            }
            let Some((key, value)) = content.split_once('=') else {
                let problem = format!(
                    "`{content}`: expected `key = value`, `[section]` or a comment after #"
                );
                return Err(found.error(line, problem));
            };
            let key = format!("{section}{}", key.trim());
            let value = Value {
                text: value.trim().into(),
                line,
                used: Cell::new(false),
            };
            if let Some(first) = found.values.insert(key.clone(), value) {
                let problem = format!("`{key}` is there already, in line {}", first.line);
                return Err(found.error(line, problem));
            }
        }
        Ok(found)
    }

    fn error(&self, line: usize, problem: String) -> FileError {
        FileError {
            file: self.file.clone(),
            line,
            problem,
        }
    }

    /// Whether there is such a key, for optional ones.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    fn get(&self, key: &str, expected: &str) -> Result<&Value, FileError> {
        let missing = || {
            self.error(
                self.lines,
                format!("`{key}` is missing; expected {expected}"),
            )
        };
        let value = self.values.get(key).ok_or_else(missing)?;
        value.used.set(true);
        Ok(value)
    }

    /// One of `words`.
    pub fn word<'a>(&self, key: &str, words: &[&'a str]) -> Result<&'a str, FileError> {
        let expected = format!("one of: {}", words.join(", "));
        let value = self.get(key, &expected)?;
        let found = words.iter().find(|word| **word == value.text);
        found.copied().ok_or_else(|| {
            self.error(
                value.line,
                format!("`{key}` is `{}`; expected {expected}", value.text),
            )
        })
    }

    /// Any text that is not empty.
    pub fn name(&self, key: &str) -> Result<String, FileError> {
        let value = self.get(key, "a name")?;
        if value.text.is_empty() {
            return Err(self.error(value.line, format!("`{key}` is empty; expected a name")));
        }
        Ok(value.text.clone())
    }

    /// A whole number within `range`.
    pub fn count(&self, key: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, FileError> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let value = self.get(key, &expected)?;
        let number = value.text.replace('_', "").parse().ok();
        number.filter(|n| range.contains(n)).ok_or_else(|| {
            self.error(
                value.line,
                format!("`{key}` is `{}`; expected {expected}", value.text),
            )
        })
    }

    fn measure(
        &self,
        key: &str,
        units: &[(&str, u64)],
        example: &str,
        least: u64,
    ) -> Result<u64, FileError> {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        let expected = format!(
            "a number with a unit of {}, such as {example}{}",
            names.join(", "),
            if least > 0 { ", more than 0" } else { "" }
        );
        let value = self.get(key, &expected)?;
        let wrong = || {
            self.error(
                value.line,
                format!("`{key}` is `{}`; expected {expected}", value.text),
            )
        };
        let (number, unit) = value.text.split_once(' ').ok_or_else(wrong)?;
        let (_, factor) = units
            .iter()
            .find(|(name, _)| *name == unit.trim())
            .ok_or_else(wrong)?;
        let number = number.replace('_', "");
        let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
        let digits = fraction.len() as u32;
        if digits > 6 || whole.len() > 12 {
            return Err(wrong());
        }
        let part = |text: &str| -> Result<u64, FileError> {
            match text {
                "" => Ok(0),
                text if text.bytes().all(|b| b.is_ascii_digit()) => {
                    text.parse().map_err(|_| wrong())
                }
                _ => Err(wrong()),
            }
        };
        if whole.is_empty() {
            return Err(wrong());
        }
        let whole = part(whole)?.checked_mul(*factor).ok_or_else(wrong)?;
        let fraction = part(fraction)? * factor / 10u64.pow(digits);
        let all = whole.checked_add(fraction).ok_or_else(wrong)?;
        if all < least { Err(wrong()) } else { Ok(all) }
    }

    /// A time, in nanoseconds.
    pub fn time(&self, key: &str) -> Result<u64, FileError> {
        self.measure(key, TIMES, "1.5 us", 0)
    }

    /// A size, in bytes; not 0.
    pub fn bytes(&self, key: &str) -> Result<u64, FileError> {
        self.measure(key, SIZES, "32 GiB", 1)
    }

    /// A bandwidth, in bytes a second; not 0.
    pub fn rate(&self, key: &str) -> Result<u64, FileError> {
        self.measure(key, RATES, "2800 MB/s", 1)
    }

    /// Fails if a key was not used.
    ///
    /// # Errors
    ///
    /// A key is unknown.
    pub fn finish(&self) -> Result<(), FileError> {
        let unused = self.values.iter().filter(|(_, value)| !value.used.get());
        let first = unused.min_by_key(|(_, value)| value.line);
        first.map_or(Ok(()), |(key, value)| {
            let known: Vec<&str> = self
                .values
                .iter()
                .filter(|(_, value)| value.used.get())
                .map(|(key, _)| key.as_str())
                .collect();
            let problem = format!(
                "`{key}` means nothing here; expected are the keys that a machine of its kind has: {}",
                known.join(", ")
            );
            Err(self.error(value.line, problem))
        })
    }
}
