//! What the Python package does in a program that runs already: its own tests, on its source and the libraries of the build
//! under test.

use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, program, requirement};

/// Runs a file of tests, which are so many.
fn passes(file: &str, tests: u32) {
    let Some(python) = requirement::venv_python(file) else {
        return;
    };
    let package = requirement::workspace().join("python");
    let scratch = Scratch::new("python");
    let job = Job::new(python)
        .args(["-W", "error"])
        .arg(package.join("tests").join(file))
        .env("PYTHONPATH", &package)
        .env("TMPDIR", scratch.path())
        .env("FORESWAP_LIBRARY", program::library());
    let outcome = job.run().succeeded();
    let ran = format!("\nRan {tests} tests");
    let is_done = outcome.stderr.contains(&ran) && !outcome.stderr.contains("skipped=");
    assert!(is_done, "{}", outcome.stderr);
}

#[test]
fn arrays_beyond_ram() {
    passes("test_arrays.py", 8);
}

#[test]
fn files_through_the_page_cache() {
    passes("test_files.py", 6);
}
