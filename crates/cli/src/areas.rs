//! The swap areas of a run: opened by the store, described for the ledger.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use foreswap::ledger::{
    AREA_DIRECT, AREA_FAR, AREA_OBJECTS, AREA_RAM, AREA_SEALED, AreaId, AreaInfo, CLUSTER_SLOTS,
    IoBackend, MAX_AREA_SLOTS, MAX_AREAS,
};
use foreswap_far::address::redis::masked;
use foreswap_far::address::{Address, AddressError, Addresses};
use foreswap_far::handle::{Opened, Relay};
use foreswap_store::area::{self, AreaError, AreaSpec, Far, OpenArea, PAGE_BYTES};
use rustix::process::Pid;

use crate::args::Encrypt;
use crate::memory_setting::Limits;
use crate::size::{Size, SizeError, humane};
use crate::{memory, reaping, voice};

/// How long areas on servers may take to discard their contents at the end.
const FAR_END: Duration = Duration::from_secs(15);
/// How long the relay may take to end.
const RELAY_END: Duration = Duration::from_secs(1);
/// One second in total.
const IN_USE_TRIES: u32 = 50;
const IN_USE_PAUSE: Duration = Duration::from_millis(20);

/// A swap area as a user names it, unverified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// On this machine.
    Local(AreaSpec),
    /// On a server.
    Far(Addresses),
}

impl Spec {
    /// Whether pages go to an object store.
    fn has_objects(&self) -> bool {
        matches!(self, Self::Far(address) if address.has_objects())
    }
}

/// Why a run has no swap areas.
#[derive(Debug, thiserror::Error)]
pub enum AreasError {
    /// One of them cannot be used.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// An address makes no sense.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// One on a server cannot be used, for this reason.
    #[error("{0}")]
    Far(String),
    /// Objects are no place for pages that a thread waits for.
    #[error(
        "swap area {name}: an object takes too long for each page that a thread waits for; name an area that is nearer as well, \
         such as --swap /var/tmp or --swap ram:512M: the coldest pages go from there to objects"
    )]
    ObjectsOnly {
        /// The area.
        name: String,
    },
    /// More than the ledger can describe.
    #[error("{0} swap areas are named; the most is {MAX_AREAS}")]
    TooMany(usize),
    /// Less than one cluster.
    #[error("swap area {name}: {} is too small, the least is 4M; give a larger --swap-size", humane(*bytes))]
    TooSmall {
        /// The area.
        name: String,
        /// Its size.
        bytes: u64,
    },
}

impl AreasError {
    /// The area, if the system is at fault and not the description of the area.
    pub fn obstructed(&self) -> Option<&Path> {
        match self {
            Self::Area(
                AreaError::NotFound { path }
                | AreaError::Permission { path }
                | AreaError::NoRoom { path, .. }
                | AreaError::FileSizeLimit { path, .. }
                | AreaError::Unfaithful { path }
                | AreaError::Io { path, .. },
            ) => Some(path),
            _ => None,
        }
    }
}

/// Opens areas, and has the relay to those on servers.
#[derive(Debug, Default)]
pub struct Opener {
    relay: Option<Relay>,
    timeout: Duration,
}

impl Opener {
    /// `timeout`: when a transfer of an area on a server has failed.
    pub fn new(timeout: Duration) -> Self {
        Self {
            relay: None,
            timeout,
        }
    }

    /// Opens every area named, or the default one, in order.
    pub fn open_all(
        &mut self,
        named: &[String],
        size: Option<u64>,
        limits: &Limits,
    ) -> Result<Vec<OpenArea>, AreasError> {
        if named.len() > MAX_AREAS {
            return Err(AreasError::TooMany(named.len()));
        }
        let specs = if named.is_empty() {
            vec![Spec::Local(AreaSpec::temporary())]
        } else {
            named
                .iter()
                .map(|name| parse(name).map(absolute))
                .collect::<Result<_, _>>()?
        };
        specs
            .iter()
            .map(|spec| {
                let mut area = self.open(spec, size, limits.most)?;
                if !limits.is_auto {
                    // Otherwise the limit makes room.
                    area.notes.extend(too_much(spec, limits.most));
                }
                Ok(area)
            })
            .collect()
    }

    /// Opens one.
    pub fn open(
        &mut self,
        spec: &Spec,
        size: Option<u64>,
        limit: u64,
    ) -> Result<OpenArea, AreasError> {
        match spec {
            Spec::Local(spec) => open_one(spec, size, limit),
            Spec::Far(address) => self.open_far(address, size),
        }
    }

    fn open_far(&mut self, address: &Addresses, size: Option<u64>) -> Result<OpenArea, AreasError> {
        let timeout = self.timeout;
        let relay = self.relay(address)?;
        let opened = relay
            .open(address, size, timeout)
            .map_err(AreasError::Far)?;
        of_opened(address, opened)
    }

    /// Begins to open an area on a server; [`Opener::opened`] has it later, by the number that is returned.
    pub fn begin_to_open(
        &mut self,
        address: &Addresses,
        size: Option<u64>,
    ) -> Result<u32, AreasError> {
        let timeout = self.timeout;
        let begun = self.relay(address)?.begin_to_open(address, size, timeout);
        begun.map_err(AreasError::Far)
    }

    /// The area that was begun with this number, once it is open or cannot be.
    pub fn opened(
        &mut self,
        address: &Addresses,
        number: u32,
    ) -> Option<Result<OpenArea, AreasError>> {
        let relay = self.relay.as_mut()?;
        let gone = || Err("the relay to its server has ended".to_owned());
        let opened = relay.opened(number);
        let opened = opened.or_else(|| relay.is_gone().then(gone))?;
        Some(
            opened
                .map_err(AreasError::Far)
                .and_then(|opened| of_opened(address, opened)),
        )
    }

    /// An area that was opened is not used after all.
    pub fn abandon(&mut self, area: &OpenArea) {
        if let (Some(far), Some(relay)) = (&area.far, &mut self.relay) {
            relay.begin_to_close(far.number);
        }
    }

    fn relay(&mut self, address: &Addresses) -> Result<&mut Relay, AreasError> {
        let name = address.text();
        if self.relay.as_ref().is_none_or(Relay::is_gone) {
            let refused = |error| {
                AreasError::Far(format!("swap area {name}: no relay to its server: {error}"))
            };
            // As for other orphans: somebody has to reap it.
            reaping::begin();
            let first = self.relay.as_ref().map_or(0, Relay::next_area);
            self.relay = Some(Relay::start(first).map_err(refused)?);
        }
        let missing = || AreasError::Far(format!("swap area {name}: no relay"));
        self.relay.as_mut().ok_or_else(missing)
    }

    /// The process of the relay.
    pub fn relay_pid(&self) -> Option<Pid> {
        self.relay.as_ref().and_then(Relay::pid)
    }

    /// Readable when the relay has something to say.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let living = self.relay.as_ref().filter(|relay| !relay.is_gone());
        living.map(Relay::fd)
    }

    /// Messages of the relay for the user: whether each is a warning, and its text.
    pub fn take_said(&mut self) -> Vec<(bool, String)> {
        self.relay
            .as_mut()
            .map(Relay::take_said)
            .unwrap_or_default()
    }
}

fn of_opened(address: &Addresses, opened: Opened) -> Result<OpenArea, AreasError> {
    let far = Far {
        register: opened.register,
        number: opened.area,
        has_objects: address.has_objects(),
    };
    let Opened {
        bytes,
        reserved_bytes,
        ..
    } = opened;
    Ok(OpenArea::far(address.text(), bytes, reserved_bytes, far)?)
}

/// The text of an area for messages.
pub fn without_password(text: &str) -> String {
    match Addresses::parse(text) {
        Ok(address) => address.text().to_owned(),
        // It may be an address all the same.
        Err(_) => masked(text),
    }
}

/// With the absolute path, which is the same for `foreswap ps` in every folder.
fn absolute(spec: Spec) -> Spec {
    match spec {
        Spec::Local(AreaSpec::Path(path)) => {
            Spec::Local(AreaSpec::Path(std::path::absolute(&path).unwrap_or(path)))
        }
        other => other,
    }
}

/// Compressed memory comes on top of the limit: a warning if both together exceed the machine's memory.
fn too_much(spec: &Spec, limit: u64) -> Option<String> {
    let Spec::Local(AreaSpec::Ram { capacity, .. }) = *spec else {
        return None;
    };
    let memory = memory::available();
    (capacity.saturating_add(limit) > memory).then(|| {
        format!(
            "the limit of {} and the swap area of {} in memory are together more than the {} available here",
            humane(limit),
            humane(capacity),
            humane(memory)
        )
    })
}

/// Parses one `--swap`. A RAM area may have at most the machine's memory.
pub fn parse(text: &str) -> Result<Spec, AreasError> {
    if Address::is_meant(text) {
        return Ok(Spec::Far(Addresses::parse(text)?));
    }
    let local = AreaSpec::parse(text, |size| {
        let memory = memory::available();
        let size: Size = size.parse().map_err(|why: SizeError| why.to_string())?;
        let bytes = size.resolve(memory);
        if bytes > memory {
            return Err(format!(
                "{} is more than the {} of memory available here",
                humane(bytes),
                humane(memory)
            ));
        }
        Ok(bytes)
    });
    Ok(Spec::Local(local?))
}

/// The processes of a killed run take a moment to exit, and hold its areas until then.
fn open_one(spec: &AreaSpec, size: Option<u64>, limit: u64) -> Result<OpenArea, AreasError> {
    for _ in 0..IN_USE_TRIES {
        match area::open(spec, size, limit) {
            Err(AreaError::InUse { .. }) => std::thread::sleep(IN_USE_PAUSE),
            other => return Ok(other?),
        }
    }
    Ok(area::open(spec, size, limit)?)
}

/// The open areas of a run, by number.
#[derive(Debug)]
pub struct Areas {
    /// For more of them.
    pub opener: Opener,
    open: Vec<(AreaId, OpenArea)>,
    erasing: Vec<JoinHandle<()>>,
}

impl Areas {
    /// None yet.
    pub fn new(opener: Opener) -> Self {
        Self {
            opener,
            open: Vec::new(),
            erasing: Vec::new(),
        }
    }

    /// Adds an area.
    pub fn add(&mut self, area: AreaId, open: OpenArea) {
        self.open.push((area, open));
    }

    /// An area is no longer in use: its contents are made unreadable, on a thread, as that may take a while.
    pub fn remove(&mut self, area: AreaId) {
        let Some(at) = self.open.iter().position(|(number, _)| *number == area) else {
            return;
        };
        let (_, open) = self.open.swap_remove(at);
        if open.far.is_some() {
            return self.opener.abandon(&open);
        }
        // Freeing a large file takes a while, too.
        self.erasing.push(std::thread::spawn(move || {
            if open.is_named() {
                erase(&open);
            }
        }));
    }

    /// Waits for all such threads.
    pub fn settle(&mut self) {
        for thread in self.erasing.drain(..) {
            // It has reported its error.
            let _ = thread.join();
        }
    }

    /// Makes the contents of named files and devices unreadable.
    pub fn erase_all(&mut self) {
        self.settle();
        for (_, open) in &self.open {
            match (&open.far, &mut self.opener.relay) {
                (Some(far), Some(relay)) => relay.begin_to_close(far.number),
                _ => erase(open),
            }
        }
        if let Some(relay) = &mut self.opener.relay {
            for why in relay.until_closed(FAR_END) {
                voice::error(&why);
            }
        }
        if let Some(relay) = self.opener.relay.take() {
            relay.end(RELAY_END);
        }
    }
}

fn erase(area: &OpenArea) {
    if let Err(error) = area.erase() {
        voice::error(&error.to_string());
    }
}

/// The I/O backend for `areas`, if `wanted` was requested. Transfers of io_uring may outlive their process, and the
/// areas must show their end. If one does not, threads replace io_uring, through the page cache, because on some
/// network file systems their direct I/O outlives them as well. The text is the reason for a deviation from the
/// request.
pub fn backend(wanted: IoBackend, areas: &mut [OpenArea]) -> (IoBackend, Option<String>) {
    let mut why = None;
    for area in areas {
        let Err(errno) = area.shows_transfers() else {
            continue;
        };
        why.get_or_insert(format!(
            "swap area {}: a file there cannot be locked ({errno}), which would show when the writes of an ended process are over",
            area.path.display()
        ));
        // No file system refuses to remove the flag.
        let _ = area.leave_direct_io();
    }
    match why {
        None => (wanted, None),
        Some(why) => {
            let differs = wanted != IoBackend::Threads;
            (IoBackend::Threads, differs.then_some(why))
        }
    }
}

/// Refuses object stores without an area that is nearer.
pub fn have_a_near_one(named: &[String]) -> Result<(), AreasError> {
    let specs = named.iter().map(|name| parse(name));
    let specs: Vec<Spec> = specs.collect::<Result<_, _>>()?;
    match specs.first() {
        Some(Spec::Far(address)) if specs.iter().all(Spec::has_objects) => {
            let name = address.text().to_owned();
            Err(AreasError::ObjectsOnly { name })
        }
        _ => Ok(()),
    }
}

/// The priority of the `order`th area of the command line.
pub fn priority(order: usize) -> i32 {
    -(order as i32) - 1
}

/// Whether what is put on an area is encrypted, by `--encrypt`.
pub fn is_sealed(area: &OpenArea, wanted: Encrypt) -> bool {
    match wanted {
        Encrypt::Always => !area.is_ram,
        Encrypt::Far => area.far.is_some(),
        Encrypt::Never => false,
    }
}

/// The ledger's entry for an area. Whole clusters only: the rest of the area stays unused.
pub fn describe(area: &OpenArea, priority: i32, encrypt: Encrypt) -> Result<AreaInfo, AreasError> {
    let cluster = u64::from(CLUSTER_SLOTS);
    let pages = (area.bytes - area.reserved_bytes) / PAGE_BYTES;
    let slots = pages.min(u64::from(MAX_AREA_SLOTS)) / cluster * cluster;
    let name = area.path.display().to_string();
    if slots == 0 {
        return Err(AreasError::TooSmall {
            name,
            bytes: area.bytes,
        });
    }
    Ok(AreaInfo {
        slots: slots as u32,
        priority,
        flags: [
            (area.is_ram, AREA_RAM),
            (area.direct && !area.is_ram, AREA_DIRECT),
            (area.far.is_some(), AREA_FAR),
            (
                area.far.as_ref().is_some_and(|far| far.has_objects),
                AREA_OBJECTS,
            ),
            (is_sealed(area, encrypt), AREA_SEALED),
        ]
        .into_iter()
        .filter_map(|(has, flag)| has.then_some(flag))
        .sum(),
        first_byte: area.reserved_bytes,
        name,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn objects_need_an_area_that_is_nearer() {
        let check = |named: &[&str]| {
            let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
            have_a_near_one(&named)
        };
        for named in [
            &[][..],
            &["/tmp"],
            &["s3://b", "/tmp"],
            &["nbd://h", "s3://b"],
        ] {
            assert!(check(named).is_ok(), "{named:?}");
        }
        for named in [&["s3://b"][..], &["s3://b", "s3://c"], &["s3://b+nbd://h"]] {
            let error = check(named).expect_err("no near area").to_string();
            assert!(
                error.contains("s3://b") && error.contains("--swap /var/tmp"),
                "{error}"
            );
        }
    }

    #[test]
    fn threads_do_the_io_where_transfers_do_not_show_their_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |spec| {
            let opened = Opener::new(Duration::ZERO).open(&spec, Some(4 << 20), 0);
            opened.expect("an area")
        };
        let mut areas = vec![
            open(parse("ram:4M").expect("a specification")),
            open(Spec::Local(AreaSpec::Path(folder.path().to_owned()))),
        ];
        let all = [IoBackend::Auto, IoBackend::Uring, IoBackend::Threads];
        for wanted in all {
            assert_eq!(backend(wanted, &mut areas), (wanted, None));
        }
        // As a file system without locks: this description cannot be locked for writing.
        let path = folder.path().join("read-only");
        std::fs::write(&path, "").expect("a file");
        areas[1].file = File::open(path).expect("it can be read");
        for wanted in all {
            let (used, why) = backend(wanted, &mut areas);
            assert_eq!(used, IoBackend::Threads);
            assert_eq!(why.is_none(), wanted == IoBackend::Threads, "{why:?}");
            assert!(!areas[1].direct);
        }
    }
}
