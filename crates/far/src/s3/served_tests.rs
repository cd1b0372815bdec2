//! A store whose requests fail, before or after they are carried out, under an area that is read and written at random.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use foreswap_store::ring::Direction;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::task::LocalSet;

use super::*;
use crate::transfer::Target;

/// Of a thousand requests so many fail.
#[derive(Debug, Default)]
struct Faulty {
    inner: InMemory,
    fails: AtomicU64,
    state: AtomicU64,
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("faulty")
    }
}

impl Faulty {
    fn below(&self, n: u64) -> u64 {
        let state = self
            .state
            .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 31)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (mixed ^ (mixed >> 32)) % n
    }

    fn look(&self) -> Result<()> {
        match self.below(1000) < self.fails.load(Ordering::Relaxed) {
            true => Err(Error::Generic {
                store: "faulty",
                source: "it fails now and then".into(),
            }),
            false => Ok(()),
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.look()?;
        tokio::time::sleep(Duration::from_millis(self.below(30))).await;
        let put = self.inner.put_opts(at, bytes, how).await;
        self.look()?;
        put
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        self.look()?;
        tokio::time::sleep(Duration::from_millis(self.below(30))).await;
        self.inner.get_opts(at, how).await
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        match self.look() {
            Ok(()) => self.inner.delete_stream(all),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, how).await
    }
}

/// A transfer of the test's, which owns its memory.
struct Transfer {
    bytes: RefCell<Vec<u8>>,
    ended: Rc<RefCell<Vec<(u64, i32)>>>,
    number: u64,
}

impl Target for Rc<Transfer> {
    fn start(&self) -> *mut u8 {
        self.bytes.borrow_mut().as_mut_ptr()
    }
    fn end(&self, errno: i32) {
        self.ended.borrow_mut().push((self.number, errno));
    }
}

fn content(page: u64, version: u64) -> Vec<u8> {
    (page << 32 | version).to_ne_bytes().repeat(PAGE / 8)
}

/// The bucket and the area of a test.
struct Bench {
    store: Arc<Faulty>,
    served: Rc<Served>,
    said: Rc<RefCell<Vec<String>>>,
    ended: Rc<RefCell<Vec<(u64, i32)>>>,
    transfers: u64,
}

impl Bench {
    async fn new(seed: u64) -> Self {
        let store = Arc::new(Faulty::default());
        store.state.store(seed << 40, Ordering::Relaxed);
        let said: Rc<RefCell<Vec<String>>> = Rc::default();
        let say = {
            let said = Rc::clone(&said);
            move |_, text| said.borrow_mut().push(text)
        };
        let address = address::Address::parse("s3://bucket/prefix?segment=1M").expect("an address");
        let address::Address::S3(address) = address else {
            panic!("it is one of S3");
        };
        let timeout = Duration::from_secs(3600);
        let clients = [(); 2].map(|()| Arc::clone(&store) as Arc<dyn ObjectStore>);
        let bytes = Some(16 << 20);
        let served = Served::of(clients, say, &address, false, bytes, timeout).await;
        Self {
            store,
            served: served.expect("it opens"),
            said,
            ended: Rc::default(),
            transfers: 0,
        }
    }

    fn submit(&mut self, direction: Direction, page: u64, bytes: Vec<u8>) -> Rc<Transfer> {
        let length = bytes.len() as u32;
        let transfer = Rc::new(Transfer {
            bytes: RefCell::new(bytes),
            ended: Rc::clone(&self.ended),
            number: self.transfers,
        });
        self.transfers += 1;
        let target = Box::new(Rc::clone(&transfer));
        self.served
            .area
            .submit(direction, page * PAGE as u64, length, target);
        transfer
    }

    /// Waits for the end of the last transfer.
    async fn end(&self) -> i32 {
        loop {
            let last = self.transfers - 1;
            if let Some((_, errno)) = self.ended.borrow().iter().find(|(n, _)| *n == last) {
                return *errno;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn objects(&self) -> usize {
        self.store.inner.list(None).count().await
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        // Pauses take no time: the clock goes on when nothing else can.
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn no_byte_is_wrong_whatever_fails() {
    for (seed, fails) in [(1, 0), (2, 50), (3, 300)] {
        run(async {
            let mut bench = Bench::new(seed).await;
            bench.store.fails.store(fails, Ordering::Relaxed);
            let mut versions: BTreeMap<u64, u64> = BTreeMap::new();
            let mut refused = 0;
            for step in 0..1500 {
                let pages = 1 + bench.store.below(70);
                // Half of it within a fourth, so that segments die and are cleaned.
                let space = [1000, 4000][step % 2];
                let first = 1 + bench.store.below(space);
                let range = first..(first + pages).min(4096);
                let is_write = step < 300 || bench.store.below(2) == 0;
                if is_write {
                    let next = |page: u64| versions.get(&page).map_or(1, |version| version + 1);
                    let bytes = range
                        .clone()
                        .flat_map(|page| content(page, next(page)))
                        .collect();
                    bench.submit(Direction::Write, first, bytes);
                    match bench.end().await {
                        0 => range.for_each(|page| *versions.entry(page).or_default() += 1),
                        _ => refused += 1,
                    }
                } else {
                    let length = (range.end - range.start) as usize * PAGE;
                    let transfer = bench.submit(Direction::Read, first, vec![9; length]);
                    assert_eq!(bench.end().await, 0, "a read of page {first}");
                    for (page, bytes) in range.zip(transfer.bytes.borrow().chunks_exact(PAGE)) {
                        let version = versions.get(&page).copied();
                        let expected =
                            version.map_or(vec![0; PAGE], |version| content(page, version));
                        assert_eq!(bytes, expected, "page {page} of version {version:?}");
                    }
                }
            }
            let taken: u64 = versions.values().sum();
            assert!(
                taken > 2000,
                "{taken} pages were taken, {refused} writes refused"
            );
            if fails == 0 {
                assert_eq!((refused, bench.said.borrow().len()), (0, 0));
            }
            // 16 segments are live at most.
            let objects = bench.objects().await;
            assert!((3..45).contains(&objects), "{objects} objects");
            bench.store.fails.store(0, Ordering::Relaxed);
            bench.served.close().await.expect("it is removed");
            assert_eq!(bench.objects().await, 0);
        });
    }
}

#[test]
fn what_cannot_be_stored_stays_and_goes_elsewhere() {
    run(async {
        let mut bench = Bench::new(7).await;
        // Requests to store fail, those that look do not.
        let megabyte = |version: u64| (0..256).flat_map(|page| content(page, version)).collect();
        bench.submit(Direction::Write, 1, megabyte(1));
        assert_eq!(bench.end().await, 0);
        bench.store.fails.store(1000, Ordering::Relaxed);
        let mut taken = 0;
        for at in 1..14 {
            bench.submit(Direction::Write, 1 + at * 256, megabyte(at));
            tokio::time::sleep(Duration::from_secs(5)).await;
            match bench.end().await {
                0 => taken += 1,
                errno => assert_eq!(errno, crate::errno::NO_SPACE),
            }
        }
        assert!(taken < 10, "{taken} megabytes are in memory");
        let said = bench.said.borrow().join("\n");
        assert!(said.contains("the store does not answer"), "{said}");
        bench.store.fails.store(0, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let said = bench.said.borrow().join("\n");
        assert!(said.contains("the server is back"), "{said}");
        bench.submit(Direction::Write, 1, megabyte(2));
        assert_eq!(bench.end().await, 0);
        let transfer = bench.submit(Direction::Read, 256, vec![9; PAGE]);
        assert_eq!(bench.end().await, 0);
        assert_eq!(*transfer.bytes.borrow(), content(255, 2));
        bench.served.close().await.expect("it is removed");
    });
}

#[test]
fn a_bucket_that_was_emptied_is_lost_and_used_again() {
    run(async {
        let mut bench = Bench::new(9).await;
        let pages = |version: u64| (1..600).flat_map(|page| content(page, version)).collect();
        bench.submit(Direction::Write, 1, pages(1));
        assert_eq!(bench.end().await, 0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let all: Vec<Result<Path>> = bench
            .store
            .inner
            .list(None)
            .map(|object| object.map(|object| object.location))
            .collect()
            .await;
        assert_eq!(all.len(), 3, "two segments and the mark");
        let removed = bench.store.inner.delete_stream(stream::iter(all).boxed());
        assert_eq!(removed.count().await, 3);
        bench.submit(Direction::Read, 5, vec![9; PAGE]);
        assert_eq!(bench.end().await, crate::errno::IO);
        assert!(bench.said.borrow()[0].contains("has lost what was on it"));
        // The rest is in memory, and what is written again is there.
        bench.submit(Direction::Read, 590, vec![9; PAGE]);
        assert_eq!(bench.end().await, 0);
        bench.submit(Direction::Write, 1, pages(2));
        assert_eq!(bench.end().await, 0);
        let transfer = bench.submit(Direction::Read, 5, vec![9; PAGE]);
        assert_eq!(bench.end().await, 0);
        assert_eq!(*transfer.bytes.borrow(), content(5, 2));
    });
}
