//! The share of a member, without requests and without a clock.

use std::collections::HashMap;
use std::time::Duration;

use tenure_api::ids::TaskId;
use tenure_api::partitions::{NextShare, Tick, slot_of_id, slot_of_key};
use tokio::time::Instant;

/// The share of a member: all keys whose slot leaves `index` when divided by `replicas`.
///
/// ```no_run
/// use tenure_client::partition::Share;
///
/// # async fn example(member: &mut tenure_client::partition::Member) {
/// let Share { index, replicas, .. } = member.wait_for_share().await;
/// println!("share {index} of {replicas}");
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Share {
    pub index: u16,
    /// Number of shares.
    pub replicas: u16,
    /// Number of the map of shares.
    pub epoch: i64,
}

impl Share {
    /// True if a key is in this share.
    ///
    /// ```no_run
    /// # fn example(member: &tenure_client::partition::Member) {
    /// if let Some(share) = member.share() {
    ///     println!("ada: {}", share.has_key("ada@example.com"));
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn has_key(&self, key: &str) -> bool {
        self.has_slot(slot_of_key(key))
    }

    /// True if a task is in this share.
    ///
    /// ```no_run
    /// # fn example(share: tenure_client::partition::Share, task: tenure_client::TaskId) {
    /// println!("{}", share.has_task(task));
    /// # }
    /// ```
    #[must_use]
    pub fn has_task(&self, id: TaskId) -> bool {
        self.has_slot(slot_of_id(id.uuid()))
    }

    fn has_slot(&self, slot: u32) -> bool {
        has(slot, self.index, self.replicas)
    }
}

fn has(slot: u32, index: u16, replicas: u16) -> bool {
    // A map has at least one share.
    slot.checked_rem(replicas.into()) == Some(index.into())
}

#[derive(Debug, Clone, Copy)]
struct View {
    share: Share,
    next: Option<NextShare>,
    /// The member stops here unless it hears from the server.
    deadline: Instant,
}

/// The share of a member, and its work in progress.
#[derive(Debug, Default)]
pub(super) struct Shares {
    view: Option<View>,
    /// Work in progress, by slot.
    held: HashMap<u32, usize>,
    /// Calls for work in progress, each with the next map that it knew.
    claims: HashMap<u64, Option<i64>>,
    begun_claims: u64,
    /// Grows whenever work in progress is lost.
    losses: u64,
    leaving: bool,
}

impl Shares {
    /// Takes in the answer to a call that was sent at `sent`.
    pub(super) fn take(&mut self, tick: &Tick, sent: Instant, now: Instant) {
        if self.view.is_none_or(|view| now >= view.deadline) {
            self.losses += 1;
        }
        let valid_until = tick.valid_until.map(|until| until.time() - tick.server_time.time());
        self.view = match (tick.index, tick.replicas, valid_until) {
            (Some(index), Some(replicas), Some(valid)) => {
                let share = Share { index, replicas, epoch: tick.epoch };
                // Half an interval before others may have the share: time to stop. A time that is
                // already over is zero.
                let valid = valid.to_std().unwrap_or_default();
                let deadline = sent + valid.saturating_sub(interval(tick) / 2);
                Some(View { share, next: tick.next, deadline })
            }
            _ => None,
        };
    }

    /// Returns the map to acknowledge, once no work in progress is outside both maps. A call for
    /// work that began before the map was known may return such work.
    pub(super) fn acked(&self) -> Option<i64> {
        let epoch = self.view.as_ref()?.next?.epoch;
        let knows = self.claims.values().all(|known| *known == Some(epoch));
        (knows && self.held.keys().all(|slot| self.may_begin(*slot))).then_some(epoch)
    }

    /// Begins a call for work of the share. Returns the share, and the key of the call.
    pub(super) fn begin_claim(&mut self, now: Instant) -> Option<(Share, u64)> {
        let view = self.view.filter(|view| now < view.deadline && !self.leaving)?;
        self.begun_claims += 1;
        self.claims.insert(self.begun_claims, view.next.map(|next| next.epoch));
        Some((view.share, self.begun_claims))
    }

    /// Ends a call for work, whose runs are held by now. Returns true if the next map can be
    /// acknowledged because of it.
    pub(super) fn end_claim(&mut self, claim: u64) -> bool {
        let could = self.acked().is_some();
        self.claims.remove(&claim);
        !could && self.acked().is_some()
    }

    /// Holds a claimed run, even if the share has changed meanwhile.
    pub(super) fn hold_claimed(&mut self, slot: u32) -> u64 {
        *self.held.entry(slot).or_default() += 1;
        self.losses
    }

    /// Number of the next map, while the group drains.
    pub(super) fn proposal(&self) -> Option<i64> {
        Some(self.view.as_ref()?.next?.epoch)
    }

    /// Begins work. Returns its key for [`Shares::is_lost`], or None if it is not in the share.
    pub(super) fn hold(&mut self, slot: u32, now: Instant) -> Option<u64> {
        let is_valid = self.view.is_some_and(|view| now < view.deadline);
        if self.leaving || !is_valid || !self.may_begin(slot) {
            return None;
        }
        *self.held.entry(slot).or_default() += 1;
        Some(self.losses)
    }

    /// Ends work. Returns true if the next map can be acknowledged because of it.
    pub(super) fn release(&mut self, slot: u32) -> bool {
        let could = self.acked().is_some();
        if let Some(count) = self.held.get_mut(&slot) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&slot);
            }
        }
        !could && self.acked().is_some()
    }

    /// True if another member may work on this slot by now.
    pub(super) fn is_lost(&self, slot: u32, since: u64, now: Instant) -> bool {
        since != self.losses || self.view.is_none_or(|view| now >= view.deadline || !view.share.has_slot(slot))
    }

    pub(super) fn share(&self, now: Instant) -> Option<Share> {
        self.view.filter(|view| now < view.deadline).map(|view| view.share)
    }

    /// Begins no more work. Returns true if none is in progress.
    pub(super) fn leave(&mut self) -> bool {
        self.leaving = true;
        self.held.is_empty() && self.claims.is_empty()
    }

    fn may_begin(&self, slot: u32) -> bool {
        self.view.is_some_and(|view| {
            let keeps = |next: NextShare| next.index.is_some_and(|index| has(slot, index, next.replicas));
            view.share.has_slot(slot) && view.next.is_none_or(keeps)
        })
    }
}

pub(super) fn interval(tick: &Tick) -> Duration {
    Duration::from_secs(tick.interval.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tenure_api::partitions::SLOTS;

    fn tick(more: &Value) -> Tick {
        let mut answer = json!({"state": "active", "index": 1, "replicas": 3, "epoch": 4, "number": 100, "interval": 10,
            "validUntil": "1970-01-01T00:17:00.000Z", "serverTime": "1970-01-01T00:16:41.000Z"});
        answer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(answer).unwrap()
    }

    fn draining(index: Option<u16>, replicas: u16, epoch: i64) -> Tick {
        tick(&json!({"state": "draining", "next": {"index": index, "replicas": replicas, "epoch": epoch}}))
    }

    #[test]
    fn work_begins_only_in_share_before_its_end() {
        let (mut shares, begin) = (Shares::default(), Instant::now());
        assert_eq!(shares.hold(1, begin), None);
        shares.take(&tick(&json!({})), begin, begin);
        let begun: Vec<u32> = (0..SLOTS).filter(|slot| shares.hold(*slot, begin).is_some()).collect();
        assert_eq!(begun, (0..SLOTS).filter(|slot| slot % 3 == 1).collect::<Vec<_>>());
        // Valid for 19 s from the call, minus half an interval.
        let end = begin + Duration::from_secs(14);
        assert!(shares.hold(1, end - Duration::from_millis(1)).is_some() && shares.hold(1, end).is_none());
        assert_eq!(shares.share(begin), Some(Share { index: 1, replicas: 3, epoch: 4 }));
        assert_eq!(shares.share(end), None);
    }

    #[test]
    fn next_map_is_acknowledged_once_lost_work_has_ended() {
        let (mut shares, now) = (Shares::default(), Instant::now());
        shares.take(&tick(&json!({})), now, now);
        // Slot 4 is also in the next share, slot 1 is not.
        let (kept, lost) = (shares.hold(4, now).unwrap(), shares.hold(1, now).unwrap());
        shares.hold(1, now).unwrap();
        assert_eq!(shares.acked(), None);
        shares.take(&draining(Some(0), 2, 5), now, now);
        assert_eq!((shares.acked(), shares.hold(1, now)), (None, None));
        assert!(shares.hold(4, now).is_some());
        assert!(!shares.is_lost(1, lost, now), "nobody else has it before the acknowledgement");
        assert!(!shares.release(1) && shares.release(1) && !shares.release(4));
        assert_eq!(shares.acked(), Some(5));
        shares.take(&tick(&json!({"index": 0, "replicas": 2, "epoch": 5})), now, now);
        assert_eq!(shares.acked(), None);
        assert!(shares.is_lost(1, lost, now) && !shares.is_lost(4, kept, now));
    }

    #[test]
    fn member_without_next_share_acknowledges_when_idle() {
        let (mut shares, now) = (Shares::default(), Instant::now());
        shares.take(&tick(&json!({})), now, now);
        shares.hold(1, now).unwrap();
        shares.take(&draining(None, 2, 5), now, now);
        assert_eq!((shares.acked(), shares.hold(4, now)), (None, None));
        assert!(shares.release(1));
        assert_eq!(shares.acked(), Some(5));
    }

    #[test]
    fn work_is_lost_for_good_after_a_gap() {
        let (mut shares, begin) = (Shares::default(), Instant::now());
        shares.take(&tick(&json!({})), begin, begin);
        let held = shares.hold(1, begin).unwrap();
        let later = begin + Duration::from_secs(20);
        assert!(shares.is_lost(1, held, later));
        shares.take(&tick(&json!({})), later, later);
        assert!(shares.is_lost(1, held, later), "another member may have worked on it meanwhile");
        let again = shares.hold(1, later).unwrap();
        assert!(!shares.is_lost(1, again, later));
        shares.take(
            &tick(&json!({"state": "waiting", "index": null, "replicas": null, "validUntil": null})),
            later,
            later,
        );
        assert!(shares.is_lost(1, again, later) && shares.share(later).is_none());
    }

    #[test]
    fn older_call_for_work_delays_acknowledgement() {
        let (mut shares, now) = (Shares::default(), Instant::now());
        shares.take(&tick(&json!({})), now, now);
        let (share, old) = shares.begin_claim(now).unwrap();
        assert_eq!(share.epoch, 4);
        shares.take(&draining(Some(0), 2, 5), now, now);
        let (_, new) = shares.begin_claim(now).unwrap();
        assert_eq!((shares.acked(), shares.proposal()), (None, Some(5)));
        // The claim returns a run of a lost slot.
        shares.hold_claimed(1);
        assert!(!shares.end_claim(old) && shares.release(1));
        assert_eq!(shares.acked(), Some(5));
        assert!(!shares.leave() && !shares.end_claim(new) && shares.leave());
        assert_eq!(shares.begin_claim(now), None);
    }

    #[test]
    fn leaving_member_begins_nothing() {
        let (mut shares, now) = (Shares::default(), Instant::now());
        shares.take(&tick(&json!({})), now, now);
        shares.hold(1, now).unwrap();
        assert!(!shares.leave());
        assert_eq!(shares.hold(1, now), None);
        shares.release(1);
        assert!(shares.leave());
    }
}
