//! Copies of the programs under test that any user may execute.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::foreswap::binary;
use crate::program;

/// foreswap, its objects and test programs, and a folder `work` that belongs to the user nobody.
pub struct Copies {
    folder: PathBuf,
}

impl Copies {
    /// In a new folder, until this is dropped. `None`: see [`crate::requirement`].
    pub fn new(test: &str, programs: &[&str]) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("foreswap-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder can be made");
        let copies = Self { folder };
        fs::set_permissions(&copies.folder, fs::Permissions::from_mode(0o755))
            .expect("its mode can be set");
        let foreswap = binary();
        copies.take(&foreswap);
        for object in ["libforeswap_preload.so", "libforeswap_capi.so"] {
            copies.take(&foreswap.with_file_name(object));
        }
        for program in programs {
            let options: &[&str] = match *program {
                "regions" => &["-lforeswap_capi"],
                _ => &[],
            };
            let path = program::compile_with(test, program, options)?;
            copies.take_as(&path, program);
        }
        let work = copies.join("work");
        fs::create_dir_all(&work).expect("a folder can be made");
        std::os::unix::fs::chown(&work, Some(65534), Some(65534)).expect("and given away");
        Some(copies)
    }

    /// A path in the folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn take(&self, file: &Path) {
        let name = file.file_name().expect("a file has a name");
        self.take_as(file, name);
    }

    fn take_as(&self, file: &Path, name: impl AsRef<Path>) {
        let copy = self.folder.join(name);
        fs::copy(file, &copy).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        fs::set_permissions(copy, fs::Permissions::from_mode(0o755)).expect("a mode can be set");
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
