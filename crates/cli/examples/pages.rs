//! Writes the manual pages and the completions of the `foreswap` command, for packages: `cargo run --release
//! -p foreswap-cli --example pages -- FOLDER`.
//!
//! All text is that of `--help` and `foreswap help TOPIC`. FOLDER gets man/foreswap.1, a page for each command
//! (man/foreswap-run.1) and topic (man/foreswap-areas.7), and bash/foreswap, zsh/_foreswap and fish/foreswap.fish. The output of one version is always the same.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use foreswap_cli::topics::{LIST, Part, TOPICS, Topic};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: pages FOLDER");
    };
    let command = shown(foreswap_cli::command().disable_help_subcommand(true));
    let created = |name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(&path)
            .with_context(|| format!("{} cannot be created", path.display()))
            .map(|()| path)
    };
    let mut built = command.clone();
    built.build();
    let manual = created("man")?;
    write_pages(&built, &manual)?;
    for topic in TOPICS {
        write_topic(&topic, &manual)?;
    }
    let names = command
        .get_subcommands()
        .map(|one| &*one.get_name().to_owned().leak());
    let topics = TOPICS.iter().map(|topic| topic.name);
    let helped: Vec<&'static str> = names.chain(topics).chain([LIST]).collect();
    let completed = command
        .mut_subcommand("run", |run| {
            run.mut_arg("command", |argument| {
                argument.value_hint(ValueHint::CommandWithArguments)
            })
        })
        .mut_subcommand("help", |help| {
            help.mut_arg("words", |words| {
                words.value_parser(PossibleValuesParser::new(helped))
            })
        });
    for (shell, name) in [
        (Shell::Bash, "bash"),
        (Shell::Zsh, "zsh"),
        (Shell::Fish, "fish"),
    ] {
        let folder = created(name)?;
        let file = clap_complete::generate_to(shell, &mut completed.clone(), "foreswap", &folder)?;
        if shell == Shell::Bash {
            // bash-completion looks for a file with the command's name.
            fs::rename(file, folder.join("foreswap"))?;
        } else if shell == Shell::Fish {
            let mut file = File::options().append(true).open(file)?;
            file.write_all(FISH_COMMAND.as_bytes())?;
        }
    }
    Ok(())
}

/// In fish, what follows `--` is completed as a command line of its own. clap's file has nothing for it.
const FISH_COMMAND: &str = r#"
function __fish_foreswap_command
    set -l words (commandline -opc)
    set -l end (contains -i -- -- $words)
    set -e words[1..$end]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end
complete -c foreswap -n 'contains -- -- (commandline -opc)' -f -a '(__fish_foreswap_command)'
"#;

/// The command without its hidden commands, which completions would show. A new command: one cannot take any away.
fn shown(command: Command) -> Command {
    let kept: Vec<Command> = command
        .get_subcommands()
        .filter(|one| !one.is_hide_set())
        .cloned()
        .collect();
    let mut new = Command::new("foreswap")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommands(kept)
        .args(command.get_arguments().cloned())
        .subcommand_required(command.is_subcommand_required_set());
    if let Some(about) = command.get_about() {
        new = new.about(about.clone());
    }
    if let Some(text) = command.get_after_help() {
        new = new.after_help(text.clone());
    }
    new
}

fn write_pages(command: &Command, folder: &Path) -> anyhow::Result<()> {
    for below in command.get_subcommands() {
        write_pages(below, folder)?;
    }
    let name = page_name(command);
    let path = folder.join(format!("{name}.1"));
    let mut file =
        File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
    write_page(command, &name, &mut file)?;
    Ok(())
}

/// A topic as a page of section 7.
fn write_topic(topic: &Topic, folder: &Path) -> anyhow::Result<()> {
    let name = format!("foreswap-{}", topic.name);
    let path = folder.join(format!("{name}.7"));
    let mut page = Roff::new();
    let source = format!("foreswap {}", env!("CARGO_PKG_VERSION"));
    page.control("TH", [&name.to_uppercase(), "7", "", &source, "foreswap"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - {}", topic.summary()))]);
    let mut is_begun = false;
    for part in topic.parts() {
        if !is_begun && !matches!(part, Part::Heading(_)) {
            page.control("SH", ["DESCRIPTION"]);
        }
        is_begun = true;
        match part {
            Part::Heading(text) => {
                page.control("SH", [text]);
            }
            Part::Paragraph(text) => {
                page.control("PP", []);
                page.text([roman(text)]);
            }
            Part::Verbatim(text) => {
                page.control("PP", []);
                page.control("EX", []);
                page.text([roman(text)]);
                page.control("EE", []);
            }
        }
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([roman("foreswap(1), foreswap-run(1)")]);
    let mut file =
        File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
    page.to_writer(&mut file)?;
    Ok(())
}

fn page_name(command: &Command) -> String {
    command
        .get_bin_name()
        .unwrap_or(command.get_name())
        .replace(' ', "-")
}

fn write_page(command: &Command, name: &str, out: &mut dyn Write) -> io::Result<()> {
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section("1")
        .source(format!("foreswap {}", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        man.render_options_section(out)?;
    }
    if command.has_subcommands() {
        section(
            out,
            "COMMANDS",
            command.get_subcommands().map(|below| {
                let about = below.get_about().map(ToString::to_string);
                (
                    format!("{}(1)", page_name(below)),
                    about.unwrap_or_default(),
                )
            }),
        )?;
    }
    let help = command.get_after_help().map(ToString::to_string);
    let (examples, notes) = parts(help.as_deref().unwrap_or_default());
    if !notes.is_empty() {
        paragraphs(out, "NOTES", &notes, false)?;
    }
    if !examples.is_empty() {
        paragraphs(out, "EXAMPLES", &examples, true)?;
    }
    if name == "foreswap" {
        section(out, "ENVIRONMENT", owned(&ENVIRONMENT))?;
        section(out, "FILES", owned(&FILES))?;
    }
    let mut related: Vec<String> = vec!["foreswap(1)".into()];
    related.extend(
        command
            .get_subcommands()
            .map(|below| format!("{}(1)", page_name(below))),
    );
    if name == "foreswap" {
        related.extend(TOPICS.map(|topic| format!("foreswap-{}(7)", topic.name)));
    }
    related.extend(["swapon(8)", "userfaultfd(2)"].map(str::to_owned));
    related.retain(|page| *page != format!("{name}(1)"));
    paragraphs(out, "SEE ALSO", &[related.join(", ")], false)
}

const ENVIRONMENT: [(&str, &str); 2] = [
    (
        "TMPDIR",
        "The folder of the swap area, if --swap names none. Default: /tmp.",
    ),
    (
        "FORESWAP_PRELOAD",
        "The place of libforeswap_preload.so, if it lies neither beside the command nor in \
         ../lib/foreswap.",
    ),
];

const FILES: [(&str, &str); 1] = [(
    "/dev/userfaultfd",
    "Who may open it for reading and writing can use foreswap without root. The packages give it to the \
     group foreswap.",
)];

fn owned<'a>(entries: &'a [(&str, &str)]) -> impl Iterator<Item = (String, String)> + 'a {
    entries
        .iter()
        .map(|&(name, text)| (name.to_owned(), text.to_owned()))
}

/// The examples and the other paragraphs of a text after the options.
fn parts(help: &str) -> (Vec<String>, Vec<String>) {
    let mut examples = Vec::new();
    let mut notes = Vec::new();
    for paragraph in help.split("\n\n").filter(|text| !text.is_empty()) {
        match paragraph.strip_prefix("Example") {
            Some(list) => examples.extend(list.lines().skip(1).map(|line| line.trim().to_owned())),
            None => notes.push(paragraph.replace('\n', " ")),
        }
    }
    (examples, notes)
}

/// A section of names, each with its text.
fn section(
    out: &mut dyn Write,
    title: &str,
    entries: impl Iterator<Item = (String, String)>,
) -> io::Result<()> {
    let mut page = Roff::new();
    page.control("SH", [title]);
    for (name, text) in entries {
        page.control("TP", []);
        page.text([bold(name)]);
        page.text([roman(text)]);
    }
    page.to_writer(out)
}

/// A section of paragraphs, or of commands as a shell takes them.
fn paragraphs(
    out: &mut dyn Write,
    title: &str,
    texts: &[String],
    commands: bool,
) -> io::Result<()> {
    let mut page = Roff::new();
    page.control("SH", [title]);
    for text in texts {
        page.control("PP", []);
        let line: Vec<Inline> = match commands {
            true => vec![roman("$ "), bold(text)],
            false => vec![roman(text)],
        };
        page.text(line);
    }
    page.to_writer(out)
}
