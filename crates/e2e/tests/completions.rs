//! The completions of the packages, in the shells themselves: bash by its function, zsh at the key in a terminal, fish by `complete -C`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, requirement};

/// The folder with the completions that `examples/pages.rs` writes, made once for this test.
fn completions(scratch: &Scratch) -> PathBuf {
    let folder = scratch.join("pages");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(requirement::workspace());
    command
        .args("run --quiet --profile quick --locked -p foreswap-cli --example pages --".split(' '));
    // What cargo has told this test about its package makes build scripts run again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    let status = command.arg(&folder).status();
    assert!(status.expect("cargo starts").success());
    folder
}

/// A folder with two files to complete, in which the shell also has its home.
fn folder() -> Scratch {
    let scratch = Scratch::new("completions");
    for name in ["area.swap", "afile"] {
        fs::write(scratch.join(name), "").expect("a file");
    }
    scratch
}

/// What a line is completed to: each of the words must be offered, or be in the line after the key.
const OFFERED: [(&str, &[&str]); 5] = [
    ("foreswap run --mem", &["--memory"]),
    ("foreswap run --swap a", &["area.swap", "afile"]),
    ("foreswap run --readahead str", &["streams"]),
    ("foreswap swapo", &["swapon", "swapoff"]),
    // What follows -- is a command line of its own.
    ("foreswap run -m 1G -- git sta", &["status", "stash"]),
];

#[track_caller]
fn offers(scratch: &Scratch, wanted: &[(&str, &[&str])], complete: impl Fn(&str) -> Job) {
    for (line, words) in wanted {
        let job = complete(line)
            .cwd(scratch.path())
            .env("HOME", scratch.path());
        let outcome = job
            .env("XDG_CONFIG_HOME", scratch.path())
            .env("XDG_DATA_HOME", scratch.path())
            .run();
        let text = outcome.succeeded().text();
        for word in *words {
            assert!(text.contains(word), "{line}: no {word} in {text:?}");
        }
    }
}

fn bash(scratch: &Scratch, pages: &Path) {
    // As the shell does: the words, the function, and its answers, or files where it has none.
    let script = r#"
        . "$1"; COMP_WORDS=($2); case $2 in *" ") COMP_WORDS+=("") ;; esac
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) word=${COMP_WORDS[-1]}
        _foreswap foreswap "$word" "${COMP_WORDS[-2]}"
        echo "${COMPREPLY[@]}""#;
    let file = pages.join("bash/foreswap");
    let job = |line: &str| {
        Job::new("bash")
            .args(["-c", script, "bash"])
            .arg(&file)
            .arg(line)
    };
    offers(scratch, &OFFERED[..4], job);
}

fn zsh(scratch: &Scratch, pages: &Path) {
    let script = requirement::workspace().join("crates/e2e/programs/complete.zsh");
    let folder = pages.join("zsh");
    offers(scratch, &OFFERED, |line| {
        Job::new("zsh")
            .arg("-f")
            .arg(&script)
            .arg(&folder)
            .arg(line)
            .timeout(30)
    });
}

fn fish(scratch: &Scratch, pages: &Path) {
    let file = pages.join("fish/foreswap.fish");
    offers(scratch, &OFFERED, |line| {
        Job::new("fish")
            .args(["-c", "source $argv[1]; complete -C $argv[2]"])
            .arg(&file)
            .arg(line)
    });
}

#[test]
fn bash_zsh_and_fish_complete_options_paths_and_the_command() {
    let test = "completions";
    let met =
        ["bash", "zsh", "fish", "git"].map(|shell| requirement::command(test, shell).is_some());
    if met != [true; 4] {
        return;
    }
    let scratch = folder();
    let pages = completions(&scratch);
    bash(&scratch, &pages);
    zsh(&scratch, &pages);
    fish(&scratch, &pages);
}
