//! Discards answers given in a period whose end of the database's log was lost later.

use super::record::{Answer, Event, Record, Stamp};

/// Makes all records unknown that overlap an [`Event::TailLost`]. A refusal stays: it changed
/// nothing in either case.
pub fn forget_lost(records: &mut [Record]) {
    let lost: Vec<(Stamp, Stamp)> = times_of_loss(records);
    if lost.is_empty() {
        return;
    }
    for record in records {
        if lost.iter().any(|(start, end)| record.start <= *end && record.end >= *start) {
            forget(&mut record.event);
        }
    }
}

/// Periods whose answers may have been lost.
#[must_use]
pub fn times_of_loss(records: &[Record]) -> Vec<(Stamp, Stamp)> {
    let lost = records.iter().filter(|record| matches!(record.event, Event::TailLost));
    lost.map(|record| (record.start, record.end)).collect()
}

fn forget(event: &mut Event) {
    match event {
        Event::Create { answer, .. }
        | Event::Enqueue { answer, .. }
        | Event::ClaimTask { answer, .. }
        | Event::Reclaim { answer, .. }
        | Event::Report { answer, .. }
        | Event::Change { answer, .. }
        | Event::Redrive { answer, .. }
        | Event::Release { answer, .. }
        | Event::Returned { answer, .. }
        | Event::Policy { answer, .. }
        | Event::Pause { answer, .. }
        | Event::Read { answer, .. }
        | Event::Resume { answer, .. } => doubt(answer),
        Event::ClaimWork { answer, .. } => doubt(answer),
        // The clock does not move in such a period, and polled messages prove nothing permanent.
        Event::Poll { .. } | Event::Clock(_) => {}
        Event::Session(call) => call.act.doubt(),
        Event::RowsLocked | Event::SessionsKilled | Event::DatabaseFault | Event::TailLost => {}
    }
}

fn doubt<T>(answer: &mut Answer<T>) {
    if answer.done().is_some() {
        *answer = Answer::Unknown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::record::Verdict;
    use crate::random::Random;

    #[test]
    fn forget_lost_affects_only_calls_during_loss() {
        let run = (Random::from_seed(1).task_id(), 0);
        let report = |start, end, answer| Record {
            start,
            end,
            event: Event::Report { run, verdict: Verdict::Completed, answer },
        };
        let mut records = vec![
            report(0, 9, Answer::Done(())),
            report(0, 10, Answer::Done(())),
            report(12, 14, Answer::Refused(409)),
            report(20, 30, Answer::Done(())),
            report(21, 30, Answer::Done(())),
            Record { start: 10, end: 20, event: Event::TailLost },
        ];
        forget_lost(&mut records);
        let certain: Vec<bool> = records
            .iter()
            .filter_map(|record| match &record.event {
                Event::Report { answer, .. } => Some(*answer != Answer::Unknown),
                _ => None,
            })
            .collect();
        assert_eq!(certain, [true, false, true, false, true]);
    }
}
