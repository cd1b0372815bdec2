//! The book (`docs/SUMMARY.md`, `docs/book`): each of its commands is run, chapter by chapter, in an empty folder.
//!
//! The blocks of a chapter run one after the other, each in a shell of its own with `-eu`, and share the folder: a later block
//! finds the files of an earlier one. A block passes if it ends with 0 and each run in it that prints a closing block has
//! used its area: an example without that shows nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use foreswap_e2e::fences::{Block, shell_blocks};
use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, parts, program, requirement};

/// Longest time of a block, in seconds. They take less than two on an idle machine.
const PATIENCE: u64 = 60;

fn docs() -> PathBuf {
    requirement::workspace().join("docs")
}

fn chapter_text(name: &str) -> String {
    let path = docs().join(format!("book/{name}.md"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The command under test and the Python with NumPy first in the path, as after an installation.
fn path() -> String {
    let foreswap = binary();
    let folder = foreswap.parent().expect("the command lies in a folder");
    let venv = requirement::workspace().join(".venv/bin");
    let rest = std::env::var("PATH").unwrap_or_default();
    format!("{}:{}:{rest}", folder.display(), venv.display())
}

/// A folder of Python packages with foreswap in it as the wheel would leave it: the package looks for its command there.
fn site_packages(scratch: &Scratch) -> PathBuf {
    let site = scratch.join("site-packages");
    let facts = site.join("foreswap-0.dist-info");
    fs::create_dir_all(&facts).expect("a folder");
    fs::create_dir(scratch.join("bin")).expect("a folder");
    let link = |from: PathBuf, to: PathBuf| std::os::unix::fs::symlink(from, to).expect("a link");
    link(
        requirement::workspace().join("python/foreswap"),
        site.join("foreswap"),
    );
    link(binary(), scratch.join("bin/foreswap"));
    fs::write(
        facts.join("METADATA"),
        "Metadata-Version: 2.1\nName: foreswap\nVersion: 0\n",
    )
    .expect("a file");
    fs::write(facts.join("RECORD"), "../bin/foreswap,,\n").expect("a file");
    site
}

#[track_caller]
fn passes(chapter: &str, block: &Block, scratch: &Scratch, site: &Path) {
    let place = format!("docs/book/{chapter}.md:{}", block.line);
    println!("{place}\n{}", block.script);
    let outcome = Job::new("sh")
        .args(["-euc", &block.script])
        .cwd(scratch.path())
        .env("PATH", path())
        .env("PYTHONPATH", site)
        .env("FORESWAP_LIBRARY", program::library())
        .env("XDG_RUNTIME_DIR", scratch.path())
        .env("TMPDIR", scratch.path())
        .env("OPENBLAS_NUM_THREADS", "2")
        .timeout(PATIENCE)
        .run();
    assert_eq!(
        outcome.code(),
        0,
        "{place}\nstdout: {}\nstderr: {}",
        outcome.text(),
        outcome.stderr
    );
    for line in outcome.stderr.lines() {
        let is_idle =
            line.ends_with(" 0 writes, 0 reads") || line.contains("nothing needed managing");
        assert!(!is_idle, "{place}: {line}");
    }
}

fn chapter(name: &str) {
    let test = format!("book::{name}");
    let tools = ["sqlite3", "redis-server", "redis-cli", "make", "gcc"];
    let met = tools.map(|tool| requirement::command(&test, tool).is_some());
    if met.contains(&false) || requirement::venv_python(&test).is_none() {
        return;
    }
    let (scratch, install) = (Scratch::new(name), Scratch::new("site"));
    let site = site_packages(&install);
    let blocks =
        shell_blocks(&chapter_text(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for block in &blocks {
        match &block.norun {
            Some(reason) => println!("{name}.md:{}: not run: {reason}", block.line),
            None => passes(name, block, &scratch, &site),
        }
    }
}

/// A test and an entry of `CHAPTERS` for each name.
macro_rules! chapters {
    ($($name:ident)*) => {
        const CHAPTERS: &[&str] = &[$(stringify!($name)),*];
        parts!(chapter: $($name)*);
    };
}

chapters!(start numpy build database weights notebook container slurm ci how comparison questions troubleshooting reference);

#[test]
fn every_chapter_is_in_the_contents_and_has_a_test() {
    let files: BTreeSet<String> = fs::read_dir(docs().join("book"))
        .expect("the chapters")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .map(|path| {
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let tested = CHAPTERS.iter().map(|&name| name.to_owned());
    assert_eq!(files, tested.collect());
    let summary = fs::read_to_string(docs().join("SUMMARY.md")).expect("the contents");
    for name in &files {
        assert!(summary.contains(&format!("(book/{name}.md)")), "{name}");
    }
    // The documents of the reference are chapters as well.
    for entry in fs::read_dir(docs()).expect("the documents") {
        let name = entry
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("a name");
        let is_listed = summary.contains(&format!("({name})"));
        assert_eq!(
            name.ends_with(".md") && name != "SUMMARY.md",
            is_listed,
            "{name}"
        );
    }
}

/// The book is read as pages of its own: a link out of `docs` works in the repository and not there.
#[test]
fn links_stay_within_the_book() {
    for name in CHAPTERS {
        for link in chapter_text(name).split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.starts_with("https://") {
                continue;
            }
            assert!(!target.starts_with("../../"), "{name}: {target}");
            assert!(
                docs().join("book").join(target).exists(),
                "{name}: {target}"
            );
        }
    }
}
