//! `ulimit -f`, which kills a process that crosses it. A program of its own, since the limit is the
//! process'.

use foreswap_store::area::{self, AreaError, AreaSpec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lifts the limit again, also when an assertion fails: the test's own output may go to a file.
struct Restored(Rlimit);

impl Drop for Restored {
    fn drop(&mut self) {
        setrlimit(Resource::Fsize, self.0).expect("the limit as it was");
    }
}

#[test]
fn the_limit_for_files_is_respected_and_named() {
    let before = getrlimit(Resource::Fsize);
    let maximum = before.maximum;
    let _restored = Restored(before);
    let limited = |bytes| Rlimit {
        current: Some(bytes),
        maximum,
    };
    let spec = AreaSpec::temporary();
    setrlimit(Resource::Fsize, limited(8 << 20)).expect("a limit");

    let error = area::open(&spec, Some(16 << 20), 0).expect_err("beyond the limit");
    assert!(matches!(
        error,
        AreaError::FileSizeLimit {
            limit: Some(8_388_608),
            ..
        }
    ));
    assert!(error.to_string().contains("ulimit -f"), "{error}");

    let area = area::open(&spec, Some(8 << 20), 0).expect("exactly the limit");
    assert_eq!(area.bytes, 8 << 20);
    let area = area::open(&spec, None, 0).expect("the default gives way");
    assert_eq!(area.bytes, 8 << 20);
    assert!(area.notes.iter().any(|note| note.contains("ulimit -f")));

    setrlimit(Resource::Fsize, limited(4096)).expect("a limit");
    let error = area::open(&spec, None, 0).expect_err("too little");
    assert!(error.to_string().contains("ulimit -f"), "{error}");
}
