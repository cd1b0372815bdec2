//! The preload object: its place, and its entry in the command's environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The object's file name.
const OBJECT: &str = "libforeswap_preload.so";
/// The variable with another place for it.
const PLACE_VARIABLE: &str = "FORESWAP_PRELOAD";
const LOADER_VARIABLE: &str = "LD_PRELOAD";

/// Why the object cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    /// Not found.
    #[error(
        "{OBJECT} not found (looked for {looked}); build it with `make build`, put it beside \
         foreswap, or name it in {PLACE_VARIABLE}"
    )]
    NotFound {
        /// All searched places.
        looked: String,
    },
    /// The path contains a separator of LD_PRELOAD.
    #[error(
        "the preload object's path {0:?} contains a space or a colon, which LD_PRELOAD cannot hold; \
         move foreswap, or name a copy elsewhere in {PLACE_VARIABLE}"
    )]
    Unspeakable(PathBuf),
    /// The binary's own path is unknown.
    #[error(
        "cannot tell where foreswap itself lies ({0}); name the preload object in {PLACE_VARIABLE}"
    )]
    Lost(#[source] std::io::Error),
}

/// Finds the object: where the environment says, beside the binary, or in an installation's lib.
pub fn find() -> Result<PathBuf, PreloadError> {
    if let Some(named) = std::env::var_os(PLACE_VARIABLE) {
        return among(&[PathBuf::from(named)]);
    }
    let binary = std::env::current_exe().map_err(PreloadError::Lost)?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    among(&[
        folder.join(OBJECT),
        folder.join("../lib/foreswap").join(OBJECT),
    ])
}

fn among(places: &[PathBuf]) -> Result<PathBuf, PreloadError> {
    let found = places
        .iter()
        .filter(|place| place.is_file())
        .find_map(|p| p.canonicalize().ok());
    let path = found.ok_or_else(|| PreloadError::NotFound {
        looked: places
            .iter()
            .map(|p| p.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
    })?;
    if path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| b" \t\n:".contains(byte))
    {
        return Err(PreloadError::Unspeakable(path));
    }
    Ok(path)
}

/// The command's LD_PRELOAD: this object first, then the existing value, without a second copy of this object (a
/// `foreswap run` within another).
pub fn variable(object: &Path, existing: Option<&OsStr>) -> (&'static str, OsString) {
    let mut value = object.as_os_str().to_owned();
    let existing = existing.unwrap_or_default().as_bytes();
    for entry in existing.split(|byte| b" \t\n:".contains(byte)) {
        let entry = OsStr::from_bytes(entry);
        if !entry.is_empty() && entry != object.as_os_str() {
            value.push(":");
            value.push(entry);
        }
    }
    (LOADER_VARIABLE, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_before_what_is_there_and_only_once() {
        let ours = Path::new("/x/ours.so");
        let value = |existing: &str| variable(ours, Some(OsStr::new(existing))).1;
        assert_eq!(variable(ours, None).1, "/x/ours.so");
        assert_eq!(value(""), "/x/ours.so");
        assert_eq!(value("a.so b.so"), "/x/ours.so:a.so:b.so");
        assert_eq!(value("a.so:/x/ours.so"), "/x/ours.so:a.so");
    }

    #[test]
    fn places() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let missing = folder.path().join(OBJECT);
        let error = among(std::slice::from_ref(&missing)).expect_err("not there");
        assert!(error.to_string().contains("make build"), "{error}");
        std::fs::write(&missing, "").expect("a file");
        assert!(among(&[missing]).is_ok());
        let spaced = folder.path().join("a b");
        std::fs::write(&spaced, "").expect("a file");
        assert!(matches!(
            among(&[spaced]),
            Err(PreloadError::Unspeakable(_))
        ));
    }
}
