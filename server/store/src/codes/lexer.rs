//! Extracts SQL from Rust files, and tokenizes it as far as the comparison of codes requires.

use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A word, or the last part of a dotted name, in lower case.
    Word(String),
    Number(i64),
    /// An array of numbers in quotes, such as `'{1,2}'`.
    Array(Vec<i64>),
    /// Other quoted text.
    Text(String),
    Parameter,
    /// The text between `/*` and `*/`.
    Comment(String),
    Sign(String),
}

impl Token {
    pub(super) fn is_sign(&self, sign: &str) -> bool {
        matches!(self, Self::Sign(found) if found == sign)
    }

    pub(super) fn word(&self) -> &str {
        match self {
            Self::Word(word) => word,
            _ => "",
        }
    }
}

fn split_while(text: &str, keep: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !keep(c)).unwrap_or(text.len()))
}

fn quoted(text: &str) -> Token {
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let numbers = inner.and_then(|list| list.split(',').map(|number| number.trim().parse().ok()).collect());
    numbers.map_or_else(|| Token::Text(text.to_owned()), Token::Array)
}

pub(super) fn tokens(mut sql: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    while let Some(first) = sql.chars().next() {
        if let Some(rest) = sql.strip_prefix("--") {
            sql = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(rest) = sql.strip_prefix("/*") {
            let (comment, rest) = rest.split_once("*/").unwrap_or((rest, ""));
            tokens.push(Token::Comment(comment.trim().to_owned()));
            sql = rest;
        } else if let Some(rest) = sql.strip_prefix('\'') {
            // A doubled quote ends and begins a token here, which is harmless.
            let (text, rest) = rest.split_once('\'').unwrap_or((rest, ""));
            tokens.push(quoted(text));
            sql = rest;
        } else if let Some(rest) = sql.strip_prefix('"') {
            sql = rest.split_once('"').map_or("", |(_, rest)| rest);
            tokens.push(Token::Word(String::new()));
        } else if first.is_ascii_digit() {
            let (number, rest) = split_while(sql, |c| c.is_ascii_digit());
            tokens.push(Token::Number(number.parse().expect("digits")));
            sql = rest;
        } else if first == '$' {
            tokens.push(Token::Parameter);
            sql = split_while(&sql[1..], |c| c.is_ascii_digit()).1;
        } else if first.is_alphabetic() || first == '_' {
            let (name, rest) = split_while(sql, |c| c.is_alphanumeric() || c == '_' || c == '.');
            tokens.push(Token::Word(name.rsplit('.').next().unwrap_or_default().to_lowercase()));
            sql = rest;
        } else if first.is_whitespace() {
            sql = sql.trim_start();
        } else {
            let known = ["<>", "<=", ">=", "<<", "::", "=>", "||"].into_iter().find(|sign| sql.starts_with(sign));
            let sign = known.map_or_else(|| first.to_string(), str::to_owned);
            sql = &sql[sign.len()..];
            tokens.push(Token::Sign(sign));
        }
    }
    tokens
}

/// Returns the quoted texts of a Rust file, without comments and tests.
fn literals(mut code: &str) -> Vec<String> {
    code = code.split_once("#[cfg(test)]").map_or(code, |(code, _)| code);
    let mut literals = Vec::new();
    while !code.is_empty() {
        if let Some(rest) = code.strip_prefix("//") {
            code = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(rest) = code.strip_prefix("r#\"") {
            let (text, rest) = rest.split_once("\"#").expect("a raw text ends");
            literals.push(text.to_owned());
            code = rest;
        } else if code.starts_with("'\"'") || code.starts_with("'\\") {
            code = code[2..].split_once('\'').map_or("", |(_, rest)| rest);
        } else if let Some(rest) = code.strip_prefix('"') {
            let (mut text, mut chars) = (String::new(), rest.char_indices());
            code = loop {
                match chars.next() {
                    Some((_, '\\')) => match chars.next() {
                        Some((_, 'n')) => text.push('\n'),
                        Some((_, escaped)) => text.push(escaped),
                        None => break "",
                    },
                    Some((end, '"')) => break &rest[end + 1..],
                    Some((_, character)) => text.push(character),
                    None => break "",
                }
            };
            literals.push(text);
        } else {
            code = &code[code.chars().next().map_or(0, char::len_utf8)..];
        }
    }
    literals
}

/// True if a text has a statement's name, or begins with an SQL verb.
fn is_sql(text: &str) -> bool {
    let text = text.trim_start();
    let verb = text.split_whitespace().next().unwrap_or_default();
    text.starts_with("-- ") || ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].contains(&verb)
}

pub(super) fn statements(code: &str) -> Vec<String> {
    literals(code).into_iter().filter(|text| is_sql(text)).collect()
}

/// Lists the files in a folder with this ending, recursively and in order.
pub(super) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the entry is readable").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}
