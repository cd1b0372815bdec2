//! A test that cannot run here fails where everything is promised to be available (`CI` is set). Elsewhere it prints
//! its name and the reason, so that no skip is hidden.

use std::path::{Path, PathBuf};

/// True when the documented full sizes are asked for (`make test-full`).
pub fn full_size() -> bool {
    std::env::var_os("FORESWAP_E2E_FULL").is_some()
}

/// True when `met`; otherwise fails under CI and prints a named skip elsewhere.
#[track_caller]
pub fn required(met: bool, test: &str, what: &str) -> bool {
    if met {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "{test}: {what} is missing, and CI must have it (make setup)"
    );
    println!("SKIPPED {test}: {what} is missing (make setup)");
    eprintln!("SKIPPED {test}: {what} is missing (make setup)");
    false
}

/// The path of `command`, searched as a shell with the system's folders would.
pub fn find_command(command: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .map(|folder| Path::new(folder).join(command))
        .find(|candidate| candidate.is_file())
}

/// `command`'s path, or the result of [`required`].
#[track_caller]
pub fn command(test: &str, command: &str) -> Option<PathBuf> {
    let found = find_command(command);
    required(found.is_some(), test, command);
    found
}

/// The Python of the project's `.venv`, which has NumPy and SciPy, or the result of [`required`].
#[track_caller]
pub fn venv_python(test: &str) -> Option<PathBuf> {
    let python = workspace().join(".venv/bin/python");
    required(python.exists(), test, ".venv with NumPy and SciPy").then_some(python)
}

/// True when the tests run as root, or the result of [`required`].
#[track_caller]
pub fn root(test: &str) -> bool {
    required(rustix::process::geteuid().is_root(), test, "root")
}

/// The workspace's top folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the crate lies two levels below the workspace")
        .to_path_buf()
}
