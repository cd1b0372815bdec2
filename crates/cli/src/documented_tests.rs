//! What users copy is accepted: the commands of the documents and the examples of `--help`, which each command has.

use clap::CommandFactory;

use super::Cli;
use crate::topics::{Part, TOPICS, Topic};

/// The files whose commands are checked: documents, and all chapters of the book.
fn files() -> Vec<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let book = std::fs::read_dir(format!("{root}docs/book")).expect("the book");
    let chapters = book.map(|entry| entry.expect("a chapter").path());
    let chapters = chapters.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let documents = [
        "README.md",
        "docs/BENCH.md",
        "docs/FIGURES.md",
        "docs/LAB.md",
        "docs/REPORT.md",
        "docs/TRACES.md",
    ];
    let documents = documents.map(|name| format!("{root}{name}"));
    let chapters = chapters.map(|path| path.to_string_lossy().into_owned());
    documents.into_iter().chain(chapters).collect()
}

/// The commands of the documents, complete: lines of code blocks and the benches of tables. The book has no prompts, and the
/// end-to-end tests run all of its commands but those of the blocks `sh,norun`.
fn documented() -> Vec<String> {
    let mut commands = Vec::new();
    for file in files() {
        let text = std::fs::read_to_string(&file).expect("a document");
        let mut is_norun = false;
        for line in text.lines() {
            is_norun = line.starts_with("```sh,norun") || (is_norun && line != "```");
            let prompt = line.trim_start().strip_prefix(['$', '#']);
            let prompt = prompt.or(is_norun.then_some(line)).map(str::trim_start);
            commands.extend(
                prompt
                    .filter(|rest| rest.starts_with("foreswap "))
                    .map(str::to_owned),
            );
            let bench = |part: &&str| part.starts_with("foreswap bench ") && part.contains(" --");
            commands.extend(line.split('`').filter(bench).map(str::to_owned));
        }
    }
    commands
}

/// The examples of `--help` of `command` and all commands below it. Each has one of its own.
fn examples(command: &clap::Command, path: &str) -> Vec<String> {
    let help = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut examples: Vec<String> = help
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with(&format!("{path} ")))
        .map(str::to_owned)
        .collect();
    assert!(!examples.is_empty(), "`{path} --help` has no example");
    for command in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        let path = format!("{path} {}", command.get_name());
        examples.extend(self::examples(command, &path));
    }
    examples
}

/// Whether a command line is accepted, with the names that stand for a process or a seed replaced.
fn assert_accepted(command: &str) {
    let line = command.split(" #").next().unwrap_or_default();
    let words = line.split_whitespace().map(|word| match word {
        "PID" | "[PID]" => "1",
        "SEED" => "all",
        word => word,
    });
    if let Err(error) = Cli::read(words) {
        panic!("{command}: {error}");
    }
}

#[test]
fn the_commands_of_the_documents_are_accepted() {
    let commands = documented();
    assert!(
        commands.len() > 45,
        "{} commands were found",
        commands.len()
    );
    commands.iter().for_each(|command| assert_accepted(command));
}

#[test]
fn the_help_of_each_command_has_examples_that_are_accepted() {
    let examples = examples(&Cli::command(), "foreswap");
    examples.iter().for_each(|command| assert_accepted(command));
}

#[test]
fn the_commands_of_the_topics_are_accepted() {
    let texts = TOPICS.iter().flat_map(Topic::parts);
    let lines = texts.filter_map(|part| match part {
        Part::Verbatim(text) => Some(text.lines()),
        _ => None,
    });
    let lines = lines.flatten().map(str::trim);
    let commands = lines.filter(|line| line.starts_with("foreswap "));
    // What an example does stands behind it, after a gap.
    let commands = commands.filter_map(|line| line.split("   ").next());
    let commands: Vec<&str> = commands.collect();
    assert!(commands.len() > 10, "{commands:?}");
    commands.into_iter().for_each(assert_accepted);
}

#[test]
fn errors_name_the_nearest_command_and_option() {
    for (line, nearest) in [
        (&["foreswap", "swapof"][..], "'swapoff'"),
        (&["foreswap", "run", "--memroy", "1G", "ls"], "'--memory'"),
        (&["foreswap", "lab", "replya"], "'replay'"),
        (
            &["foreswap", "run", "-m1G", "--thp", "alway", "ls"],
            "'always'",
        ),
    ] {
        let error = Cli::read(line).expect_err("a typing error").to_string();
        assert!(error.contains("tip:") && error.contains(nearest), "{error}");
    }
}
