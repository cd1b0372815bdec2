//! Arrays beyond RAM in Python: the tests of the package, on its source and the library of the build under test.

use foreswap_e2e::{Job, program, requirement};

#[test]
fn from_the_source() {
    let Some(python) = requirement::venv_python("python_arrays") else {
        return;
    };
    let package = requirement::workspace().join("python");
    let job = Job::new(python)
        .arg(package.join("tests/test_arrays.py"))
        .env("PYTHONPATH", &package)
        .env("FORESWAP_LIBRARY", program::library());
    let outcome = job.run().succeeded();
    let is_done = outcome.stderr.contains("\nRan 8 tests") && !outcome.stderr.contains("skipped=");
    assert!(is_done, "{}", outcome.stderr);
}
