//! The load generator. It drives any server of the Queue API through its root URL and prints one
//! row of figures.
//!
//! It has one thread: a second one would take as much from the server, on the same machine, as it
//! adds in load. It signs every request with its body, and reports with the credentials of the
//! claim, so the server does all the work that a real client causes.
//!
//! The modes of the poll API also run against an Azure queue service, with the same requests in the
//! same order.
//!
//! Each mode has one file in `mode/`. `run` has the window and the remaining tasks, `lane` one
//! connection and its calls, `messages` and `azure` signed URLs, `figures` percentiles, `observe`
//! the costs, `report` the row.
//!
//! `events` measures the delivery of events. [`ratio`] compares servers by running modes on each in
//! turn. [`floor`] is a minimal prototype, their baseline.

mod azure;
mod cost;
mod database;
mod events;
mod figures;
pub mod floor;
mod lane;
mod messages;
mod mode;
mod observe;
mod rabbit;
pub mod ratio;
mod report;
mod run;
mod service;
mod settings;

use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until, timeout};

use tenure_driver::http::Client;
use tenure_driver::random::Random;
use tenure_driver::wire::WireError;

use self::figures::Figures;
use self::lane::Lane;
use self::mode::Mode;
use self::observe::{Observer, Used};
use self::run::Run;
use self::service::Service;
pub use self::settings::{ModeName, Settings};

/// Time for lanes to finish their current call when the window ends; a long poll may take longer.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
const GROUP_TASKS: u64 = 10_000;
const FILLERS: u64 = 64;
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The settings lack a server or credentials.
    #[error("--root-url, --client-id and --access-token are needed, or --credentials FILE")]
    NoAccount,
    /// The mode needs tasks, which Azure does not have.
    #[error("this mode needs the Queue API, which neither Azure's queue service nor RabbitMQ has")]
    NotOnAzure,
    /// The settings lack the URL of RabbitMQ.
    #[error("this mode needs --amqp-url")]
    NoRabbit,
    /// RabbitMQ refused or is unreachable.
    #[error("RabbitMQ: {0}")]
    Rabbit(#[from] lapin::Error),
    /// The key of the Azure account is invalid.
    #[error("--azure-key is not base64: {0}")]
    AzureKey(String),
    #[error("{path}: {reason}")]
    CredentialsFile { path: String, reason: String },
    /// The file that describes a server for comparison cannot be used.
    #[error("{path}: {reason}")]
    ContestantFile { path: String, reason: String },
    /// The connection to the server failed.
    #[error("{0}: {cause}", cause = std::error::Error::source(.0).map(ToString::to_string).unwrap_or_default())]
    Wire(#[from] WireError),
    #[error("{what} was answered with {status}: {body}")]
    Refused { what: &'static str, status: u16, body: String },
    /// The server's answer cannot be parsed.
    #[error("the answer to {what} is not what the API describes: {reason}")]
    Answer { what: &'static str, reason: String },
    /// The database cannot be queried.
    #[error("the database given by --database-url cannot be asked")]
    Database(#[from] sqlx::Error),
    /// The window has no completed call: all tasks were used up before, or calls took longer.
    #[error(
        "nothing was done in the time that was measured: more --prefill, less --warmup or more --seconds is needed"
    )]
    Exhausted,
    /// The receiver got no message for a long time.
    #[error("{arrived} of {events} events arrived, and then none for a minute")]
    Undelivered { arrived: u64, events: u64 },
    /// All calls failed for a long time.
    #[error("no call succeeded for too long; the last one: {0}")]
    Hopeless(String),
    /// Acknowledged tasks are missing at the end.
    #[error("{0} acknowledged tasks were lost")]
    Lost(u64),
    /// A lane of the generator is broken.
    #[error("the generator failed: {0}")]
    Generator(String),
}

#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) steps: &'static [&'static str],
    /// Unit of the mode, in the plural.
    pub(crate) counts: &'static str,
    /// Length of the window; shorter than requested if the tasks ran out.
    pub(crate) elapsed: Duration,
    pub(crate) figures: Figures,
    pub(crate) used: Used,
    pub(crate) durability: Option<String>,
}

pub async fn run(settings: &Settings) -> Result<String, BenchError> {
    if settings.mode == ModeName::Events {
        return LocalSet::new().run_until(events::compare(settings)).await;
    }
    let measured = LocalSet::new().run_until(measure_mode(settings)).await?;
    Ok(report::Row { settings, measured }.render())
}

pub(crate) async fn measure_mode(settings: &Settings) -> Result<Measured, BenchError> {
    match settings.mode {
        ModeName::Lifecycle => measure::<mode::Lifecycle>(settings).await,
        ModeName::Graph => measure::<mode::Graph>(settings).await,
        ModeName::Overload => measure::<mode::Overload>(settings).await,
        ModeName::Create => measure::<mode::Create>(settings).await,
        ModeName::Create100 => measure::<mode::Create100>(settings).await,
        ModeName::CreateRepeat => measure::<mode::CreateRepeat>(settings).await,
        ModeName::Group => measure::<mode::Group>(settings).await,
        ModeName::Claim32 => measure::<mode::Claim32>(settings).await,
        ModeName::Single32 => measure::<mode::Single32>(settings).await,
        ModeName::Work1 => measure::<mode::Work<1>>(settings).await,
        ModeName::Work32 => measure::<mode::Work<32>>(settings).await,
        ModeName::Shift => measure::<mode::Shift<false>>(settings).await,
        ModeName::ShiftWork => measure::<mode::Shift<true>>(settings).await,
        ModeName::Rabbit1 => measure_rabbit(settings, 1).await,
        ModeName::Rabbit32 => measure_rabbit(settings, 32).await,
        ModeName::Reclaim => measure::<mode::Reclaim>(settings).await,
        ModeName::Status => measure::<mode::Status>(settings).await,
        ModeName::Pickup => measure::<mode::Pickup>(settings).await,
        ModeName::Get1 => measure::<mode::Get<1>>(settings).await,
        ModeName::Get32 => measure::<mode::Get<32>>(settings).await,
        ModeName::Delete => measure::<mode::Delete>(settings).await,
        ModeName::PutToVisible => measure::<mode::PutToVisible>(settings).await,
        ModeName::IdlePollers => measure::<mode::IdlePollers>(settings).await,
        ModeName::Sessions => measure::<mode::Sessions<false>>(settings).await,
        ModeName::Inboxes => measure::<mode::Sessions<true>>(settings).await,
        ModeName::Admission => measure::<mode::Admission>(settings).await,
        ModeName::Assign => measure::<mode::Assign>(settings).await,
        ModeName::Events => events::deliver(settings).await,
    }
}

async fn measure<M: Mode + 'static>(settings: &Settings) -> Result<Measured, BenchError> {
    let service = settings.service()?;
    if matches!(service, Service::Azure(_)) && !M::ON_AZURE {
        return Err(BenchError::NotOnAzure);
    }
    let mut observer = Observer::new(settings, &service).await?;
    let run = Rc::new(Run::new(service, settings, Random::fresh_seed(), M::STEPS.len()));
    let measured = match prepare::<M>(settings, &run).await {
        Ok(ready) => {
            let lanes = ready.into_iter().map(|(mode, lane)| drive(mode, lane));
            watch(settings, &run, lanes, &mut observer).await
        }
        Err(error) => Err(error),
    };
    let removed = remove_queues(&run).await;
    let measured = measured?;
    removed?;
    M::finish(&run).await?;
    figures_of(&run, observer, (M::STEPS, M::COUNTS), measured).await
}

async fn measure_rabbit(settings: &Settings, window: usize) -> Result<Measured, BenchError> {
    let service = settings.service()?;
    let mut observer = Observer::new(settings, &service).await?;
    let run = Rc::new(Run::new(service, settings, Random::fresh_seed(), rabbit::STEPS.len()));
    let lanes = rabbit::prepare(&run, window).await?;
    let measured = watch(settings, &run, lanes.into_iter().map(rabbit::Lane::drive), &mut observer).await;
    rabbit::remove_queue(&run).await?;
    figures_of(&run, observer, (rabbit::STEPS, "tasks"), measured?).await
}

async fn figures_of(
    run: &Run,
    mut observer: Observer,
    (steps, counts): (&'static [&'static str], &'static str),
    (elapsed, used): (Duration, Used),
) -> Result<Measured, BenchError> {
    let figures = std::mem::take(&mut *run.figures());
    if elapsed.is_zero() || figures.tasks == 0 {
        let most = figures.failures.into_iter().max_by_key(|(_, times)| *times);
        return Err(most.map_or(BenchError::Exhausted, |(what, _)| BenchError::Hopeless(what)));
    }
    let durability = observer.durability().await?;
    Ok(Measured { steps, counts, elapsed, figures, used, durability })
}

async fn watch<F: Future<Output = Result<(), BenchError>> + 'static>(
    settings: &Settings,
    run: &Run,
    ready: impl IntoIterator<Item = F>,
    observer: &mut Observer,
) -> Result<(Duration, Used), BenchError> {
    let window = Duration::from_secs(settings.seconds);
    let start = Instant::now() + Duration::from_secs(settings.warmup);
    let mut lanes = JoinSet::new();
    for lane in ready {
        lanes.spawn_local(lane);
    }
    sleep_until(start).await;
    let began = observer.begin().await?;
    // Opened after the readings, which take a while under load. They include no work of the lanes
    // in between.
    run.open_window(window);
    let mut failure = tokio::select! {
        failure = run.wait_for_the_end(&mut lanes) => failure,
        Err(failure) = observer.look_at_sessions(window) => Some(failure),
    };
    let used = observer.end(&began).await?;
    let elapsed = run.close_window();
    let mut unreported = run.unreported();
    loop {
        match timeout(FINISH_WITHIN, lanes.join_next()).await {
            Ok(Some(finished)) => failure = failure.or_else(|| run::failure_of(finished)),
            // The workers of a shift are still finishing its tasks.
            Err(_) if run.unreported() < unreported => unreported = run.unreported(),
            Ok(None) | Err(_) => break,
        }
    }
    failure.map_or(Ok((elapsed, used)), Err)
}

async fn prepare<M: Mode + 'static>(settings: &Settings, run: &Rc<Run>) -> Result<Vec<(M, Lane)>, BenchError> {
    run.expect_tasks(settings.depth());
    if settings.mode == ModeName::Group {
        run.end_after(GROUP_TASKS);
    }
    let lanes = run.connections() as u64;
    let mut filling = JoinSet::new();
    // Numbers that no lane has, because a lane's number determines its choices.
    for number in lanes..lanes + FILLERS.min(settings.depth()) {
        let run = Rc::clone(run);
        filling.spawn_local(async move {
            let mut lane = Lane::new(run, number)?;
            if M::ON_AZURE {
                lane.lowest_queue().await?;
            }
            while lane.run().take_prefill() {
                lane.put().await?;
            }
            Ok::<_, BenchError>(())
        });
    }
    all_of(filling).await?;
    let mut preparing = JoinSet::new();
    for number in 0..lanes {
        let run = Rc::clone(run);
        preparing.spawn_local(async move {
            let mut lane = Lane::new(run, number)?;
            Ok::<_, BenchError>((M::prepare(&mut lane).await?, lane))
        });
    }
    all_of(preparing).await
}

async fn all_of<T: 'static>(mut running: JoinSet<Result<T, BenchError>>) -> Result<Vec<T>, BenchError> {
    let mut done = Vec::with_capacity(running.len());
    while let Some(ended) = running.join_next().await {
        done.push(ended.map_err(|error| BenchError::Generator(error.to_string()))??);
    }
    Ok(done)
}

async fn remove_queues(run: &Run) -> Result<(), BenchError> {
    let Service::Azure(azure) = run.service() else { return Ok(()) };
    let mut client = Client::new(azure.url())?;
    let made = std::mem::take(&mut *run.made());
    for queue in made {
        messages::remove_queue(&mut client, &azure.queue_resource(&queue)?).await?;
    }
    Ok(())
}

async fn drive<M: Mode>(mut mode: M, mut lane: Lane) -> Result<(), BenchError> {
    while lane.run().is_open() || mode.has_unfinished(&lane) {
        match mode.turn(&mut lane).await {
            Ok(tasks) => lane.count(tasks),
            Err(error) => lane.note_failure(&error).await?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn serve_503(listener: TcpListener) {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            tokio::spawn(async move {
                let mut request = vec![0; 16 << 10];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let answer = b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy";
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    }

    #[tokio::test]
    async fn overload_counts_shed_requests_by_kind() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(serve_503(listener));
        let account = ["--root-url", &url, "--client-id", "c", "--access-token", "t"];
        let numbers = ["--connections", "2", "--rate", "50", "--seconds", "1", "--warmup", "0"];
        let settings = Settings::parse_from([&["tenure-bench", "overload"][..], &account, &numbers].concat());
        // Counted by status. Other modes count failures by the text of the refusal.
        let Err(BenchError::Hopeless(what)) = run(&settings).await else { panic!("nothing can have been done") };
        assert_eq!(what, "createTask was answered with 503");
    }

    const AZURITE: [&str; 4] = ["--azure-queue", "http://127.0.0.1:1/devstoreaccount1", "--azure-key", "c2VjcmV0"];

    #[tokio::test]
    async fn task_mode_on_azure_is_refused_before_any_request() {
        let settings = Settings::parse_from([&["tenure-bench", "lifecycle"][..], &AZURITE].concat());
        assert!(matches!(run(&settings).await, Err(BenchError::NotOnAzure)));
        let settings = Settings::parse_from([&["tenure-bench", "get1"][..], &AZURITE].concat());
        assert!(matches!(run(&settings).await, Err(BenchError::Wire(_))));
    }
}
