//! Creates tasks one after the other, each until it is acknowledged or the submitter is stopped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::accounts::Accounts;
use super::calls::Caller;
use crate::clock::unix_millis;
use crate::definition::Definition;
use crate::history::policy::Options;
use crate::history::record::{Answer, Event, PRIORITIES, TaskSpec};
use crate::http::QUEUE_API;

const HOUR_MILLIS: i64 = 60 * 60 * 1000;
const RETRIES: u32 = 5;
const PADDING: usize = 64;
const WAIT: Duration = Duration::from_millis(5);

/// Creates tasks until stopped. A stop also abandons an unanswered create.
pub(super) async fn submit(accounts: Arc<Accounts>, number: u64, backlog: i64) {
    let mut caller = Caller::new(Arc::clone(&accounts), number);
    while accounts.submitting.is_on() {
        if accounts.backlog.load(Ordering::Relaxed) > backlog {
            tokio::time::sleep(WAIT).await;
        } else {
            create(&mut caller).await;
        }
    }
}

async fn create(caller: &mut Caller) {
    let (spec, body) = invent(caller);
    let accounts = Arc::clone(&caller.accounts);
    accounts.note_tried(spec.task);
    let path = format!("{QUEUE_API}/task/{}", spec.task);
    loop {
        let start = accounts.stamp();
        let answer = caller.call("PUT", &path, Some(&body)).await.without_content();
        accounts.write(start, Event::Create { task: spec.clone(), answer: answer.clone() });
        match answer {
            Answer::Done(()) => {
                accounts.backlog.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Answer::Refused(status) => {
                return accounts.note_error(format!("the create of {} was refused with {status}", spec.task));
            }
            Answer::Unknown if !accounts.submitting.is_on() => return,
            Answer::Unknown => caller.wait().await,
        }
    }
}

fn invent(caller: &mut Caller) -> (TaskSpec, String) {
    let random = &mut caller.random;
    let spec = TaskSpec {
        task: random.task_id(),
        queue: random.below(caller.accounts.queues.len() as u64) as usize,
        priority: random.below(PRIORITIES.len() as u64) as usize,
        retries: RETRIES,
        content: 0,
        dependencies: Vec::new(),
        any_end: false,
        options: Options::default(),
    };
    let created = unix_millis();
    let definition = Definition {
        queue: &caller.accounts.queues[spec.queue],
        priority: PRIORITIES[spec.priority],
        retries: spec.retries,
        created,
        deadline: created + HOUR_MILLIS,
        group: None,
        note: "first",
        dependencies: &[],
        any_end: false,
    };
    let body = definition.body(PADDING, random);
    (spec, body)
}
