use super::*;

fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn times(cron: &str, zone: &str, after: &str, number: usize) -> Vec<String> {
    let pattern = Pattern::parse(cron, zone).unwrap();
    let found = pattern.upcoming(time(after), number);
    found.iter().map(|time| time.format("%m-%dT%H:%M").to_string()).collect()
}

fn refusal(cron: &str, zone: &str) -> String {
    match Pattern::parse(cron, zone) {
        Err(Unacceptable::Rule(why)) => why,
        other => panic!("{cron} {zone}: {other:?}"),
    }
}

#[test]
fn patterns_have_their_times() {
    let after = "2026-01-30T12:00:00Z";
    for (cron, expected) in [
        ("0 3 * * *", ["01-31T03:00", "02-01T03:00"]),
        ("*/20 12 * * *", ["01-30T12:20", "01-30T12:40"]),
        ("@daily", ["01-31T00:00", "02-01T00:00"]),
        ("@hourly", ["01-30T13:00", "01-30T14:00"]),
        ("0 0 L * *", ["01-31T00:00", "02-28T00:00"]),
        ("0 9 * * MON#1", ["02-02T09:00", "03-02T09:00"]),
        ("0 9 15W * *", ["02-16T09:00", "03-16T09:00"]),
        ("0 9 1 feb-mar *", ["02-01T09:00", "03-01T09:00"]),
    ] {
        assert_eq!(times(cron, "UTC", after, 2), expected, "{cron}");
    }
}

#[test]
fn time_itself_is_not_after_it() {
    assert_eq!(times("0 3 * * *", "UTC", "2026-01-01T02:59:59.999Z", 1), ["01-01T03:00"]);
    assert_eq!(times("0 3 * * *", "UTC", "2026-01-01T03:00:00Z", 1), ["01-02T03:00"]);
    assert_eq!(times("0 3 * * *", "UTC", "2026-01-01T03:00:00.5Z", 1), ["01-02T03:00"]);
}

/// Berlin skips 02:00 to 03:00 on 2026-03-29, which is 01:00 UTC.
#[test]
fn fixed_times_of_a_gap_make_one() {
    let after = "2026-03-28T12:00:00Z";
    for (cron, expected) in [
        ("30 2 * * *", ["03-29T01:00", "03-30T00:30"]),
        ("0,15,30 2,3 * * *", ["03-29T01:00", "03-29T01:15"]),
        ("*/10 2 * * *", ["03-29T01:00", "03-30T00:00"]),
        ("0 1-3 * * *", ["03-29T00:00", "03-29T01:00"]),
    ] {
        assert_eq!(times(cron, "Europe/Berlin", after, 2), expected, "{cron}");
    }
}

#[test]
fn running_times_of_a_gap_are_left_out() {
    let after = "2026-03-29T00:00:00Z";
    assert_eq!(times("30 * * * *", "Europe/Berlin", after, 2), ["03-29T00:30", "03-29T01:30"]);
    assert_eq!(times("*/30 */1 * * *", "Europe/Berlin", after, 3), ["03-29T00:30", "03-29T01:00", "03-29T01:30"]);
}

/// Berlin has 02:00 to 03:00 twice on 2026-10-25: from 00:00 and from 01:00 UTC.
#[test]
fn fixed_time_of_an_overlap_counts_once() {
    let after = "2026-10-24T12:00:00Z";
    assert_eq!(times("30 2 * * *", "Europe/Berlin", after, 2), ["10-25T00:30", "10-26T01:30"]);
    assert_eq!(times("0,30 2 * * *", "Europe/Berlin", after, 3), ["10-25T00:00", "10-25T00:30", "10-26T01:00"]);
    // From within the second pass.
    assert_eq!(times("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", 1), ["10-26T01:30"]);
}

#[test]
fn running_time_of_an_overlap_counts_twice() {
    let after = "2026-10-24T23:59:00Z";
    assert_eq!(times("30 * * * *", "Europe/Berlin", after, 3), ["10-25T00:30", "10-25T01:30", "10-25T02:30"]);
    assert_eq!(
        times("*/30 * * * *", "Europe/Berlin", after, 5),
        ["10-25T00:00", "10-25T00:30", "10-25T01:00", "10-25T01:30", "10-25T02:00"]
    );
    // From within each pass.
    assert_eq!(times("15 * * * *", "Europe/Berlin", "2026-10-25T00:20:00Z", 2), ["10-25T01:15", "10-25T02:15"]);
    assert_eq!(times("15 * * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", 2), ["10-25T01:15", "10-25T02:15"]);
}

/// Lord Howe moves by half an hour: it skips 02:00 to 02:30 on 2026-10-04 (15:30 UTC the day
/// before), and has 01:30 to 02:00 twice on 2026-04-05 (from 14:30 and from 15:00 UTC the day
/// before).
#[test]
fn half_hour_changes_follow_the_same_rules() {
    let zone = "Australia/Lord_Howe";
    assert_eq!(times("15 2 * * *", zone, "2026-10-03T00:00:00Z", 2), ["10-03T15:30", "10-04T15:15"]);
    assert_eq!(times("15 * * * *", zone, "2026-10-03T14:00:00Z", 2), ["10-03T14:45", "10-03T16:15"]);
    assert_eq!(times("45 1 * * *", zone, "2026-04-04T00:00:00Z", 2), ["04-04T14:45", "04-05T15:15"]);
    assert_eq!(times("45 * * * *", zone, "2026-04-04T14:00:00Z", 3), ["04-04T14:45", "04-04T15:15", "04-04T16:15"]);
}

/// On every minute of the days around a change, the next time is later, and none lies between.
#[test]
fn next_time_is_consistent_around_changes() {
    for (zone, day) in [
        ("Europe/Berlin", "2026-03-28T12:00:00Z"),
        ("Europe/Berlin", "2026-10-24T12:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T00:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T00:00:00Z"),
    ] {
        for cron in ["*/7 * * * *", "5,50 1,2,3 * * *", "0 */2 * * *", "* 2 * * *"] {
            let pattern = Pattern::parse(cron, zone).unwrap();
            let all = pattern.upcoming(time(day), 400);
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{cron} {zone}");
            for minute in 0..36 * 60 {
                let from = time(day) + TimeDelta::minutes(minute);
                let expected = all.iter().find(|found| **found > from).copied();
                assert_eq!(pattern.next_after(from), expected.or_else(|| pattern.next_after(from)), "{cron} {from}");
            }
        }
    }
}

#[test]
fn unusable_pattern_or_zone_is_refused() {
    for (cron, zone, word) in [
        ("0 0 3 * * *", "UTC", "five fields"),
        ("0 3 * *", "UTC", "five fields"),
        ("", "UTC", "five fields"),
        ("61 3 * * *", "UTC", "not a cron pattern"),
        ("0 3 * * FOO", "UTC", "not a cron pattern"),
        ("@sometimes", "UTC", "not a cron pattern"),
        ("0 3 * * *", "Berlin", "time zone"),
        ("0 3 * * *", "", "time zone"),
    ] {
        assert!(refusal(cron, zone).contains(word), "{cron} {zone}");
    }
    let long = format!("0 3 * * {}", "1,".repeat(200));
    assert!(refusal(&long, "UTC").contains("characters"));
}

#[test]
fn pattern_without_a_time_soon_is_refused() {
    let now = time("2026-01-01T00:00:00Z");
    for (cron, has_time) in [("0 0 30 2 *", false), ("0 0 31 4,6 *", false), ("0 0 29 2 *", true)] {
        let first = Pattern::parse(cron, "UTC").unwrap().first_after(now);
        assert_eq!(first.is_ok(), has_time, "{cron}: {first:?}");
    }
}
