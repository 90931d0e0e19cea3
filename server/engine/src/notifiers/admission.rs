//! Notifications that something may be admitted: for the pass of this server, and for the one that is the scheduler of a queue.

use std::collections::HashMap;
use std::sync::PoisonError;

use tokio::sync::futures::Notified;

use super::{Notifiers, are_lost};

/// Which server admits the runs of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmittedBy {
    /// Any of them.
    Any,
    /// This one, which is the scheduler of the queue.
    This,
    /// Another one, which is its scheduler; none before it has one.
    Other,
}

impl Notifiers {
    /// Something may be admitted in these queues, if their runs need admission. If another server does that, it is notified too.
    pub fn notify_admission<'a>(&self, queues: impl IntoIterator<Item = &'a i32>) {
        let limited = self.shared.limited.read().unwrap_or_else(PoisonError::into_inner);
        if limited.is_empty() || are_lost() {
            return;
        }
        let (mut any, mut of_others) = (false, Vec::new());
        for queue in queues {
            let Some(by) = limited.get(queue) else { continue };
            any = true;
            if *by == AdmittedBy::Other {
                of_others.push(*queue);
            }
        }
        // Also if that is another server: the pass finds out whether it still is.
        if any {
            self.shared.admission.notify_one();
        }
        if !of_others.is_empty() {
            self.shared.others.notify(of_others);
        }
    }

    /// Another server has notified of these queues: something may be admitted in those of which this one is the scheduler.
    pub(super) fn notify_scheduler(&self, queues: impl IntoIterator<Item = i32>) {
        let limited = self.shared.limited.read().unwrap_or_else(PoisonError::into_inner);
        let is_mine = |queue: i32| limited.get(&queue) == Some(&AdmittedBy::This);
        if !limited.is_empty() && queues.into_iter().any(is_mine) && !are_lost() {
            self.shared.admission.notify_one();
        }
    }

    /// Waits until something may be admitted.
    pub fn admission(&self) -> Notified<'_> {
        self.shared.admission.notified()
    }

    /// Sets which queues need admission, and by whom. The other servers are notified of those that one of them admits, as far as this one
    /// has not known that: what happened in them until now has notified none.
    pub fn set_limited(&self, queues: impl IntoIterator<Item = (i32, AdmittedBy)>) {
        let queues: HashMap<i32, AdmittedBy> = queues.into_iter().collect();
        let mut limited = self.shared.limited.write().unwrap_or_else(PoisonError::into_inner);
        if *limited == queues {
            return;
        }
        let is_news = |queue: &i32| limited.get(queue) != Some(&AdmittedBy::Other);
        let of_others = queues.iter().filter(|(queue, by)| **by == AdmittedBy::Other && is_news(queue));
        let news: Vec<i32> = of_others.map(|(queue, _)| *queue).collect();
        *limited = queues;
        // After the change: what happens from now on notifies them itself.
        drop(limited);
        self.shared.others.notify(news);
    }

    /// The runs of this queue need admission from now on.
    pub fn expect_limited(&self, queue: i32) {
        let mut limited = self.shared.limited.write().unwrap_or_else(PoisonError::into_inner);
        limited.entry(queue).or_insert(AdmittedBy::Any);
        drop(limited);
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
    fn a_scheduler_is_notified_by_other_servers_and_notifies_none_of_them() {
        let (here, scheduler) = (Notifiers::default(), Notifiers::default());
        here.set_limited([(1, AdmittedBy::Any), (2, AdmittedBy::Other)]);
        scheduler.set_limited([(1, AdmittedBy::Any), (2, AdmittedBy::This)]);
        let effects = || Effects { admission: vec![1, 2, 3], ..Effects::default() };
        here.apply(effects());
        assert_eq!(here.take_others(), HashSet::from([2]));
        for (queue, is_woken) in [(1, false), (2, true), (3, false)] {
            scheduler.notify_from_other_server([queue]);
            assert_eq!(scheduler.admission().now_or_never().is_some(), is_woken, "{queue}");
        }
        scheduler.apply(effects());
        assert!(scheduler.admission().now_or_never().is_some());
        assert!(scheduler.take_others().is_empty());
    }

    #[test]
    fn a_scheduler_is_notified_of_what_happened_before_it_was_known() {
        let here = Notifiers::default();
        let created = || {
            here.apply(Effects { admission: vec![1], ..Effects::default() });
            here.take_others()
        };
        assert!(created().is_empty(), "the queue is not known to need admission");
        here.set_limited([(1, AdmittedBy::Other)]);
        assert_eq!(here.take_others(), HashSet::from([1]));
        here.set_limited([(1, AdmittedBy::Other), (2, AdmittedBy::Any)]);
        assert!(here.take_others().is_empty(), "it was known");
        // This server was the scheduler, and has handed over.
        here.set_limited([(1, AdmittedBy::This)]);
        assert!(created().is_empty());
        here.set_limited([(1, AdmittedBy::Other)]);
        assert_eq!(here.take_others(), HashSet::from([1]));
    }
}
