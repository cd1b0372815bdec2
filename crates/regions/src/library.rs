//! The library with the engine, loaded once.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::Error;

/// The file, and the variable that names another one.
const FILE: &str = "libforeswap_capi.so";
const VARIABLE: &str = "FORESWAP_LIBRARY";

/// Its functions, as `include/foreswap.h` of `crates/capi` declares them.
#[derive(Debug)]
pub struct Library {
    pub open: unsafe extern "C" fn(*const *const c_char) -> c_int,
    pub map: unsafe extern "C" fn(usize) -> *mut c_void,
    pub unmap: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub advise: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int,
    pub set_memory: unsafe extern "C" fn(*const c_char) -> c_int,
    pub stats: unsafe extern "C" fn(*mut c_char, usize) -> isize,
    error: unsafe extern "C" fn() -> *const c_char,
}

impl Library {
    /// Why this thread's last call failed.
    pub fn error(&self) -> Error {
        // SAFETY: it returns a string that stays until this thread's next failure.
        let text = unsafe { CStr::from_ptr((self.error)()) };
        Error::Refused(text.to_string_lossy().into_owned())
    }

    /// The result of a call that returns 0 or -1.
    pub fn check(&self, status: c_int) -> Result<(), Error> {
        match status {
            0 => Ok(()),
            _ => Err(self.error()),
        }
    }
}

/// The library. It stays loaded.
pub fn library() -> Result<&'static Library, Error> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = load()?;
    Ok(LIBRARY.get_or_init(|| library))
}

/// Where it may be: beside the program, in `lib/foreswap` next to the program's folder, or where the loader looks. In a
/// setuid program, the variable is that of somebody else, and does not count.
fn places() -> Vec<PathBuf> {
    // SAFETY: reads a word of the auxiliary vector.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if let Some(file) = std::env::var_os(VARIABLE).filter(|_| !is_secure) {
        return vec![PathBuf::from(file)];
    }
    let program = std::env::current_exe().unwrap_or_default();
    let folders = program.ancestors().skip(1);
    let beside = folders.clone().take(1).map(|folder| folder.join(FILE));
    let above = folders
        .skip(1)
        .take(1)
        .map(|folder| folder.join("lib/foreswap").join(FILE));
    let installed = ["/usr/lib/foreswap", "/usr/local/lib/foreswap"];
    let installed = installed.map(|folder| PathBuf::from(folder).join(FILE));
    let found = beside.chain(above).chain(installed);
    let mut found: Vec<PathBuf> = found.filter(|file| file.is_file()).collect();
    found.push(PathBuf::from(FILE));
    found
}

fn load() -> Result<Library, Error> {
    let places = places();
    let mut why = String::new();
    for place in &places {
        match load_from(place.as_os_str()) {
            Ok(library) => return Ok(library),
            Err(error) => why = error.to_string(),
        }
    }
    let places: Vec<String> = places
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    Err(Error::Library {
        places: places.join(", "),
        why,
    })
}

fn load_from(file: &OsStr) -> Result<Library, libloading::Error> {
    // SAFETY: its constructors are those of the C library's start files; the functions have these types.
    unsafe {
        let object = libloading::Library::new(file)?;
        let library = Library {
            open: *object.get(b"foreswap_open\0")?,
            map: *object.get(b"foreswap_map\0")?,
            unmap: *object.get(b"foreswap_unmap\0")?,
            advise: *object.get(b"foreswap_advise\0")?,
            set_memory: *object.get(b"foreswap_set_memory\0")?,
            stats: *object.get(b"foreswap_stats\0")?,
            error: *object.get(b"foreswap_error\0")?,
        };
        // The functions are used until the program ends.
        std::mem::forget(object);
        Ok(library)
    }
}
