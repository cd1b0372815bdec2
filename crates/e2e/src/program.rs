//! The test programs in C: compiled once per test binary, with the system's compiler.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use crate::foreswap::binary;
use crate::process::target_tmp;
use crate::requirement;

/// The folder of the programs: beside the build, readable by the ordinary user of some tests.
fn folder() -> PathBuf {
    let path = target_tmp().join("programs");
    fs::create_dir_all(&path).expect("the folder of the programs can be made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode can be set");
    path
}

/// The library for regions of memory beyond RAM, of the same build as the `foreswap` under test. Programs that are compiled
/// with `-lforeswap_capi` need its folder in `LD_LIBRARY_PATH`.
pub fn library() -> PathBuf {
    binary().with_file_name("libforeswap_capi.so")
}

/// Compiles `programs/{name}.c` and returns the executable's path, or skips (see [`requirement`]).
#[track_caller]
pub fn compile(test: &str, name: &str) -> Option<PathBuf> {
    compile_with(test, name, &[])
}

/// As [`compile`], with further options of the compiler; the executable is named after both.
#[track_caller]
pub fn compile_with(test: &str, name: &str, options: &[&str]) -> Option<PathBuf> {
    static DONE: OnceLock<Mutex<HashMap<String, PathBuf>>> = OnceLock::new();
    let gcc = requirement::command(test, "gcc")?;
    let mut done = DONE
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let key = [&[name], options].concat().join("");
    if let Some(path) = done.get(&key) {
        return Some(path.clone());
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(format!("{name}.c"));
    let path = folder().join(key.replace('/', "_"));
    // Under another name first: processes of an older run may still execute the last one.
    let fresh = folder().join(format!("{}.{}", path.display(), std::process::id()));
    let output = Command::new(gcc)
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-fno-builtin", "-pthread", "-o"])
        .arg(&fresh)
        .arg("-I")
        .arg(requirement::workspace().join("crates/capi/include"))
        .arg("-L")
        .arg(library().with_file_name(""))
        .arg(&source)
        .args(options)
        .output()
        .expect("the compiler starts");
    assert!(
        output.status.success(),
        "{} does not compile:\n{}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(&fresh, &path).expect("the program can be put in place");
    done.insert(key, path.clone());
    Some(path)
}
