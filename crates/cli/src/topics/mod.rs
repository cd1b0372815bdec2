//! `foreswap help`: the help of a command, or a text about a topic that several commands share.
//!
//! A topic is a text file of lines of at most 80 characters: the summary, then paragraphs, headings in capitals, and
//! lines that are indented and stay as they are (examples, tables). Manual pages of section 7 are made of the same texts.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Command};

/// `foreswap help`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  foreswap help run
  foreswap help areas
  foreswap help topics")]
pub struct HelpArgs {
    /// The words of a command, a topic, or `topics`
    #[arg(value_name = "COMMAND|TOPIC")]
    pub words: Vec<String>,
}

/// A topic.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// What `foreswap help` takes.
    pub name: &'static str,
    text: &'static str,
}

macro_rules! topics {
    ($($name:literal),*) => {
        [$(Topic { name: $name, text: include_str!(concat!($name, ".txt")) }),*]
    };
}

/// All topics, in the order in which a new user may want them.
pub const TOPICS: [Topic; 7] = topics![
    "memory",
    "areas",
    "permissions",
    "unmanaged",
    "figures",
    "status",
    "environment"
];

/// The word that lists them.
pub const LIST: &str = "topics";

/// A part of a topic's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// A line in capitals.
    Heading(&'a str),
    /// Lines that can be filled anew.
    Paragraph(&'a str),
    /// Lines that stay as they are.
    Verbatim(&'a str),
}

impl Topic {
    /// One line.
    pub fn summary(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default()
    }

    /// The text after the summary.
    pub fn parts(&self) -> impl Iterator<Item = Part<'static>> {
        let body = self.text.split_once("\n\n").map_or("", |(_, body)| body);
        body.trim_end().split("\n\n").map(|block| {
            let is_capital = !block.chars().any(char::is_lowercase);
            match block {
                _ if block.starts_with(' ') => Part::Verbatim(block),
                _ if is_capital && !block.contains('\n') => Part::Heading(block),
                _ => Part::Paragraph(block),
            }
        })
    }

    fn print(&self, out: &mut dyn Write, coloured: bool) -> io::Result<()> {
        let (bold, plain) = if coloured {
            ("\x1b[1m", "\x1b[0m")
        } else {
            ("", "")
        };
        writeln!(out, "{bold}{}{plain}", self.summary())?;
        for part in self.parts() {
            match part {
                Part::Heading(text) => writeln!(out, "\n{bold}{text}{plain}")?,
                Part::Paragraph(text) | Part::Verbatim(text) => writeln!(out, "\n{text}")?,
            }
        }
        Ok(())
    }
}

fn print_list(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Topics of `foreswap help TOPIC`:\n")?;
    for topic in &TOPICS {
        writeln!(out, "  {:<12} {}", topic.name, topic.summary())?;
    }
    writeln!(
        out,
        "\n`foreswap help COMMAND` is the help of a command, and `foreswap doctor` says what is wrong."
    )
}

/// The command that `words` name, below `command`; or the word that names none, and the command below which.
fn find<'a>(
    command: &'a mut Command,
    words: &[String],
) -> Result<&'a mut Command, (&'a mut Command, String)> {
    let Some((word, rest)) = words.split_first() else {
        return Ok(command);
    };
    match command.find_subcommand(word) {
        Some(_) => {}
        None => return Err((command, word.clone())),
    }
    find(
        command.find_subcommand_mut(word).expect("it was found"),
        rest,
    )
}

/// Prints the help that `words` ask for. An error names the nearest command or topic.
pub fn help(command: &mut Command, words: &[String]) -> Result<ExitCode, clap::Error> {
    let mut out = io::stdout().lock();
    let coloured =
        out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let printed = match words {
        [word] if word == LIST => print_list(&mut out),
        [word] if let Some(topic) = TOPICS.iter().find(|topic| topic.name == word) => {
            topic.print(&mut out, coloured)
        }
        _ => {
            command.build();
            match find(command, words) {
                Ok(found) => found.print_long_help(),
                Err((above, word)) => return Err(unknown(above, &word, words.len() == 1)),
            }
        }
    };
    match printed {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(clap::Error::raw(ErrorKind::Io, error)),
    }
}

/// How alike two words must be for one to be suggested (Jaro), as for clap's own suggestions.
const ALIKE: f64 = 0.7;

fn unknown(command: &Command, word: &str, with_topics: bool) -> clap::Error {
    let commands = command.get_subcommands().filter(|one| !one.is_hide_set());
    let names = commands.map(|one| one.get_name().to_owned());
    let topics = TOPICS.iter().map(|topic| topic.name).chain([LIST]);
    let topics = topics.filter(|_| with_topics).map(str::to_owned);
    let mut near: Vec<(f64, String)> = names
        .chain(topics)
        .map(|name| (strsim::jaro(word, &name), name))
        .filter(|(alike, _)| *alike > ALIKE)
        .collect();
    near.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let near: Vec<String> = near.into_iter().map(|(_, name)| name).collect();
    let mut error = clap::Error::new(ErrorKind::InvalidSubcommand).with_cmd(command);
    error.insert(
        ContextKind::InvalidSubcommand,
        ContextValue::String(word.to_owned()),
    );
    if !near.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(near),
        );
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_fit_a_terminal_and_have_all_their_parts() {
        for topic in TOPICS {
            assert!(
                topic.text.is_ascii() && topic.text.ends_with('\n'),
                "{}",
                topic.name
            );
            for line in topic.text.lines() {
                assert!(
                    line.len() <= 80 && line == line.trim_end(),
                    "{}: {line}",
                    topic.name
                );
            }
            let mut out = Vec::new();
            topic.print(&mut out, false).expect("a vector");
            assert_eq!(String::from_utf8_lossy(&out), topic.text);
            let examples = topic
                .parts()
                .filter(|part| matches!(part, Part::Verbatim(_)));
            assert!(examples.count() > 0, "{}", topic.name);
        }
    }

    #[test]
    fn words_lead_to_commands() {
        let mut command = crate::command();
        command.build();
        let words = ["lab", "replay"].map(str::to_owned);
        let found = find(&mut command, &words).expect("a command");
        assert_eq!(found.get_bin_name(), Some("foreswap lab replay"));
    }

    #[test]
    fn an_unknown_word_gets_the_nearest_command_or_topic() {
        for (words, nearest) in [
            (&["permission"][..], Some("'permissions'")),
            (&["runn"], Some("'run'")),
            (&["lab", "memroy"], None),
            (&["lab", "replya"], Some("'replay'")),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let error = help(&mut crate::command(), &words).expect_err("no such word");
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            match nearest {
                Some(nearest) => assert!(text.contains("tip:") && text.contains(nearest), "{text}"),
                None => assert!(!text.contains("tip:"), "{text}"),
            }
        }
    }
}
