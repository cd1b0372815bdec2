//! An area in an object store from its opening to its end: requests, and what is done about those that fail.
//!
//! Reads that fail are tried again until the time-out, as on other areas. Segments that cannot be stored stay in memory and
//! are tried again for as long as the run lasts, less and less often; when there are too many, pages go to other areas. Whether the
//! store is away is found by a small request of its own, so that one that takes no objects but still has those it took is not
//! taken for one that is away.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreswap_store::area::{MIN_AREA_BYTES, PAGE_BYTES};
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::Instant;

use super::connect::{self, in_words, with_remedy};
use super::log::{Log, Number};
use super::reads::{self, Answer, Get};
use super::{PAGE, folder, mark, object};
use crate::address;
use crate::area::Area;
use crate::transfer::Part;

/// The size of an area unless the user says one: a bucket has no end, tables for each page do.
const DEFAULT_BYTES: u64 = 32 << 30;
/// The interval of [`Area::tick`].
const TICK: Duration = Duration::from_millis(50);
/// The interval at which the store is asked while it is away, or does not store.
const PROBE: Duration = Duration::from_secs(1);
/// The pauses between attempts to store a segment: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MOST_PAUSE: Duration = Duration::from_secs(30);
/// The longest time of a request for a whole segment.
const SEGMENT: Duration = Duration::from_secs(600);
/// The interval at which the mark is stored anew.
pub const BEAT: Duration = Duration::from_secs(60);
/// Requests for many pages, and for few, at a time.
const LARGE_GETS: usize = 24;
const SMALL_GETS: usize = 32;
/// The most pages of a request for few.
const SMALL: u32 = 64;
/// Removals at a time.
const REMOVALS: usize = 4;
/// How long removal at the end may take.
const REMOVING: Duration = Duration::from_secs(10);
/// The number that no connection of [`Area`] has.
const NOBODY: u32 = u32::MAX;

/// An area that is open.
pub(crate) struct Served {
    /// Its parts.
    pub area: Rc<Area>,
    /// Bytes in use.
    pub bytes: u64,
    client: Arc<dyn ObjectStore>,
    /// The same for whole segments, which nobody waits for and a slow line takes long for.
    patient: Arc<dyn ObjectStore>,
    folder: Path,
    log: RefCell<Log>,
    is_up: Cell<bool>,
    /// The store does not take objects.
    is_refused: Cell<bool>,
    is_closing: Cell<bool>,
    is_probing: Cell<bool>,
    large: Semaphore,
    small: Semaphore,
    removals: Cell<usize>,
    say: Box<dyn Fn(bool, String)>,
}

impl Served {
    /// Makes a client, and tries what an area needs: an object is stored, read and removed.
    pub(crate) async fn open(
        say: impl Fn(bool, String) + Clone + 'static,
        address: address::S3,
        has_copy: bool,
        bytes: Option<u64>,
        timeout: Duration,
    ) -> Result<Rc<Self>, String> {
        let client = connect::store(&address, timeout / 2)?;
        let patient = connect::store(&address, SEGMENT.max(timeout))?;
        let clients = [client, patient];
        Self::of(clients, say, &address, has_copy, bytes, timeout).await
    }

    async fn of(
        [client, patient]: [Arc<dyn ObjectStore>; 2],
        say: impl Fn(bool, String) + Clone + 'static,
        address: &address::S3,
        has_copy: bool,
        bytes: Option<u64>,
        timeout: Duration,
    ) -> Result<Rc<Self>, String> {
        let bytes = bytes.unwrap_or(DEFAULT_BYTES);
        if bytes < MIN_AREA_BYTES {
            return Err(format!(
                "the size of {bytes} bytes is too small; the least is {MIN_AREA_BYTES} (1M): --swap-size"
            ));
        }
        let run = crate::mark::draw().map_err(|error| error.to_string())?;
        let name = address.text.clone();
        let to_area: crate::area::Say = Box::new(say.clone());
        let area = match has_copy {
            true => Area::with_copy(name, timeout, to_area),
            false => Area::new(name, timeout, to_area),
        };
        let served = Rc::new(Self {
            area: Rc::new(area),
            bytes: bytes / PAGE_BYTES * PAGE_BYTES,
            client,
            patient,
            folder: folder(&address.prefix, &format!("{run:032x}")),
            log: RefCell::new(Log::new((address.segment / PAGE_BYTES) as u32)),
            is_up: Cell::new(true),
            is_refused: Cell::new(false),
            is_closing: Cell::new(false),
            is_probing: Cell::new(false),
            large: Semaphore::new(LARGE_GETS),
            small: Semaphore::new(SMALL_GETS),
            removals: Cell::new(0),
            say: Box::new(say),
        });
        served.try_it().await.map_err(|error| with_remedy(&error))?;
        served.area.on_up();
        spawn_local(Rc::clone(&served).work());
        spawn_local(Rc::clone(&served).look_after());
        Ok(served)
    }

    /// The requests that the area needs.
    async fn try_it(&self) -> Result<(), Error> {
        let probe = self.folder.clone().join("probe");
        self.client
            .put(&probe, Bytes::from_static(b"foreswap").into())
            .await?;
        self.client.get_range(&probe, 0..8).await?;
        self.client.delete(&probe).await?;
        self.put_mark().await
    }

    async fn put_mark(&self) -> Result<(), Error> {
        let text = format!(
            "a run of foreswap: pages of its processes are beside this object\npid {}\n",
            std::process::id()
        );
        self.client
            .put(&mark(&self.folder), text.into())
            .await
            .map(|_| ())
    }

    /// Begins what can be begun, each time that something has come or ended.
    async fn work(self: Rc<Self>) {
        while !self.area.is_closed() {
            if !self.is_closing.get() {
                self.begin_writes();
                self.begin_reads();
                self.begin_upkeep();
            }
            self.area.wait_for_work(0).await;
        }
    }

    fn begin_writes(&self) {
        loop {
            let mut log = self.log.borrow_mut();
            if !log.has_room() && self.is_refused.get() {
                drop(log);
                return self.area.on_away(Part::is_write);
            }
            if !log.has_room() || log.is_behind() {
                return;
            }
            let Some(part) = self.area.next_where(true, |_| true) else {
                return;
            };
            let first = (part.offset() / PAGE_BYTES) as u32;
            for (page, bytes) in (first..).zip(part.memory().chunks_exact(PAGE)) {
                log.write(page, bytes);
            }
            drop(log);
            part.end(0);
        }
    }

    fn begin_reads(self: &Rc<Self>) {
        if !self.is_up.get() {
            return;
        }
        let mut parts = Vec::new();
        while let Some(part) = self.area.next_where(false, |_| true) {
            parts.push(part);
        }
        if parts.is_empty() {
            return;
        }
        let gets = reads::plan(&mut self.log.borrow_mut(), &self.area, parts);
        for get in gets {
            spawn_local(Rc::clone(self).read(get));
        }
    }

    async fn read(self: Rc<Self>, get: Get) {
        let turns = match get.pages.end - get.pages.start {
            ..=SMALL => &self.small,
            _ => &self.large,
        };
        let turn = turns.acquire().await;
        let number = get.number;
        let bytes = self.get(number, get.bytes()).await;
        drop(turn);
        self.log.borrow_mut().unpin(number);
        match bytes {
            Ok(bytes) => get.end(&self.area, Answer::Bytes(&bytes)),
            Err(Error::NotFound { .. }) => {
                self.on_gone(number);
                get.end(&self.area, Answer::Gone);
            }
            Err(_) => {
                get.end(&self.area, Answer::Failed);
                self.probe().await;
            }
        }
        self.area.wake_all();
    }

    async fn get(&self, number: Number, range: std::ops::Range<u64>) -> Result<Bytes, Error> {
        let path = object(&self.folder, number);
        self.client.get_range(&path, range).await
    }

    fn on_gone(&self, number: Number) {
        if self.log.borrow_mut().on_gone(number) {
            self.area.on_lost();
        }
    }

    /// Stores, cleans and removes what is due.
    fn begin_upkeep(self: &Rc<Self>) {
        if !self.is_up.get() {
            return;
        }
        while !self.is_refused.get() {
            let Some((number, bytes)) = self.log.borrow_mut().next_to_store() else {
                break;
            };
            spawn_local(Rc::clone(self).put(number, bytes));
        }
        loop {
            let Some(number) = self.log.borrow_mut().next_to_clean() else {
                break;
            };
            spawn_local(Rc::clone(self).clean(number));
        }
        while self.removals.get() < REMOVALS {
            let Some(number) = self.log.borrow_mut().next_to_remove() else {
                break;
            };
            self.removals.set(self.removals.get() + 1);
            spawn_local(Rc::clone(self).remove(number));
        }
    }

    async fn put(self: Rc<Self>, number: Number, bytes: Bytes) {
        if self.store(number, bytes).await.is_err() {
            if !self.is_refused.replace(true) {
                spawn_local(Rc::clone(&self).try_to_store());
            }
            self.probe().await;
        }
        self.area.wake_all();
    }

    async fn store(&self, number: Number, bytes: Bytes) -> Result<(), Error> {
        let path = object(&self.folder, number);
        let stored = self.patient.put(&path, bytes.into()).await;
        self.log.borrow_mut().on_stored(number, stored.is_ok());
        stored.map(|_| ())
    }

    /// Until the store takes a segment again.
    async fn try_to_store(self: Rc<Self>) {
        let (mut pause, mut is_told) = (FIRST_PAUSE, false);
        loop {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MOST_PAUSE);
            if self.is_closing.get() {
                return;
            }
            if !self.is_up.get() {
                continue;
            }
            let Some((number, bytes)) = self.log.borrow_mut().next_to_store() else {
                break;
            };
            let Err(error) = self.store(number, bytes).await else {
                break;
            };
            if self.probe().await && !std::mem::replace(&mut is_told, true) {
                let text = format!(
                    "swap area {}: the store takes no pages ({}); pages go to other areas until it does",
                    self.area.name,
                    in_words(&error)
                );
                (self.say)(true, text);
            }
        }
        self.is_refused.set(false);
        if is_told {
            let text = format!("swap area {}: the store takes pages again", self.area.name);
            (self.say)(false, text);
        }
        self.area.wake_all();
    }

    async fn clean(self: Rc<Self>, number: Number) {
        let bytes = match self.patient.get(&object(&self.folder, number)).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        match bytes {
            Ok(bytes) => self.log.borrow_mut().on_read(number, Some(&bytes)),
            Err(Error::NotFound { .. }) => self.on_gone(number),
            Err(_) => {
                // Not at once again.
                tokio::time::sleep(PROBE).await;
                self.log.borrow_mut().on_read(number, None);
                self.probe().await;
            }
        }
        self.area.wake_all();
    }

    async fn remove(self: Rc<Self>, number: Number) {
        let removed = match self.client.delete(&object(&self.folder, number)).await {
            Ok(()) | Err(Error::NotFound { .. }) => true,
            Err(_) => {
                tokio::time::sleep(PROBE).await;
                false
            }
        };
        self.log.borrow_mut().on_removed(number, removed);
        self.removals.set(self.removals.get() - 1);
        self.area.wake_all();
    }

    /// Asks whether the store is there. Returns that, as far as it is known.
    async fn probe(&self) -> bool {
        if self.is_probing.replace(true) {
            return self.is_up.get();
        }
        let found = self.client.head(&mark(&self.folder)).await;
        self.is_probing.set(false);
        if self.is_closing.get() {
            return true;
        }
        match found {
            Ok(_) => self.on_up(),
            Err(Error::NotFound { .. }) => {
                // A store that was started anew, or a bucket that was emptied.
                self.log.borrow_mut().on_all_gone();
                self.area.on_lost();
                let _ = self.put_mark().await;
                self.on_up();
            }
            Err(error) => {
                if self.is_up.replace(false) {
                    let why = format!("the store does not answer ({})", in_words(&error));
                    self.area.on_down(NOBODY, Vec::new(), &why);
                }
            }
        }
        self.is_up.get()
    }

    fn on_up(&self) {
        if !self.is_up.replace(true) {
            self.area.on_up();
            self.area.wake_all();
        }
    }

    /// Time-outs, a store that is away, and the mark.
    async fn look_after(self: Rc<Self>) {
        let (mut asked, mut marked) = (Instant::now(), Instant::now());
        while !self.area.is_closed() {
            self.area.tick();
            if !self.is_up.get() && asked.elapsed() >= PROBE {
                asked = Instant::now();
                let served = Rc::clone(&self);
                spawn_local(async move { _ = served.probe().await });
            }
            if self.is_up.get() && marked.elapsed() >= BEAT {
                marked = Instant::now();
                let served = Rc::clone(&self);
                spawn_local(async move { _ = served.put_mark().await });
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Ends the area, and removes what is there.
    ///
    /// # Errors
    /// The text says why its contents may still be there.
    pub(crate) async fn close(&self) -> Result<(), String> {
        self.is_closing.set(true);
        self.area.on_away(Part::is_write);
        let removed = tokio::time::timeout(REMOVING, self.remove_all()).await;
        self.area.close();
        let why = match removed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => in_words(&error),
            Err(_) => format!("no answer for {} s", REMOVING.as_secs()),
        };
        Err(format!(
            "{why}; remove it with: foreswap clean '{}'",
            self.area.name
        ))
    }

    async fn remove_all(&self) -> Result<(), Error> {
        // One that is carried out later would be left behind.
        while self.log.borrow().is_storing() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let numbers = self.log.borrow_mut().close();
        let paths = numbers
            .into_iter()
            .map(|number| object(&self.folder, number));
        let all: Vec<_> = paths.chain([mark(&self.folder)]).map(Ok).collect();
        let mut removed = self.client.delete_stream(stream::iter(all).boxed());
        while let Some(one) = removed.next().await {
            match one {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "served_tests.rs"]
mod tests;
