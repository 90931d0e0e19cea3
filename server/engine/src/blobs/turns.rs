//! Whose turn it is: how many uploads of clients there may be at a server, and how many of them for one run or one object.
//! So whoever has the URLs of one run cannot keep those of others from being used. What the server stores takes no turn.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{BlobError, BlobName};

/// The turns that there are.
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// How many of them one owner may have.
    of_one: usize,
    /// The owners that have turns or wait for one.
    owners: Mutex<HashMap<String, Owner>>,
}

struct Owner {
    /// Uploads that have a turn of it or wait for one.
    users: usize,
    turns: Arc<Semaphore>,
}

/// A turn, until it is dropped.
pub(super) struct Turn<'a> {
    _permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    _place: Place<'a>,
}

/// An upload that counts as one of its owner's.
struct Place<'a> {
    turns: &'a Turns,
    owner: String,
}

impl Turns {
    pub(super) fn new(all: usize, of_one: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), of_one, owners: Mutex::default() }
    }

    /// Waits for a turn, so long at most.
    pub(super) async fn take(&self, name: &BlobName, wait: Duration) -> Result<Turn<'_>, BlobError> {
        let (place, own) = self.enter(owner(name));
        let mut has_own = false;
        let taking = async {
            let own = own.acquire_owned().await;
            has_own = true;
            own.ok().zip(Arc::clone(&self.all).acquire_owned().await.ok())
        };
        let taken = tokio::time::timeout(wait, taking).await;
        match taken {
            Ok(Some(permits)) => Ok(Turn { _permits: permits, _place: place }),
            Ok(None) => Err(BlobError::Busy),
            Err(_) if has_own => Err(BlobError::Busy),
            Err(_) => Err(BlobError::OwnerBusy(self.of_one)),
        }
    }

    fn enter(&self, owner: String) -> (Place<'_>, Arc<Semaphore>) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = owners
            .entry(owner.clone())
            .or_insert_with(|| Owner { users: 0, turns: Arc::new(Semaphore::new(self.of_one)) });
        entry.users += 1;
        let turns = Arc::clone(&entry.turns);
        (Place { turns: self, owner }, turns)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut owners = self.turns.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = owners.entry(std::mem::take(&mut self.owner)) {
            entry.get_mut().users -= 1;
            if entry.get().users == 0 {
                entry.remove();
            }
        }
    }
}

/// Whose turn an upload takes: that of the run which an artifact is of, also one that is an object; else that of the name.
fn owner(name: &BlobName) -> String {
    name.run().map_or_else(|| name.as_str().to_owned(), |(task, run)| format!("{task}/{run}"))
}

#[cfg(test)]
mod tests {
    use tenure_api::ids::{RunId, TaskId};
    use tenure_domain::artifact::object_name;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    fn task() -> TaskId {
        "bRKq9uZmSwq5d8hSvWYW5A".parse().unwrap()
    }

    #[tokio::test]
    async fn one_run_has_a_part_of_the_turns_whatever_its_artifacts_are_called_and_what_is_dropped_is_free_again() {
        let turns = Turns::new(3, 2);
        let artifact = |name: &str| BlobName::artifact(task(), RunId::FIRST, name);
        let first = turns.take(&artifact("a"), SOON).await.unwrap();
        let object = BlobName::object(&object_name(task(), RunId::FIRST, "b"));
        let second = turns.take(&object, SOON).await.unwrap();
        let refused = turns.take(&artifact("c"), SOON).await;
        assert!(matches!(refused, Err(BlobError::OwnerBusy(2))));
        let other = turns.take(&BlobName::object("elsewhere"), SOON).await.unwrap();
        let refused = turns.take(&BlobName::object("third"), SOON).await;
        assert!(matches!(refused, Err(BlobError::Busy)));
        drop((first, other));
        let third = turns.take(&artifact("c"), SOON).await.unwrap();
        drop((second, third));
        assert!(turns.owners.lock().unwrap().is_empty(), "nothing is left of those who had turns");
    }
}
