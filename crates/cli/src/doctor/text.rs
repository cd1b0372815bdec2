//! The findings as text of 80 columns, and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::check::{Check, Verdict};

/// The most characters of a line; commands are never broken.
const WIDTH: usize = 80;
const VERDICT: usize = 9;
const NAME: usize = 15;
/// Where the third column begins.
const INDENT: usize = VERDICT + NAME;

/// The findings, as `--json` prints them.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// Of foreswap.
    pub version: &'static str,
    /// Whether programs can be managed here: the exit status says the same.
    pub works: bool,
    /// The name of the check to begin with.
    pub first: Option<&'static str>,
    /// `machine`, `container` or `kubernetes`.
    pub place: &'static str,
    /// The effective user.
    pub user: u32,
    /// In order.
    pub checks: &'a [Check],
}

impl Report<'_> {
    /// One object, with a line end.
    pub fn json(&self) -> String {
        // Strings, numbers and lists of them: serialisation cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// The heading.
pub fn heading(version: &str, who: &str) -> String {
    format!("foreswap {version}, as {who}\n\n")
}

/// A finding; `coloured` for a terminal.
pub fn of(check: &Check, coloured: bool) -> String {
    let verdict = format!("{:<VERDICT$}", check.verdict.word());
    let verdict = match (coloured, colour(check.verdict)) {
        (true, colour) => format!("\x1b[{colour}m{verdict}\x1b[0m"),
        (false, _) => verdict,
    };
    let name = check.name;
    let mut text = format!("{verdict}{name:<NAME$}");
    paragraph(&mut text, &check.found, INDENT);
    if !check.why.is_empty() {
        indent(&mut text, INDENT);
        paragraph(&mut text, &check.why, INDENT);
    }
    for remedy in &check.remedies {
        indent(&mut text, VERDICT);
        paragraph(&mut text, &format!("> {}:", remedy.place), VERDICT + 2);
        for command in &remedy.commands {
            indent(&mut text, VERDICT + 4);
            text.push_str(&plain(command));
            text.push('\n');
        }
    }
    text
}

fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "32",
        Verdict::Note => "36",
        Verdict::Warning => "33",
        Verdict::Failure => "1;31",
    }
}

/// The last line.
pub fn conclusion(works: bool, first: Option<&str>, checks: &[Check], coloured: bool) -> String {
    let count = |verdict| {
        let of = checks.iter().filter(|check| check.verdict == verdict);
        of.count()
    };
    let warnings = count(Verdict::Warning);
    // The trial fails for the others' reasons.
    let failures = count(Verdict::Failure).saturating_sub(1).max(1);
    let plural = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    };
    let text = match (works, first) {
        (true, None) => "foreswap works here.".to_owned(),
        (true, Some(first)) => format!(
            "foreswap works here, with {}; the first: {first}.",
            plural(warnings, "warning")
        ),
        (false, first) => format!(
            "foreswap does not work here: {}. Begin with: {}.",
            plural(failures, "failure"),
            first.unwrap_or("trial")
        ),
    };
    let colour = match (works, warnings) {
        (false, _) => "1;31",
        (true, 0) => "1;32",
        (true, _) => "1;33",
    };
    match coloured {
        true => format!("\n\x1b[{colour}m{text}\x1b[0m\n"),
        false => format!("\n{text}\n"),
    }
}

fn indent(text: &mut String, columns: usize) {
    let _ = write!(text, "{:columns$}", "");
}

/// Text of other programs and file names must not reach the terminal as it is.
fn plain(text: &str) -> String {
    let safe = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(safe).collect()
}

/// Adds words up to the right margin, then in lines that begin at `column`; the cursor is there already.
fn paragraph(text: &mut String, words: &str, column: usize) {
    let mut at = column;
    for (number, word) in words.split_whitespace().enumerate() {
        let word = plain(word);
        let length = word.chars().count();
        if number > 0 && at + 1 + length > WIDTH {
            text.push('\n');
            indent(text, column);
            at = column;
        } else if number > 0 {
            text.push(' ');
            at += 1;
        }
        text.push_str(&word);
        at += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_the_terminal_and_commands_stay_whole() {
        let long = "one two three four five six seven eight nine ten eleven twelve thirteen \
                    fourteen fifteen";
        let command = "echo ".repeat(30);
        let check = Check::warning("huge-pages", long, long).remedy(long, [command.trim()]);
        let text = of(&check, false);
        let (commands, others): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.contains("echo"));
        assert_eq!(commands.len(), 1);
        assert!(others.iter().all(|line| line.len() <= WIDTH), "{text}");
        assert!(
            text.starts_with("warning  huge-pages     one two"),
            "{text}"
        );
        assert!(text.contains("\n                        twelve"), "{text}");
        let bad = Check::ok("area", "a \x1b[31m name");
        assert!(!of(&bad, false).contains('\x1b'));
        assert!(of(&bad, true).starts_with("\x1b[32mok       \x1b[0marea"));
    }

    #[test]
    fn the_last_line_names_what_to_do_first() {
        let warned = [Check::warning("io_uring", "x", "y")];
        let failed = ["area", "trial"].map(|name| Check::failure(name, "x", "y"));
        let end = |works, first, checks: &[Check]| conclusion(works, first, checks, false);
        assert_eq!(end(true, None, &[]), "\nforeswap works here.\n");
        let text = end(true, Some("io_uring"), &warned);
        assert!(text.contains("1 warning; the first: io_uring"), "{text}");
        let text = end(false, Some("area"), &failed);
        assert!(text.contains("1 failure. Begin with: area"), "{text}");
    }

    #[test]
    fn the_object_has_documented_keys() {
        let checks = [Check::failure("area", "x", "y")
            .fact("bytes", 7_u64)
            .remedy("as root", ["ls"])];
        let report = Report {
            version: "1",
            works: false,
            first: Some("area"),
            place: "machine",
            user: 0,
            checks: &checks,
        };
        let value: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
        assert_eq!(value["works"], false);
        assert_eq!(value["checks"][0]["verdict"], "failure");
        assert_eq!(value["checks"][0]["facts"]["bytes"], 7);
        assert_eq!(value["checks"][0]["remedies"][0]["commands"][0], "ls");
    }
}
