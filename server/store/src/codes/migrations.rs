//! Migrations cannot be edited, so their comparisons are listed here.

use super::check::{COLUMNS, COMPARISONS, Codes, compare, group, list};
use super::lexer::{Token, files, tokens};
use super::tests::folder;

/// Table, column, numbers and meaning of each comparison.
const MIGRATED: [(&str, &str, &str, &str); 14] = [
    ("pending", "hold", "=", "Hold::Waiting"),
    ("pending", "hold", "=", "Hold::Assigned"),
    ("tasks", "state", "in", "State: all"),
    ("tasks", "priority", "between", "Priority: all"),
    ("tasks", "state", "=", "State::Unscheduled"),
    ("runs", "state", "in", "RunState: ended"),
    ("dependency_work", "kind", "in", "Kind: settles"),
    ("blobs", "state", "in", "Blob: all"),
    ("blobs", "state", "=", "Blob::Current"),
    ("blobs", "state", "<>", "Blob::Current"),
    ("blobs", "state", "=", "Blob::Uploading"),
    ("queue_policies", "refile_stage", "<>", "Stage::Done"),
    ("queue_policies", "refile_stage", "=", "Stage::Older"),
    // In `kept_until`.
    ("function", "state", "=", "State::Completed"),
];

/// Returns comparisons of code columns: table, column, operator, numbers.
fn migrated(sql: &str) -> Vec<(String, String, String, Codes)> {
    let tokens: Vec<Token> = tokens(sql).into_iter().filter(|token| !matches!(token, Token::Comment(_))).collect();
    let (mut table, mut found) = (String::new(), Vec::new());
    for at in 0..tokens.len() {
        let word = |place: usize| tokens.get(place).map_or("", Token::word);
        let updates = word(at) == "update" && [word(at + 2), word(at + 3)].contains(&"set");
        if updates || (word(at) == "table" && word(at + 1) != "if") || (word(at) == "on" && word(at + 1) != "column") {
            table = word(at + 1).to_owned();
        }
        if !COLUMNS.iter().any(|(column, _)| *column == word(at)) {
            continue;
        }
        let number = |place: usize| match tokens.get(place) {
            Some(Token::Number(number)) => Some(*number),
            _ => None,
        };
        let (operator, codes) = match tokens.get(at + 1) {
            Some(Token::Sign(sign)) if COMPARISONS.contains(&sign.as_str()) => {
                (sign.clone(), number(at + 2).map(|number| Codes::from([number])))
            }
            Some(Token::Word(keyword)) if keyword == "in" => {
                (keyword.clone(), list(&tokens, at + 2).map(|(codes, _)| codes))
            }
            Some(Token::Word(keyword)) if keyword == "between" => {
                let range = number(at + 2).zip(number(at + 4));
                (keyword.clone(), range.map(|(first, last)| (first..=last).collect()))
            }
            Some(Token::Word(keyword)) if keyword == "when" => {
                let whens = (at + 1..tokens.len()).take_while(|&place| word(place) != "end");
                let whens = whens.filter(|&place| word(place) == "when").filter_map(|place| number(place + 1));
                ("case".to_owned(), Some(whens.collect()))
            }
            _ => continue,
        };
        if let Some(codes) = codes {
            found.push((table.clone(), word(at).to_owned(), operator, codes));
        }
    }
    found
}

fn migrations() -> String {
    let texts = files(&folder("../../migrations"), ".sql");
    texts.iter().map(|path| std::fs::read_to_string(path).expect("the file is UTF-8")).collect::<Vec<_>>().join("\n")
}

fn faults_of_migrations(sql: &str) -> Vec<String> {
    let found = migrated(sql);
    let mut faults = Vec::new();
    let means = |(table, column, operator, codes): &(String, String, String, Codes)| {
        MIGRATED.iter().find(|(of, name, sign, meaning)| {
            (of, name, sign) == (&table.as_str(), &column.as_str(), &operator.as_str())
                && compare(meaning, "", column, codes).is_ok()
        })
    };
    for comparison in &found {
        let (table, _, operator, codes) = comparison;
        let of_storage =
            table == "artifacts" && operator == "case" && group("StorageType", "all").as_ref() == Some(codes);
        if means(comparison).is_none() && !of_storage {
            faults.push(format!("{comparison:?} is not listed, or means something else"));
        }
    }
    for listed in &MIGRATED {
        if !found.iter().any(|comparison| means(comparison) == Some(listed)) {
            faults.push(format!("{listed:?} is in no migration"));
        }
    }
    faults
}

#[test]
fn migrations_compare_with_codes_of_enums() {
    let sql = migrations();
    assert_eq!(faults_of_migrations(&sql), Vec::<String>::new());
    for wrong in ["CHECK (state IN (0, 1, 3, 4, 5))", "CHECK (kind IN (3, 4, 5, 7))", "BETWEEN 0 AND 6", "WHEN 5 THEN"]
    {
        let last = wrong.rfind(|c: char| c.is_ascii_digit()).expect("it has a number");
        let mut changed = wrong.to_owned();
        changed.replace_range(last..=last, "9");
        let (wrong, changed) = (wrong.trim_end_matches(')'), changed.trim_end_matches(')').to_owned());
        assert!(sql.contains(wrong), "{wrong}");
        assert!(!faults_of_migrations(&sql.replace(wrong, &changed)).is_empty(), "nothing is found for {changed}");
    }
}

#[test]
fn comments_on_columns_list_every_code() {
    let sql = migrations();
    for (column, name) in [("tasks.state", "State"), ("outbox.kinds", "Kind"), ("blobs.state", "Blob")] {
        let (_, comment) = sql.rsplit_once(&format!("COMMENT ON COLUMN {column} IS")).expect("it has a comment");
        let comment = comment.split_once(";\n").map_or(comment, |(comment, _)| comment);
        let listed = comment.replace(['\'', '\n'], " ");
        let numbers = listed.split(';').filter_map(|part| part.split_whitespace().next()?.parse().ok());
        assert_eq!(numbers.collect::<Codes>(), group(name, "all").expect("it has variants"), "{column}");
    }
}
