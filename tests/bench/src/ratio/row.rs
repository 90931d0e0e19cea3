//! The comparisons of each row.

use clap::ValueEnum;

use super::Settings;
use super::contestant::Contestant;

const SUBJECT: &str = "tenure";
/// The broker, which accepts messages but no tasks.
pub(super) const RABBITMQ: &str = "rabbitmq";
const FLOOR: &str = "floor";
/// Connections of all rows but the life cycle.
const CONNECTIONS: usize = 64;
/// Waiting workers of `pickup`: few, so that they do not wait for each other's tasks.
const WORKERS: usize = 8;
const QUEUES: usize = 50;
const FEW: u64 = 1_000;
/// Tasks per second at the start of `claim32`: more than one second claims.
const CLAIMED_A_SECOND: u64 = 8_000;
/// Connections for the reference rate of overload, with large batches.
const MANY_CONNECTIONS: usize = 256;
/// Seconds in which the queues of requests grow before overload is measured.
const OVERLOAD_WARMUP: u64 = 5;
/// Seconds after which connections that create by 100 and take by 32 are out of step. All begin
/// with a create; a shorter run would include the creates of one turn and the reports of another.
const BATCHES_WARMUP: u64 = 5;

/// Comparisons by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RowName {
    /// Create, claim one, report: on each server, with each number of connections.
    Lifecycle,
    /// The life cycle with 50 task queues, compared with one.
    Queues,
    /// The life cycle in groups of 100 with dependencies, compared with none.
    Groups,
    /// Create, and repeat creates.
    Create,
    /// Read a status.
    Status,
    /// Renew a claim.
    Reclaim,
    /// Claim 32 at once and report each.
    Claim32,
    /// Create; report the last and claim the next in one request. Compared with RabbitMQ, if
    /// present.
    Work,
    /// Create by 100, report 32 and claim 32 in one request; compared with RabbitMQ, or with a
    /// claim of 32 and a report of each.
    Work32,
    /// From a create until a waiting worker has the task, compared with one commit.
    Pickup,
    /// The life cycle while thousands of workers wait for work, compared with none.
    Parked,
    /// The life cycle at twice the rate that the server can reach.
    Overload,
    /// The life cycle while an old snapshot is held, compared with none.
    Snapshot,
    /// The life cycle with many pending tasks, compared with 1,000. Leaves them behind.
    Pending,
    /// All of these, in this order.
    All,
}

#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) title: String,
    pub(super) columns: Vec<Column<'a>>,
    pub(super) ratios: Vec<(usize, usize)>,
}

#[derive(Debug)]
pub(super) struct Column<'a> {
    pub(super) name: String,
    pub(super) contestant: &'a Contestant,
    pub(super) variant: Variant,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Variant {
    name: String,
    pub(super) arguments: Vec<String>,
    pub(super) condition: Condition,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Condition {
    Quiet,
    Filled {
        queue: String,
        tasks: u64,
    },
    Parked(usize),
    /// A snapshot is held from the first round on. Runs after all rounds of other columns.
    SnapshotHeld,
    /// The rate is twice the rate that the variant before has reached. Runs after it.
    TwiceTheRate,
    BesideCommits,
}

impl Condition {
    pub(super) fn comes_last(&self) -> bool {
        matches!(self, Self::SnapshotHeld | Self::TwiceTheRate)
    }
}

pub(super) fn rows<'a>(name: RowName, settings: &Settings, contestants: &'a [Contestant]) -> Vec<Row<'a>> {
    let lifecycle = |name: &str| Variant::new(settings, name, "lifecycle", CONNECTIONS);
    let mode = |name: &str, mode: &str| Variant::new(settings, name, mode, CONNECTIONS);
    let variants = match name {
        RowName::All => {
            let each = RowName::value_variants().iter().filter(|name| **name != RowName::All);
            return each.flat_map(|name| rows(*name, settings, contestants)).collect();
        }
        RowName::Work | RowName::Work32 if contestants.iter().any(|contestant| contestant.name == RABBITMQ) => {
            let modes = if name == RowName::Work { ["work1", "rabbit1"] } else { ["work32", "rabbit32"] };
            return settings.connections.iter().map(|number| peers(settings, contestants, modes, *number)).collect();
        }
        RowName::Lifecycle => {
            let variant = |connections| Variant::new(settings, "", "lifecycle", connections);
            let row = |connections: &usize| {
                table(format!("lifecycle, connections: {connections}"), contestants, &[variant(*connections)])
            };
            return settings.connections.iter().map(row).collect();
        }
        RowName::Queues => {
            vec![lifecycle("plain"), lifecycle("queues").with([("--task-queues", &QUEUES.to_string())])]
        }
        RowName::Groups => vec![lifecycle("plain"), mode("groups", "graph")],
        RowName::Create => vec![mode("create", "create"), mode("repeat", "create-repeat")],
        RowName::Status => vec![mode("", "status")],
        RowName::Reclaim => vec![mode("", "reclaim")],
        RowName::Claim32 => {
            let depth = (settings.seconds * CLAIMED_A_SECOND).to_string();
            vec![mode("", "claim32").with([("--prefill", &depth), ("--warmup", "0")])]
        }
        RowName::Work => vec![lifecycle("lifecycle"), mode("work", "work1")],
        RowName::Work32 => vec![mode("single32", "single32"), mode("work32", "work32")],
        RowName::Pickup => {
            vec![Variant::new(settings, "", "pickup", WORKERS).under(Condition::BesideCommits)]
        }
        RowName::Parked => {
            vec![lifecycle("plain"), lifecycle("parked").under(Condition::Parked(settings.parked))]
        }
        RowName::Overload => {
            let overload = Variant::new(settings, "overload", "overload", settings.overload_connections);
            let overload = overload.under(Condition::TwiceTheRate);
            vec![Variant::new(settings, "plain", "lifecycle", MANY_CONNECTIONS), overload]
        }
        RowName::Snapshot => vec![lifecycle("plain"), lifecycle("snapshot").under(Condition::SnapshotHeld)],
        RowName::Pending => vec![filled(lifecycle("few"), FEW), filled(lifecycle("many"), settings.pending)],
    };
    let title = name.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    // The floor has one queue and only the life cycle.
    vec![table(title, contestants.iter().filter(|contestant| contestant.name != FLOOR), &variants)]
}

fn warmup_min(mode: &str) -> u64 {
    match mode {
        "overload" => OVERLOAD_WARMUP,
        "single32" | "work32" | "rabbit32" => BATCHES_WARMUP,
        _ => 0,
    }
}

fn filled(variant: Variant, tasks: u64) -> Variant {
    let queue = format!("bench/pending-{tasks}");
    variant.with([("--task-queue", &queue)]).under(Condition::Filled { queue, tasks })
}

impl Variant {
    fn new(settings: &Settings, name: &str, mode: &str, connections: usize) -> Self {
        let arguments = vec![mode.to_owned()];
        let variant = Self { name: name.to_owned(), arguments, condition: Condition::Quiet };
        let (connections, seconds) = (connections.to_string(), settings.seconds.to_string());
        variant
            .with([("--connections", connections.as_str()), ("--seconds", &seconds)])
            .with([("--warmup", settings.warmup.max(warmup_min(mode)).to_string().as_str())])
    }

    /// Adds flags; a later value replaces an earlier one.
    fn with<const N: usize>(mut self, flags: [(&str, &str); N]) -> Self {
        for (flag, value) in flags {
            if let Some(place) = self.arguments.iter().position(|argument| argument == flag) {
                self.arguments.drain(place..place + 2);
            }
            self.arguments.extend([flag.to_owned(), value.to_owned()]);
        }
        self
    }

    fn under(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }
}

/// Each contestant with its own mode: the first for the subject, the second for the broker.
fn peers<'a>(settings: &Settings, contestants: &'a [Contestant], modes: [&str; 2], connections: usize) -> Row<'a> {
    let column = |contestant: &'a Contestant| {
        let mode = if contestant.name == RABBITMQ { modes[1] } else { modes[0] };
        Column { name: contestant.name.clone(), contestant, variant: Variant::new(settings, "", mode, connections) }
    };
    let columns: Vec<Column<'a>> =
        contestants.iter().filter(|contestant| contestant.name != FLOOR).map(column).collect();
    let place = |name: &str| columns.iter().position(|column| column.name == name);
    let ratios = place(SUBJECT).zip(place(RABBITMQ)).into_iter().collect();
    Row { title: format!("{} beside {}, connections: {connections}", modes[0], modes[1]), columns, ratios }
}

/// Every variant on every contestant, by variant. Ratios compare a variant with the first one on
/// the same contestant, and the subject with the others in the same variant.
fn table<'a>(title: String, contestants: impl IntoIterator<Item = &'a Contestant>, variants: &[Variant]) -> Row<'a> {
    let contestants: Vec<&Contestant> = contestants.into_iter().collect();
    let number = contestants.len();
    let mut columns = Vec::with_capacity(number * variants.len());
    for variant in variants {
        for contestant in &contestants {
            let name = format!("{} {}", contestant.name, variant.name).trim_end().to_owned();
            columns.push(Column { name, contestant, variant: variant.clone() });
        }
    }
    let mut ratios = Vec::new();
    for column in number..columns.len() {
        ratios.push((column, column % number));
    }
    if let Some(subject) = contestants.iter().position(|contestant| contestant.name == SUBJECT) {
        for variant in 0..variants.len() {
            let others = (0..number).filter(|other| *other != subject);
            ratios.extend(others.map(|other| (variant * number + subject, variant * number + other)));
        }
    }
    Row { title, columns, ratios }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn contestants() -> Vec<Contestant> {
        ["floor", "tenure", "before"].into_iter().map(Contestant::named).collect()
    }

    fn names(row: &Row<'_>) -> (Vec<String>, Vec<(usize, usize)>) {
        (row.columns.iter().map(|column| column.name.clone()).collect(), row.ratios.clone())
    }

    #[test]
    fn the_life_cycle_compares_tenure_with_all_others() {
        let settings = Settings::parse_from(["ratio", "--contestant", "x", "--connections", "1,8"]);
        let contestants = contestants();
        let rows = rows(RowName::Lifecycle, &settings, &contestants);
        assert_eq!(rows.len(), 2);
        assert_eq!(
            names(&rows[1]),
            (vec!["floor".to_owned(), "tenure".to_owned(), "before".to_owned()], vec![(1, 0), (1, 2)])
        );
    }

    #[test]
    fn variant_is_compared_with_plain_one_on_same_server() {
        let settings = Settings::parse_from(["ratio", "--contestant", "x", "--warmup", "2"]);
        let contestants = contestants();
        let rows = rows(RowName::Overload, &settings, &contestants);
        let names = names(&rows[0]);
        assert_eq!(names.0, ["tenure plain", "before plain", "tenure overload", "before overload"]);
        assert_eq!(names.1, [(2, 0), (3, 1), (0, 1), (2, 3)]);
        // The mode's own warmup, longer than the given one.
        let arguments = &rows[0].columns[2].variant.arguments;
        assert_eq!(arguments.iter().filter(|argument| *argument == "--warmup").count(), 1);
        assert!(arguments.ends_with(&["--warmup".to_owned(), "5".to_owned()]), "{arguments:?}");
    }

    #[test]
    fn a_broker_has_a_mode_of_its_own() {
        let settings = Settings::parse_from(["ratio", "--contestant", "x", "--connections", "64,256"]);
        let contestants: Vec<Contestant> = ["rabbitmq", "tenure"].into_iter().map(Contestant::named).collect();
        let rows = rows(RowName::Work32, &settings, &contestants);
        assert_eq!(rows.len(), 2);
        assert_eq!(names(&rows[1]), (vec!["rabbitmq".to_owned(), "tenure".to_owned()], vec![(1, 0)]));
        let modes: Vec<&str> = rows[1].columns.iter().map(|column| column.variant.arguments[0].as_str()).collect();
        assert_eq!(modes, ["rabbit32", "work32"]);
        for column in &rows[1].columns {
            assert!(column.variant.arguments.ends_with(&["--warmup".to_owned(), "5".to_owned()]), "{column:?}");
        }
    }

    #[test]
    fn the_last_connections_and_rows_count() {
        let words = ["ratio", "--contestant", "x", "--rows", "work,work32", "--connections", "64,256"];
        let words = words.into_iter().chain(["--connections", "8", "--contestant", "y", "--rows", "status"]);
        let settings = Settings::parse_from(words);
        assert_eq!((settings.connections, settings.rows), (vec![8], vec![RowName::Status]));
        assert_eq!(settings.contestants.len(), 2);
    }

    #[test]
    fn all_rows_are_all_that_there_are() {
        let settings = Settings::parse_from(["ratio", "--contestant", "x"]);
        let contestants = contestants();
        let rows = rows(RowName::All, &settings, &contestants);
        assert_eq!(rows.len(), settings.connections.len() + RowName::value_variants().len() - 2);
    }
}
