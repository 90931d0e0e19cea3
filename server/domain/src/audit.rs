//! The audit of changes: its operations, and the detail of each entry.
//!
//! A detail contains no secret: no access token, certificate, worker secret or payload. Its size is
//! bounded.

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use tenure_api::dates::Timestamp;

/// Bytes of scopes in a detail; further scopes are only counted.
const SCOPES_BYTES_MAX: usize = 4 << 10;
const DESCRIPTION_CHARS_MAX: usize = 255;

/// Kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Task,
    TaskGroup,
    Queue,
    /// Named by [`worker`]; its sessions too.
    Worker,
    Client,
    Role,
    Schedule,
    Subscription,
    /// A partition group.
    Partition,
    /// A role of the database that may enqueue tasks.
    DatabaseRole,
    Job,
}

impl Kind {
    pub const ALL: [Self; 11] = [
        Self::Task,
        Self::TaskGroup,
        Self::Queue,
        Self::Worker,
        Self::Client,
        Self::Role,
        Self::Schedule,
        Self::Subscription,
        Self::Partition,
        Self::DatabaseRole,
        Self::Job,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::TaskGroup => "task-group",
            Self::Queue => "queue",
            Self::Worker => "worker",
            Self::Client => "client",
            Self::Role => "role",
            Self::Schedule => "schedule",
            Self::Subscription => "subscription",
            Self::Partition => "partition",
            Self::DatabaseRole => "database-role",
            Self::Job => "job",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// Defines the actions. Columns: variant, name of the operation in the API or of the command, kind
/// of its object, and words for people.
macro_rules! actions {
    ($($variant:ident $name:literal $kind:ident $words:literal,)+) => {
        /// A change that is recorded.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Action { $($variant),+ }

        impl Action {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Name of the API's operation, or of the command for changes without one.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            #[must_use]
            pub fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind),+ }
            }

            /// Past participle for the page of the object, as in "Cancelled by acme/ops".
            #[must_use]
            pub fn words(self) -> &'static str {
                match self { $(Self::$variant => $words),+ }
            }
        }
    };
}

actions! {
    CancelTask "cancelTask" Task "Cancelled",
    RerunTask "rerunTask" Task "Rerun",
    ScheduleTask "scheduleTask" Task "Scheduled",
    ChangeTaskPriority "changeTaskPriority" Task "Priority changed",
    PutTaskCommand "putTaskCommand" Task "Command sent",
    ReleaseTask "releaseTask" Task "Run released",
    SealTaskGroup "sealTaskGroup" TaskGroup "Sealed",
    CancelTaskGroup "cancelTaskGroup" TaskGroup "Cancelled",
    ChangeTaskGroupPriority "changeTaskGroupPriority" TaskGroup "Priority changed",
    PutQueuePolicy "putQueuePolicy" Queue "Policy changed",
    DeleteQueuePolicy "deleteQueuePolicy" Queue "Policy removed",
    PutQueueKey "putQueueKey" Queue "Rules of a key changed",
    DeleteQueueKey "deleteQueueKey" Queue "Rules of a key deleted",
    PauseQueue "pauseQueue" Queue "Paused",
    ResumeQueue "resumeQueue" Queue "Resumed",
    RedriveQueue "redriveQueue" Queue "Failed tasks run again",
    ReplaceScheduler "replaceScheduler" Queue "Scheduler replaced",
    QuarantineWorker "quarantineWorker" Worker "Quarantine changed",
    RemoveWorker "removeWorker" Worker "Removed",
    WorkerRemoved "workerRemoved" Worker "Reported as gone",
    CreateWorker "createWorker" Worker "Created",
    UpdateWorker "updateWorker" Worker "Changed",
    CommandSession "commandSession" Worker "Command sent",
    EndSession "endSession" Worker "Session ended",
    CreateClient "createClient" Client "Created",
    UpdateClient "updateClient" Client "Changed",
    DeleteClient "deleteClient" Client "Deleted",
    ResetAccessToken "resetAccessToken" Client "Access token reset",
    EnableClient "enableClient" Client "Enabled",
    DisableClient "disableClient" Client "Disabled",
    CreateRole "createRole" Role "Created",
    UpdateRole "updateRole" Role "Changed",
    DeleteRole "deleteRole" Role "Deleted",
    PutSchedule "putSchedule" Schedule "Stored",
    DeleteSchedule "deleteSchedule" Schedule "Deleted",
    PauseSchedule "pauseSchedule" Schedule "Paused",
    ResumeSchedule "resumeSchedule" Schedule "Resumed",
    PutSubscription "putSubscription" Subscription "Stored",
    ResumeSubscription "resumeSubscription" Subscription "Resumed",
    DeleteSubscription "deleteSubscription" Subscription "Deleted",
    PutPartition "putPartition" Partition "Stored",
    DeletePartition "deletePartition" Partition "Deleted",
    AllowEnqueue "allowEnqueue" DatabaseRole "Allowed",
    DenyEnqueue "denyEnqueue" DatabaseRole "Denied",
    StartJob "startJob" Job "Started",
    StopJob "stopJob" Job "Stopped",
}

impl Action {
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|action| action.name() == name)
    }
}

/// A change to record.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub action: Action,
    /// Id of the object.
    pub object: String,
    /// A JSON object.
    pub detail: Value,
}

impl Entry {
    pub fn new(action: Action, object: impl std::fmt::Display, detail: Value) -> Self {
        Self { action, object: object.to_string(), detail }
    }
}

/// Names a worker as an object. A worker of several queues is several objects.
#[must_use]
pub fn worker(queue: &str, group: &str, id: &str) -> String {
    format!("{queue}/{group}/{id}")
}

/// Returns words for a stored action, which a later release may have recorded.
#[must_use]
pub fn words(action: &str) -> &str {
    Action::parse(action).map_or(action, |known| known.words())
}

/// A client or role, without its token.
#[derive(Debug, Clone, Copy)]
pub struct Account<'a> {
    pub scopes: &'a [String],
    pub description: &'a str,
    /// None for roles and for clients that never expire.
    pub expires: Option<Timestamp>,
    pub delete_on_expiration: bool,
}

/// Returns the detail of a new client or role.
#[must_use]
pub fn created(account: Account<'_>) -> Value {
    let mut detail = Map::new();
    insert_scopes(&mut detail, "scopes", &account.scopes.iter().collect::<Vec<_>>());
    detail.insert("description".to_owned(), short(account.description).into());
    if let Some(expires) = account.expires {
        detail.insert("expires".to_owned(), json!(expires));
    }
    detail.into()
}

/// Returns the detail of a changed client or role; none if nothing changed.
#[must_use]
pub fn changed(before: Account<'_>, after: Account<'_>) -> Option<Value> {
    let mut detail = Map::new();
    for (name, these, others) in
        [("addedScopes", after.scopes, before.scopes), ("removedScopes", before.scopes, after.scopes)]
    {
        let others: HashSet<&String> = others.iter().collect();
        let differing: Vec<&String> = these.iter().filter(|scope| !others.contains(scope)).collect();
        if !differing.is_empty() {
            insert_scopes(&mut detail, name, &differing);
        }
    }
    if detail.is_empty() && before.scopes != after.scopes {
        detail.insert("scopes".to_owned(), "reordered".into());
    }
    if before.description != after.description {
        detail.insert("description".to_owned(), short(after.description).into());
    }
    if before.expires != after.expires {
        detail.insert("expires".to_owned(), json!(after.expires));
    }
    if before.delete_on_expiration != after.delete_on_expiration {
        detail.insert("deleteOnExpiration".to_owned(), after.delete_on_expiration.into());
    }
    (!detail.is_empty()).then(|| detail.into())
}

/// Inserts the first scopes, and the number of all if some are left out.
fn insert_scopes(detail: &mut Map<String, Value>, name: &str, scopes: &[&String]) {
    let mut bytes = 0;
    let fitting = scopes.iter().take_while(|scope| {
        bytes += scope.len();
        bytes <= SCOPES_BYTES_MAX
    });
    let shown: Vec<Value> = fitting.map(|scope| scope.as_str().into()).collect();
    if shown.len() < scopes.len() {
        detail.insert(format!("{name}Count"), scopes.len().into());
    }
    detail.insert(name.to_owned(), shown.into());
}

fn short(description: &str) -> String {
    description.chars().take(DESCRIPTION_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account<'a>(scopes: &'a [String], description: &'a str) -> Account<'a> {
        Account { scopes, description, expires: None, delete_on_expiration: false }
    }

    fn scopes(scopes: &[&str]) -> Vec<String> {
        scopes.iter().map(|&scope| scope.to_owned()).collect()
    }

    #[test]
    fn actions_and_kinds_have_unique_names() {
        let names: HashSet<&str> = Action::ALL.iter().map(|action| action.name()).collect();
        assert_eq!(names.len(), Action::ALL.len());
        for &action in Action::ALL {
            assert_eq!(Action::parse(action.name()), Some(action));
            assert_eq!(words(action.name()), action.words());
        }
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.as_str()), Some(kind));
        }
        assert_eq!((Action::parse("createTask"), Kind::parse("tasks")), (None, None));
        assert_eq!(words("frobTask"), "frobTask");
    }

    #[test]
    fn change_has_only_what_differs() {
        let (before, after) = (scopes(&["a", "b"]), scopes(&["b", "c"]));
        assert_eq!(changed(account(&before, "d"), account(&before, "d")), None);
        assert_eq!(
            changed(account(&before, "d"), account(&after, "e")),
            Some(json!({"addedScopes": ["c"], "removedScopes": ["a"], "description": "e"}))
        );
        let reordered = scopes(&["b", "a"]);
        assert_eq!(changed(account(&before, "d"), account(&reordered, "d")), Some(json!({"scopes": "reordered"})));
        let kept = Account { delete_on_expiration: true, ..account(&before, "d") };
        assert_eq!(changed(account(&before, "d"), kept), Some(json!({"deleteOnExpiration": true})));
        assert_eq!(created(account(&before, "d")), json!({"scopes": ["a", "b"], "description": "d"}));
    }

    #[test]
    fn detail_of_largest_account_is_bounded() {
        let many: Vec<String> = (0..10_000).map(|n| format!("{n}:{}", "x".repeat(100))).collect();
        let detail = created(account(&many, &"é".repeat(10_240)));
        assert!(detail.to_string().len() < 6 << 10, "{}", detail.to_string().len());
        assert_eq!(detail["scopesCount"], 10_000);
        let one = [format!("a:{}", "x".repeat(4_094))];
        assert_eq!(created(account(&one, ""))["scopes"], json!(one), "the longest scope fits");
        let removed = changed(account(&many, ""), account(&[], "")).unwrap();
        assert_eq!(removed["removedScopesCount"], 10_000);
    }
}
