//! Opening areas in directories and files: what is accepted, how it is left, and that every refusal
//! says what to do.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use foreswap_store::area::{self, AreaError, AreaSpec, OpenArea, lease};
use foreswap_store::ram::Method;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 64 * MIB;

fn spec(path: &Path) -> AreaSpec {
    let no_size = |_: &str| Err("no size is read here".to_owned());
    AreaSpec::parse(path.to_str().expect("UTF-8"), no_size).expect("a path")
}

fn open(path: &Path, swap_size: Option<u64>) -> Result<OpenArea, AreaError> {
    area::open(&spec(path), swap_size, LIMIT)
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn file_in(directory: &TempDir, mode: u32, bytes: u64) -> PathBuf {
    let path = directory.path().join("area");
    let file = File::create(&path).expect("a file");
    file.set_len(bytes).expect("a size");
    file.set_permissions(Permissions::from_mode(mode))
        .expect("a mode");
    path
}

/// The refusal, with proof that its text names the place and a remedy.
fn refusal(path: &Path, swap_size: Option<u64>, remedy: &str) -> AreaError {
    let error = open(path, swap_size).expect_err("a refusal");
    let text = error.to_string();
    assert!(text.contains(path.to_str().expect("UTF-8")), "{text}");
    assert!(text.contains(remedy), "{text}");
    error
}

fn pages(area: &OpenArea) -> Vec<u8> {
    let mut bytes = vec![0; area.bytes as usize];
    File::open(format!("/proc/self/fd/{}", area.file.as_raw_fd()))
        .expect("the file once more, buffered")
        .read_exact_at(&mut bytes, 0)
        .expect("all of it");
    bytes
}

#[test]
fn a_directory_gives_a_private_file_without_a_name() {
    let directory = directory();
    let area = open(directory.path(), Some(3 * MIB + 5000)).expect("an area");
    assert_eq!(area.bytes, 3 * MIB + 4096);
    assert_eq!(area.reserved_bytes, 0);
    assert!(!area.is_named());
    let metadata = area.file.metadata().expect("metadata");
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    assert_eq!(metadata.nlink(), 0);
    assert_eq!(metadata.len(), area.bytes);
    assert!(metadata.blocks() * 512 >= area.bytes, "room not reserved");
    assert!(pages(&area).iter().all(|byte| *byte == 0));
    let left = fs::read_dir(directory.path()).expect("a listing").count();
    assert_eq!(left, 0);
    area.erase().expect("nothing to erase");
}

#[test]
fn a_directory_serves_several_at_once() {
    let directory = directory();
    let first = open(directory.path(), Some(MIB)).expect("an area");
    let second = open(directory.path(), Some(MIB)).expect("another");
    let ino = |area: &OpenArea| area.file.metadata().expect("metadata").ino();
    assert_ne!(ino(&first), ino(&second));
}

#[test]
fn the_default_size_is_sparse_and_bounded_by_the_free_room() {
    let directory = directory();
    let area = open(directory.path(), None).expect("an area");
    let system = rustix::fs::statvfs(directory.path()).expect("statvfs");
    let free = system.f_bavail * system.f_frsize;
    assert!(area.bytes <= 16 << 30);
    assert!(area.bytes <= free / 100 * 85);
    let metadata = area.file.metadata().expect("metadata");
    assert_eq!(metadata.len(), area.bytes);
    assert!(metadata.blocks() * 512 <= MIB);
}

#[test]
fn a_tmpfs_is_accepted_with_a_warning_and_takes_no_memory_yet() {
    let shm = Path::new("/dev/shm");
    let area = open(shm, Some(8 * MIB)).expect("an area on /dev/shm");
    assert!(
        area.notes.iter().any(|note| note.contains("memory")),
        "{:?}",
        area.notes
    );
    let metadata = area.file.metadata().expect("metadata");
    assert_eq!(metadata.len(), 8 * MIB);
    assert!(metadata.blocks() * 512 <= MIB);
}

#[test]
fn sizes_that_cannot_be_meant_are_refused() {
    let directory = directory();
    let error = refusal(directory.path(), Some(MIB - 1), "--swap-size");
    assert!(matches!(error, AreaError::TooSmall { bytes, .. } if bytes == MIB - 1));
    refusal(directory.path(), Some(0), "1M");
    let error = refusal(directory.path(), Some(1 << 60), "another file system");
    assert!(matches!(error, AreaError::NoRoom { .. }));
    let path = file_in(&directory, 0o600, 8192);
    refusal(&path, None, "larger");
}

#[test]
fn a_missing_path_and_odd_kinds_are_refused() {
    let directory = directory();
    let missing = directory.path().join("missing");
    assert!(matches!(
        refusal(&missing, None, "install -m 600"),
        AreaError::NotFound { .. }
    ));
    assert!(matches!(
        refusal(Path::new("/dev/null"), None, "block device"),
        AreaError::WrongKind { .. }
    ));
    let path = file_in(&directory, 0o600, 0);
    let below = path.join("below");
    assert!(open(&below, None).is_err());
}

#[test]
fn compressed_memory_is_told_from_a_path() {
    let size = |text: &str| match text.strip_suffix("M") {
        Some(number) => number
            .parse::<u64>()
            .map_or(Err("no number".into()), |n| Ok(n << 20)),
        None => Err(format!("{text:?} is no size")),
    };
    let parse = |text: &str| AreaSpec::parse(text, size);
    let capacity = 512 << 20;
    for (text, method) in [
        ("ram:512M", Method::Lz4),
        ("ram:512M,lz4", Method::Lz4),
        ("ram:512M,zstd", Method::Zstd),
    ] {
        let spec = AreaSpec::Ram { capacity, method };
        assert_eq!(parse(text).expect("a RAM area"), spec);
    }
    for (text, why) in [
        ("ram:", "no size"),
        ("ram:512", "no size"),
        ("ram:512M,gzip", "gzip"),
        ("ram:1M", "out of bounds"),
        ("ram:900000M", "out of bounds"),
    ] {
        let error = parse(text).expect_err("refused").to_string();
        assert!(error.contains(text) && error.contains(why), "{error}");
        assert!(error.contains("ram:512M"), "an example: {error}");
    }
    assert!(parse("").is_err());
    let path = parse("./ram:1G").expect("a path");
    assert_eq!(path, AreaSpec::Path(PathBuf::from("./ram:1G")));
}

#[test]
fn compressed_memory_has_a_fixed_size_and_slots_for_more() {
    let spec = AreaSpec::Ram {
        capacity: 64 << 20,
        method: Method::Zstd,
    };
    let area = area::open(&spec, None, 1 << 30).expect("memory");
    assert_eq!(area.path, PathBuf::from("ram:64M,zstd"));
    assert!(area.is_ram && !area.is_named() && area.reserved_bytes == 0);
    assert_eq!(area.bytes, (64 << 20) * foreswap_store::ram::SLOTS_PER_PAGE);
    let metadata = area.file.metadata().expect("metadata");
    assert!(metadata.len() > 64 << 20);
    assert!(metadata.blocks() * 512 < 1 << 20, "nothing is taken yet");
    assert!(area.file.set_len(0).is_err() && area.file.set_len(1 << 40).is_err());
    area.erase().expect("nothing to do");
}

#[test]
fn files_that_others_may_read_or_write_are_refused() {
    let directory = directory();
    let path = file_in(&directory, 0o640, MIB);
    for mode in [0o640, 0o604, 0o620, 0o602, 0o666] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
        assert!(matches!(
            refusal(&path, None, "chmod 600"),
            AreaError::OpenToOthers { mode: found, .. } if found == mode
        ));
    }
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a mode");
    open(&path, None).expect("an area");
}

#[test]
fn a_link_to_a_file_is_refused() {
    let directory = directory();
    let path = file_in(&directory, 0o600, MIB);
    let link = directory.path().join("link");
    symlink(&path, &link).expect("a link");
    assert!(matches!(
        refusal(&link, None, "points to"),
        AreaError::Symlink { .. }
    ));
    // A link to a directory redirects nothing that is ours.
    let link = directory.path().join("directory");
    symlink(directory.path(), &link).expect("a link");
    open(&link, Some(MIB)).expect("an area");
}

#[test]
fn a_file_in_use_is_refused_until_the_last_copy_is_closed() {
    let directory = directory();
    let path = file_in(&directory, 0o600, MIB);
    let area = open(&path, None).expect("an area");
    let elsewhere = area.file.try_clone().expect("a copy");
    drop(area);
    assert!(matches!(
        refusal(&path, None, "wait"),
        AreaError::InUse { .. }
    ));
    drop(elsewhere);
    open(&path, None).expect("free again");
}

/// The run was killed, and the disk still writes for one of its processes.
#[test]
fn a_file_is_in_use_until_the_last_transfer_has_ended() {
    let directory = directory();
    let path = file_in(&directory, 0o600, MIB);
    let area = open(&path, None).expect("an area");
    let transfer = lease::open(area.file.as_fd(), 7).expect("a description");
    drop(area);
    assert!(matches!(
        refusal(&path, None, "wait"),
        AreaError::InUse { .. }
    ));
    drop(transfer);
    open(&path, None).expect("free again");
}

#[test]
fn a_users_file_is_not_overwritten() {
    let directory = directory();
    let path = file_in(&directory, 0o600, 0);
    let text = b"my thesis, the only copy\n".repeat(100_000);
    File::options()
        .write(true)
        .open(&path)
        .and_then(|mut file| file.write_all(&text))
        .expect("a write");
    for size in [None, Some(MIB), Some(8 * MIB)] {
        assert!(matches!(
            refusal(&path, size, "wipefs"),
            AreaError::HasData { .. }
        ));
    }
    assert!(fs::read(&path).expect("the file") == text);
}

#[test]
fn an_area_with_a_name_is_known_again_and_its_old_pages_are_gone() {
    let directory = directory();
    let path = file_in(&directory, 0o600, 2 * MIB);
    let area = open(&path, None).expect("an area of zeros");
    assert_eq!((area.bytes, area.reserved_bytes), (2 * MIB, 4096));
    assert!(area.is_named());
    drop(area);
    // What a run leaves behind that was killed.
    let file = File::options().write(true).open(&path).expect("the file");
    file.write_all_at(b"secret", 4096).expect("a write");
    drop(file);
    let area = open(&path, None).expect("the same area again");
    assert!(pages(&area)[4096..].iter().all(|byte| *byte == 0));
    // And one that ends in peace.
    let file = File::options().write(true).open(&path).expect("the file");
    file.write_all_at(b"secret", MIB).expect("a write");
    area.erase().expect("erased");
    assert!(pages(&area)[4096..].iter().all(|byte| *byte == 0));
    assert_eq!(fs::metadata(&path).expect("metadata").len(), 2 * MIB);
}

#[test]
fn a_file_grows_to_the_size_asked_for_and_is_not_cut() {
    let directory = directory();
    let path = file_in(&directory, 0o600, 0);
    let area = open(&path, Some(3 * MIB)).expect("an area");
    assert_eq!(area.bytes, 3 * MIB);
    let metadata = area.file.metadata().expect("metadata");
    assert_eq!(metadata.len(), 3 * MIB);
    assert!(metadata.blocks() * 512 >= 3 * MIB);
    drop(area);
    let area = open(&path, Some(2 * MIB)).expect("an area");
    assert_eq!(area.bytes, 2 * MIB);
    assert_eq!(area.file.metadata().expect("metadata").len(), 3 * MIB);
}

#[test]
fn an_empty_file_gets_the_default_size() {
    let directory = directory();
    let path = file_in(&directory, 0o600, 0);
    let area = open(&path, None).expect("an area");
    assert!(area.bytes >= MIB);
    assert_eq!(area.file.metadata().expect("metadata").len(), area.bytes);
}

#[test]
fn an_area_of_mkswap_is_accepted_and_keeps_its_signature() {
    let directory = directory();
    let path = file_in(&directory, 0o600, 2 * MIB);
    let mut header = vec![0u8; 4096];
    header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&511u32.to_ne_bytes());
    header[4086..].copy_from_slice(b"SWAPSPACE2");
    let file = File::options().write(true).open(&path).expect("the file");
    file.write_all_at(&header, 0).expect("a write");
    let area = open(&path, None).expect("an area");
    assert_eq!(area.reserved_bytes, 4096);
    assert!(pages(&area)[..4096] == header);
}

#[test]
fn the_descriptor_is_not_inherited() {
    let directory = directory();
    let path = file_in(&directory, 0o600, MIB);
    for place in [directory.path(), path.as_path()] {
        let area = open(place, Some(MIB)).expect("an area");
        let flags = rustix::io::fcntl_getfd(&area.file).expect("flags");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn the_default_area_is_the_temporary_directory() {
    assert_eq!(AreaSpec::temporary(), AreaSpec::Path(std::env::temp_dir()));
}

#[test]
fn an_area_that_is_not_writable_or_not_ours_is_refused() {
    let directory = directory();
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: permission denied: nothing is denied to root");
        let path = file_in(&directory, 0o600, MIB);
        std::os::unix::fs::chown(&path, Some(65_534), None).expect("chown");
        assert!(matches!(
            refusal(&path, None, "chown 0"),
            AreaError::ForeignOwner { owner: 65_534, .. }
        ));
    } else {
        eprintln!("skipped: a foreign owner: giving files away needs root");
        let path = file_in(&directory, 0o400, MIB);
        assert!(matches!(
            refusal(&path, None, "must be allowed"),
            AreaError::Permission { .. }
        ));
        fs::set_permissions(directory.path(), Permissions::from_mode(0o500)).expect("a mode");
        assert!(matches!(
            refusal(directory.path(), None, "must be allowed"),
            AreaError::Permission { .. }
        ));
    }
}
