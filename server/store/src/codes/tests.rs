//! Tests on the source of all statements of `store/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::check::{faults, words};
use super::lexer::{Token, files, statements, tokens};

pub(super) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns the statements by file, except tests, this check, and the invariants, which have a test
/// of their own.
fn store() -> Vec<(String, Vec<String>)> {
    let root = folder("src");
    let mut found = Vec::new();
    for path in files(&root, ".rs") {
        let name = path.strip_prefix(&root).expect("the path is below src").to_string_lossy().into_owned();
        if !name.starts_with("codes")
            && !name.starts_with("testing")
            && !name.ends_with("tests.rs")
            && name != "invariants.rs"
        {
            found.push((name, statements(&std::fs::read_to_string(&path).expect("the file is UTF-8"))));
        }
    }
    assert!(found.iter().map(|(_, statements)| statements.len()).sum::<usize>() > 200, "statements are not found");
    found
}

#[test]
fn numbers_in_statements_match_comments() {
    let mut found = Vec::new();
    for (file, statements) in store() {
        for statement in statements {
            found.extend(faults(&statement).into_iter().map(|fault| format!("{file}: {fault}")));
        }
    }
    assert!(found.is_empty(), "{} faults:\n{}", found.len(), found.join("\n"));
}

#[test]
fn missing_or_wrong_comments_are_found() {
    for wrong in [
        "SELECT FROM tasks t WHERE t.state = 1",
        "SELECT FROM tasks t WHERE t.state = 2 /* State::Unresolved */",
        "SELECT FROM tasks t WHERE t.state = 1 /* State::Running */",
        "SELECT FROM tasks t WHERE t.state = 1 /* Kind::Created */",
        "SELECT FROM tasks t WHERE t.state = 1 /* run */",
        "SELECT FROM tasks t WHERE t.state > 3 /* State: resolved */",
        "SELECT FROM tasks t WHERE t.state > 1 /* State::Completed */",
        "SELECT FROM tasks t WHERE t.state > 1 /* State: ended */",
        "SELECT FROM e WHERE e.kind IN (3, 4) /* Kind: resolved */",
        "SELECT FROM e WHERE e.kind IN (3, 4, 5)",
        "SELECT CASE w.kind WHEN 7 THEN true END",
        "SELECT CASE w.kind WHEN 7 /* State::Completed */ THEN true END",
        "SELECT array_agg(2::smallint)",
        "SELECT ARRAY[8]::smallint[]",
        "SELECT '{12}'",
        "SELECT '{12}' /* Kind::GroupSealed */",
        "SELECT seq, 0, queue FROM ready",
        "UPDATE tasks t SET state = CASE WHEN waits THEN 0 /* State::Unresolved */ ELSE 1 /* State::Unresolved */ END",
        "SELECT FROM generate_series(0, 5) /* Priority: all */ AS p(priority)",
        "SELECT FROM pending WHERE dequeued >= 11 /* DEQUEUES_ALARMING */",
        "SELECT 1 /* whatever */",
    ] {
        assert!(!faults(wrong).is_empty(), "nothing is found in {wrong}");
    }
    for right in [
        "SELECT FROM tasks t WHERE t.state = 1 /* State::Unresolved */ AND t.state <> 0 /* State::Unscheduled */",
        "SELECT FROM tasks t WHERE t.state > 1 /* State: resolved */ OR t.state < 2 /* State: open */",
        "SELECT FROM e WHERE e.kind IN (3, 4, 5) /* Kind: resolved */",
        "SELECT CASE w.kind WHEN 7 /* Kind::Defined */ THEN true END",
        "SELECT ARRAY[8 /* Kind::Scheduled */]::smallint[], '{12}' /* Kind::GroupReprioritised */, 0 /* run */",
        "SELECT FROM generate_series(0, 6) /* Priority: all */ AS p(priority) LIMIT 1",
        "SELECT COALESCE(t.run + 1, 0), -1, count(*) > 0, $8 > 0 FROM m0 WHERE retries_left > 0 -- 7\n",
    ] {
        assert_eq!(faults(right), Vec::<String>::new(), "{right}");
    }
}

/// Some statements copy a run's state to `tasks.state` and to the kind of its event.
#[test]
fn ended_run_has_same_code_in_all_columns() {
    for state in ["Completed", "Failed", "Exception"] {
        let code = |name| words(name).into_iter().find(|(word, _)| word == state);
        for name in ["State", "Kind", "TaskState"] {
            assert_eq!(code(name), code("RunState"), "{name}");
        }
    }
}

/// Codes that no statement contains, because a parameter or column supplies them.
const BROUGHT: [&str; 2] = ["Kind::Failed", "Kind::ArtifactCreated"];

#[test]
fn every_event_kind_is_written() {
    let mut named = BTreeSet::new();
    for (_, statements) in store() {
        for token in statements.iter().flat_map(|statement| tokens(statement)) {
            if let Token::Comment(comment) = token {
                named.insert(comment);
            }
        }
    }
    for (variant, _) in words("Kind") {
        let name = format!("Kind::{variant}");
        assert_ne!(
            named.contains(&name),
            BROUGHT.contains(&name.as_str()),
            "{name} is written by a statement, or is brought"
        );
    }
}

#[test]
fn only_transitions_move_runs() {
    let tables = ["tasks", "claims", "runs", "pending"];
    let moves = |file: &str| -> Vec<String> {
        let (_, statements) = store().into_iter().find(|(name, _)| name == file).expect("the file is there");
        moves_of(&statements, &tables)
    };
    assert!(!moves("transitions/rerun.rs").is_empty(), "moves are not found");
    for (file, statements) in store() {
        if !file.starts_with("transitions/") {
            assert_eq!(moves_of(&statements, &tables), Vec::<String>::new(), "{file}");
        }
    }
}

fn moves_of(statements: &[String], tables: &[&str]) -> Vec<String> {
    let mut moves = Vec::new();
    for statement in statements {
        let words: Vec<String> = tokens(statement).iter().map(|token| token.word().to_owned()).collect();
        for words in words.windows(4) {
            let [before, verb, into, table] = words else { continue };
            let changes = match (verb.as_str(), into.as_str()) {
                ("insert", "into") | ("delete", "from") => tables.contains(&table.as_str()),
                // Messages are columns of `pending`, whose updates move no run. Locks change
                // nothing.
                ("update", name) if before != "for" && before != "key" => name != "pending" && tables.contains(&name),
                _ => false,
            };
            if changes {
                moves.push(words.join(" "));
            }
        }
    }
    moves
}
