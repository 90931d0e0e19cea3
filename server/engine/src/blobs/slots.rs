//! Limits concurrent uploads of clients per server, and per run or object. One run cannot block
//! others: it gets more than its share only while half of the slots are free. The server's own
//! writes take no slot.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{BlobError, BlobName};

pub(super) struct Slots {
    all: Arc<Semaphore>,
    size: usize,
    /// Share of one owner.
    of_one: usize,
    /// Owners that have slots or wait for one.
    owners: Mutex<HashMap<String, Owner>>,
}

struct Owner {
    users: usize,
    slots: Arc<Semaphore>,
}

pub(super) struct Slot<'a> {
    /// A slot of the owner's share, unless that was used up, and one of all slots.
    _permits: (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit),
    _owner: OwnerUse<'a>,
}

struct OwnerUse<'a> {
    slots: &'a Slots,
    owner: String,
}

impl Slots {
    pub(super) fn new(all: usize, of_one: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), size: all, of_one, owners: Mutex::default() }
    }

    pub(super) async fn take(&self, name: &BlobName, wait: Duration) -> Result<Slot<'_>, BlobError> {
        let (owner_use, own) = self.enter(owner(name));
        if self.all.available_permits() * 2 > self.size
            && let Ok(slot) = Arc::clone(&self.all).try_acquire_owned()
        {
            return Ok(Slot { _permits: (own.try_acquire_owned().ok(), slot), _owner: owner_use });
        }
        let mut has_own = false;
        let taking = async {
            let own = own.acquire_owned().await;
            has_own = true;
            own.ok().zip(Arc::clone(&self.all).acquire_owned().await.ok())
        };
        let taken = tokio::time::timeout(wait, taking).await;
        match taken {
            Ok(Some((own, slot))) => Ok(Slot { _permits: (Some(own), slot), _owner: owner_use }),
            Ok(None) => Err(BlobError::Busy),
            Err(_) if has_own => Err(BlobError::Busy),
            Err(_) => Err(BlobError::OwnerBusy(self.of_one)),
        }
    }

    fn enter(&self, owner: String) -> (OwnerUse<'_>, Arc<Semaphore>) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = owners
            .entry(owner.clone())
            .or_insert_with(|| Owner { users: 0, slots: Arc::new(Semaphore::new(self.of_one)) });
        entry.users += 1;
        let slots = Arc::clone(&entry.slots);
        (OwnerUse { slots: self, owner }, slots)
    }
}

impl Drop for OwnerUse<'_> {
    fn drop(&mut self) {
        let mut owners = self.slots.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = owners.entry(std::mem::take(&mut self.owner)) {
            entry.get_mut().users -= 1;
            if entry.get().users == 0 {
                entry.remove();
            }
        }
    }
}

/// Returns the owner of a slot: the run of an artifact, also of one kept as an object; otherwise
/// the name.
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
    async fn run_is_limited_to_its_share_and_dropped_slot_is_free() {
        let slots = Slots::new(6, 2);
        let artifact = |name: &str| BlobName::artifact(task(), RunId::FIRST, name);
        let object = |name: &str| BlobName::object(&object_name(task(), RunId::FIRST, name));
        let mut taken = Vec::new();
        // Half of the slots are free: a name may have more than its share.
        for name in [artifact("a"), object("b"), artifact("c")] {
            taken.push(slots.take(&name, SOON).await.unwrap());
        }
        assert!(matches!(slots.take(&artifact("d"), SOON).await, Err(BlobError::OwnerBusy(2))));
        assert!(matches!(slots.take(&object("e"), SOON).await, Err(BlobError::OwnerBusy(2))));
        for name in ["elsewhere", "third", "third"] {
            taken.push(slots.take(&BlobName::object(name), SOON).await.unwrap());
        }
        assert!(matches!(slots.take(&BlobName::object("fourth"), SOON).await, Err(BlobError::Busy)));
        // A slot of the share.
        drop(taken.swap_remove(0));
        taken.push(slots.take(&artifact("d"), SOON).await.unwrap());
        taken.clear();
        assert!(slots.owners.lock().unwrap().is_empty(), "owners without slots remain");
    }
}
