use super::super::judge::judge;
use super::super::judge::tests::published;
use super::super::part::Part;
use super::*;

#[test]
fn report_shows_differences_and_lateness() {
    let queues: Vec<TaskQueueId> =
        ["tenure-verify/v0", "tenure-verify/v1"].iter().map(|queue| queue.parse().unwrap()).collect();
    let parts: Vec<Part> = Part::all().skip(1).collect();
    let judged = |n: usize, late_ms, spoil: fn(&mut Observations)| {
        let mut observed = published(&parts[n], late_ms);
        spoil(&mut observed);
        let (task, differences) = (observed.status.task_id, judge(&parts[n], &observed));
        Judged { part: &parts[n], queue: &queues[n], task, observed, differences }
    };
    let good = [judged(0, 20, |_| {}), judged(1, 1_250, |_| {})];
    let shown = text(&good);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "CELL             BY       AS PUBLISHED  LATE BY  RUNS  STATE      FIRST REPORT  QUEUE");
    assert_eq!(
        lines[1],
        "exit/at-least/0  session  yes           0.020 s  2     completed  409           tenure-verify/v0"
    );
    assert_eq!(lines[3], "exit/at-least/n: 1.250 s late; promised is 1.000 s, and a difference is more than 10.000 s");
    assert_eq!(lines[4..], ["All 2 are as published."]);
    assert_eq!(answer("http://x", &good)["asPublished"], true);

    let bad = [judged(0, 20, |observed| observed.status.retries_left = 4), judged(1, 20, |_| {})];
    let shown = text(&bad);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[1].starts_with("exit/at-least/0  session  NO "), "{shown}");
    assert_eq!(
        lines[3..],
        ["exit/at-least/0 by session: retriesLeft went from 5 to 4", "1 of 2 are not as published."]
    );
    let json = answer("http://x", &bad);
    assert_eq!((&json["asPublished"], &json["rootUrl"]), (&false.into(), &"http://x".into()));
    assert_eq!(json["cells"][0]["differences"], serde_json::json!(["retriesLeft went from 5 to 4"]));
    let names = ["cell", "by"].map(|field| json["cells"][0][field].as_str().unwrap_or_default());
    assert_eq!(names, ["exit/at-least/0", "session"]);
    assert_eq!(json["cells"][0]["lateSeconds"], 0.02);
    assert_eq!(json["cells"][1]["asPublished"], true);
    assert_eq!(json["cells"][1]["log"][1]["exchange"], "task-completed");

    let of = |name: &str| Part::all().position(|part| part.name() == name).unwrap() - 1;
    let [accept, unaccepted] = ["accept/at-most/n", "scheduler/at-least/0 unaccepted"].map(of);
    let assigned = [accept, unaccepted].map(|n| {
        let observed = published(&parts[n], 20);
        Judged { part: &parts[n], queue: &queues[0], task: observed.status.task_id, observed, differences: Vec::new() }
    });
    let shown = text(&assigned);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines[1].starts_with("accept/at-most/n      accept-time  yes           0.020 s  1     exception  409"),
        "{shown}"
    );
    assert!(
        lines[2].starts_with("scheduler/at-least/0  unaccepted   yes           0.020 s  1     completed  409"),
        "{shown}"
    );
}
