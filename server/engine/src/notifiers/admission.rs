//! Notifications that a run may be admitted, for the pass of this server and for the scheduler of a
//! queue.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tokio::sync::futures::Notified;

use super::{Notifiers, are_lost};

/// Who starts the runs of a limited queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmittedBy {
    /// Every server, when its workers poll.
    Any,
    /// This server, as the scheduler.
    This,
    /// Another server, as the scheduler, or none yet.
    Other,
    /// The queue lost its limits. Its waiting runs are being made ready.
    Ended,
}

impl Notifiers {
    /// Runs may start in these queues if they are limited. Notifies other servers too.
    pub fn notify_admission<'a>(&self, queues: impl IntoIterator<Item = &'a i32>) {
        let limited = self.shared.limited.read().unwrap_or_else(PoisonError::into_inner);
        if limited.is_empty() || are_lost() {
            return;
        }
        let (mut wakes_pass, mut here, mut elsewhere) = (false, Vec::new(), Vec::new());
        for queue in queues {
            let Some(by) = limited.get(queue) else { continue };
            here.push(*queue);
            // Only the pass folds the announcements of an ended queue. With another scheduler, the
            // pass checks if that still holds.
            wakes_pass |= matches!(by, AdmittedBy::This | AdmittedBy::Other | AdmittedBy::Ended);
            if matches!(by, AdmittedBy::Any | AdmittedBy::Other) {
                elsewhere.push(*queue);
            }
        }
        if wakes_pass {
            self.shared.admission.notify_one();
        }
        if !here.is_empty() {
            self.shared.limited_list.notify(here);
        }
        if !elsewhere.is_empty() {
            self.shared.others.notify(elsewhere);
        }
    }

    pub(super) fn notify_limited(&self, queues: impl IntoIterator<Item = i32>) {
        let limited = self.shared.limited.read().unwrap_or_else(PoisonError::into_inner);
        if limited.is_empty() || are_lost() {
            return;
        }
        let (mut wakes_pass, mut here) = (false, Vec::new());
        for queue in queues {
            let Some(by) = limited.get(&queue) else { continue };
            here.push(queue);
            wakes_pass |= *by == AdmittedBy::This;
        }
        if wakes_pass {
            self.shared.admission.notify_one();
        }
        if !here.is_empty() {
            self.shared.limited_list.notify(here);
        }
    }

    pub fn is_limited(&self, queue: i32) -> bool {
        let limited = self.shared.limited.read().unwrap_or_else(PoisonError::into_inner);
        limited.get(&queue).is_some_and(|by| *by != AdmittedBy::Ended)
    }

    /// Records a decision's finding that a queue has no limits, unless `limited_changes` has passed
    /// `changes`.
    pub fn set_unlimited(&self, queue: i32, changes: u64) {
        let mut limited = self.shared.limited.write().unwrap_or_else(PoisonError::into_inner);
        if self.limited_changes() != changes {
            return;
        }
        self.shared.limited_changes.fetch_add(1, Ordering::SeqCst);
        limited.insert(queue, AdmittedBy::Ended);
    }

    pub fn admission(&self) -> Notified<'_> {
        self.shared.admission.notified()
    }

    /// Sets which queues need admission, and by whom. Notifies the other servers of their queues
    /// that are new here: earlier events in those queues notified nobody.
    pub fn set_limited(&self, queues: impl IntoIterator<Item = (i32, AdmittedBy)>, changes: u64) {
        let queues: HashMap<i32, AdmittedBy> = queues.into_iter().collect();
        let mut limited = self.shared.limited.write().unwrap_or_else(PoisonError::into_inner);
        // A list older than a change by this server must not undo it.
        if *limited == queues || self.limited_changes() != changes {
            return;
        }
        let is_news = |queue: &i32| limited.get(queue) != Some(&AdmittedBy::Other);
        let of_others = queues.iter().filter(|(queue, by)| **by == AdmittedBy::Other && is_news(queue));
        let news: Vec<i32> = of_others.map(|(queue, _)| *queue).collect();
        let is_limited = |by: Option<&AdmittedBy>| by.is_some_and(|by| *by != AdmittedBy::Ended);
        // Their requests move to the other wait list.
        let moved = queues.keys().chain(limited.keys()).copied();
        let moved = moved.filter(|queue| is_limited(limited.get(queue)) != is_limited(queues.get(queue)));
        let moved: Vec<i32> = moved.collect();
        *limited = queues;
        // After the change, so that later events notify by themselves.
        drop(limited);
        self.shared.others.notify(news);
        self.shared.wait_lists.notify(moved.iter().copied());
        self.shared.limited_list.notify(moved);
    }

    /// Number of changes to the limited queues by this server. Read it before listing them.
    pub fn limited_changes(&self) -> u64 {
        self.shared.limited_changes.load(Ordering::SeqCst)
    }

    pub fn expect_limited(&self, queue: i32) {
        let mut limited = self.shared.limited.write().unwrap_or_else(PoisonError::into_inner);
        self.shared.limited_changes.fetch_add(1, Ordering::SeqCst);
        let by = limited.entry(queue).or_insert(AdmittedBy::Any);
        if *by == AdmittedBy::Ended {
            *by = AdmittedBy::Any;
        }
        drop(limited);
        self.shared.wait_lists.notify([queue]);
        self.shared.limited_list.notify([queue]);
        // The other servers list their limited queues again.
        self.shared.others.notify([queue]);
        self.stay_active();
        self.shared.admission.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::notifiers::Effects;

    #[test]
    fn scheduler_is_notified_by_others_and_notifies_none() {
        let (here, scheduler) = (Notifiers::default(), Notifiers::default());
        here.set_limited([(1, AdmittedBy::Any), (2, AdmittedBy::Other)], 0);
        scheduler.set_limited([(1, AdmittedBy::Any), (2, AdmittedBy::This)], 0);
        let effects = || Effects { admission: vec![1, 2, 3], ..Effects::default() };
        here.apply(effects());
        assert_eq!(here.take_others(), HashSet::from([1, 2]), "requests may wait there for runs of the first one");
        for (queue, is_woken) in [(1, false), (2, true), (3, false)] {
            scheduler.notify_from_other_server([queue]);
            assert_eq!(scheduler.admission().now_or_never().is_some(), is_woken, "{queue}");
        }
        scheduler.apply(effects());
        assert!(scheduler.admission().now_or_never().is_some());
        assert_eq!(scheduler.take_others(), HashSet::from([1]));
    }

    #[test]
    fn scheduler_is_notified_of_earlier_changes() {
        let here = Notifiers::default();
        let created = || {
            here.apply(Effects { admission: vec![1], ..Effects::default() });
            here.take_others()
        };
        assert!(created().is_empty(), "the queue is not known to need admission");
        here.set_limited([(1, AdmittedBy::Other)], 0);
        assert_eq!(here.take_others(), HashSet::from([1]));
        here.set_limited([(1, AdmittedBy::Other), (2, AdmittedBy::Any)], 0);
        assert!(here.take_others().is_empty(), "it was known");
        // This server was the scheduler, and has handed over.
        here.set_limited([(1, AdmittedBy::This)], 0);
        assert!(created().is_empty());
        here.set_limited([(1, AdmittedBy::Other)], 0);
        assert_eq!(here.take_others(), HashSet::from([1]));
    }

    #[test]
    fn limits_set_during_decision_are_kept() {
        let here = Notifiers::default();
        here.set_limited([(1, AdmittedBy::Any)], 0);
        let began = here.limited_changes();
        here.expect_limited(1);
        here.set_unlimited(1, began);
        assert!(here.is_limited(1));
        here.set_unlimited(1, here.limited_changes());
        assert!(!here.is_limited(1));
    }
}
