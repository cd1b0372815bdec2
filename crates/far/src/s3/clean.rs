//! What killed runs have left in a bucket.
//!
//! A run stores its mark anew each minute, so that the newest object of a run says when it last lived. Ages are by the clock of
//! the store, which an object that is stored and removed at once tells: this machine's may be wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};

use super::connect::{self, with_remedy};
use super::folder;
use super::served::BEAT;
use crate::address;

/// A run without a sign of life for so long is over.
pub const DEAD: Duration = BEAT.saturating_mul(5);
/// The longest time of a request.
const PATIENCE: Duration = Duration::from_secs(30);
/// The digits of a run's number.
const DIGITS: usize = 32;

/// What is there of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The run's number, as in the names of its objects.
    pub run: String,
    /// How many objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Since the newest of them was stored.
    pub age: Duration,
    paths: Vec<Path>,
}

/// A bucket that is looked through.
pub struct Bucket {
    runtime: tokio::runtime::Runtime,
    store: Arc<dyn ObjectStore>,
    prefix: String,
}

impl Bucket {
    /// That of an address.
    ///
    /// # Errors
    /// The text says what cannot be used.
    pub fn open(address: &address::S3) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            runtime,
            store: connect::store(address, PATIENCE)?,
            prefix: address.prefix.clone(),
        })
    }

    /// What is there, by the runs' numbers.
    ///
    /// # Errors
    /// The store does not answer, or refuses.
    pub fn look(&self) -> Result<Vec<Left>, String> {
        let looked = self.runtime.block_on(look(&*self.store, &self.prefix));
        looked.map_err(|error| with_remedy(&error))
    }

    /// Removes what is there of a run.
    ///
    /// # Errors
    /// As above; some of it may be gone.
    pub fn remove(&self, left: &Left) -> Result<(), String> {
        let removed = self.runtime.block_on(remove(&*self.store, left));
        removed.map_err(|error| with_remedy(&error))
    }
}

async fn look(store: &dyn ObjectStore, prefix: &str) -> Result<Vec<Left>, Error> {
    let run = crate::mark::draw().unwrap_or_default();
    let probe = folder(prefix, "clean").join(format!("{run:032x}"));
    store
        .put(&probe, Bytes::from_static(b"foreswap").into())
        .await?;
    let now = store.head(&probe).await?.last_modified;
    store.delete(&probe).await?;
    let root = Path::from(prefix);
    let mut runs: BTreeMap<String, Left> = BTreeMap::new();
    let mut objects = store.list(Some(&root));
    while let Some(object) = objects.try_next().await? {
        let Some(run) = run_of(&root, &object.location) else {
            continue;
        };
        let age = (now - object.last_modified).to_std().unwrap_or_default();
        let left = runs.entry(run.clone()).or_insert_with(|| Left {
            run,
            age,
            ..Left::default()
        });
        left.objects += 1;
        left.bytes += object.size;
        left.age = left.age.min(age);
        left.paths.push(object.location);
    }
    Ok(runs.into_values().collect())
}

/// The run whose object `path` is.
fn run_of(root: &Path, path: &Path) -> Option<String> {
    let mut parts = path.prefix_match(root)?;
    let folder = parts.next()?;
    let run = folder.as_ref().strip_prefix("foreswap-")?;
    let is_number = run.len() == DIGITS && run.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_number && parts.next().is_some() && parts.next().is_none()).then(|| run.to_owned())
}

async fn remove(store: &dyn ObjectStore, left: &Left) -> Result<(), Error> {
    // The mark last: what is left after an error is still found as one run.
    let (marks, mut paths): (Vec<Path>, Vec<Path>) = left
        .paths
        .iter()
        .cloned()
        .partition(|path| path.as_ref().ends_with("/run"));
    paths.extend(marks);
    let paths = stream::iter(paths.into_iter().map(Ok)).boxed();
    let mut removed = store.delete_stream(paths);
    while let Some(one) = removed.next().await {
        match one {
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::super::{mark, object};
    use super::*;

    #[test]
    fn objects_of_runs_are_found_and_nothing_else() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let (first, second) = ("0".repeat(32), "f".repeat(32));
        let left = runtime.block_on(async {
            let store = InMemory::new();
            let at = |run: &str| folder("team/a", run);
            for path in [
                object(&at(&first), 0),
                object(&at(&first), 7),
                mark(&at(&first)),
                mark(&at(&second)),
                Path::from("team/a/report.csv"),
                Path::from("team/a/foreswap-notes/run"),
                Path::from(format!("team/foreswap-{first}/run")),
                Path::from(format!("team/a/foreswap-{first}/deeper/run")),
            ] {
                let bytes = Bytes::from_static(b"12345");
                store.put(&path, bytes.into()).await.expect("stored");
            }
            let left = look(&store, "team/a").await.expect("looked");
            remove(&store, &left[0]).await.expect("removed");
            let rest = look(&store, "team/a").await.expect("looked again");
            assert_eq!(rest.len(), 1);
            assert_eq!(store.list(None).count().await, 5);
            left
        });
        let found: Vec<_> = left.iter().map(|l| (&*l.run, l.objects, l.bytes)).collect();
        assert_eq!(found, [(&*first, 3, 15), (&*second, 1, 5)]);
        assert!(left[0].age < DEAD);
    }
}
