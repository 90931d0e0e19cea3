//! Checks that the secret keys fit the database: a server with another key would start, and refuse
//! every client.
//!
//! The table `settings` stores check values of the keys of the server that started last, in order.
//! The first belongs to the encrypting key; the others identify removed keys. Keys are accepted if
//! they include the first stored one, and if one of them opens each token. Without check values,
//! only the tokens are tested.

use sqlx::PgPool;

use tenure_store::secrets::{KeyCheck, SecretKeys};
use tenure_store::{clients, settings};

const TOKENS_PAGE: i64 = 1000;
const CLIENTS_NAMED: usize = 3;

/// `source_name` is the setting or the file of the keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(
        "the secret key in {source_name} (key {given}) does not open the tokens in this database, which belongs to {used}; \
         give the key that it was used with, or a list with it to change it"
    )]
    Wrong { source_name: String, given: String, used: String },
    /// A key was removed too early, or tokens were damaged.
    #[error(
        "no secret key in {source_name} (key {given}) opens the tokens of {clients}; {removed}give those clients \
         new tokens with `tenure client reset-token`, or remove them with `tenure client delete`"
    )]
    Stray {
        source_name: String,
        given: String,
        /// Some of the clients, and the number of the others.
        clients: String,
        /// What to do with the removed keys, by name.
        removed: String,
    },
    /// The key file is gone, but the database has tokens.
    #[error(
        "{source_name} is missing, but the tokens in this database need it; restore it from a backup, or remove all \
         clients with `tenure client delete` and start with a new key"
    )]
    Lost { source_name: String },
}

#[derive(Default)]
struct Tokens {
    opened: usize,
    stray: usize,
    named: Vec<String>,
}

pub async fn needs_key(pool: &PgPool) -> Result<bool, sqlx::Error> {
    let stored = settings::find(pool, settings::KEY_CHECKS).await?;
    Ok(stored.is_some() || !clients::list_tokens(pool, None, 1).await?.is_empty())
}

/// Checks a server's keys, and binds the database to the first one. Keys that do not fit leave the
/// database unchanged.
pub async fn verify(pool: &PgPool, keys: &SecretKeys, source: &str) -> Result<(), KeyError> {
    let noted = join(&keys.checks(), KeyCheck::as_str);
    loop {
        let stored = settings::find(pool, settings::KEY_CHECKS).await?;
        let stored_checks = stored.as_deref().map(read).unwrap_or_default();
        check_first(&stored_checks, keys, source)?;
        let tokens = open_tokens(pool, keys).await?;
        if tokens.stray > 0 {
            return Err(stray(&tokens, &stored_checks, keys, source));
        }
        let done = match &stored {
            None => settings::insert(pool, settings::KEY_CHECKS, &noted).await?,
            Some(stored) if *stored == noted => true,
            Some(stored) => settings::replace(pool, settings::KEY_CHECKS, stored, &noted).await?,
        };
        // Otherwise another server was faster; check against its keys.
        if done {
            return Ok(());
        }
    }
}

/// Checks keys without a change of the database. Returns the stored check values.
pub async fn check(pool: &PgPool, keys: &SecretKeys, source: &str) -> Result<Vec<KeyCheck>, KeyError> {
    if let Some(stored) = settings::find(pool, settings::KEY_CHECKS).await? {
        let stored = read(&stored);
        check_first(&stored, keys, source)?;
        return Ok(stored);
    }
    // Only servers require that all tokens open: the command may be the repair.
    let tokens = open_tokens(pool, keys).await?;
    if tokens.opened == 0 && tokens.stray > 0 {
        return Err(stray(&tokens, &[], keys, source));
    }
    Ok(Vec::new())
}

/// Checks the keys of a command that encrypts a token. Returns them led by the key of the running
/// servers.
pub async fn choose(pool: &PgPool, keys: SecretKeys, source: &str) -> Result<SecretKeys, KeyError> {
    if let Some(first) = check(pool, &keys, source).await?.first() {
        return Ok(keys.led_by(first));
    }
    settings::insert(pool, settings::KEY_CHECKS, &join(&keys.checks(), KeyCheck::as_str)).await?;
    Ok(keys)
}

fn check_first(stored: &[KeyCheck], keys: &SecretKeys, source: &str) -> Result<(), KeyError> {
    match stored.first() {
        Some(used) if !keys.checks().contains(used) => Err(KeyError::Wrong {
            source_name: source.to_owned(),
            given: join(&keys.checks(), KeyCheck::name),
            used: format!("key {}", used.name()),
        }),
        _ => Ok(()),
    }
}

async fn open_tokens(pool: &PgPool, keys: &SecretKeys) -> Result<Tokens, sqlx::Error> {
    let (mut found, mut after) = (Tokens::default(), None::<String>);
    loop {
        let page = clients::list_tokens(pool, after.as_deref(), TOKENS_PAGE).await?;
        for (client_id, token) in &page {
            if keys.decrypt_token(client_id, token).is_ok() {
                found.opened += 1;
                continue;
            }
            found.stray += 1;
            if found.named.len() < CLIENTS_NAMED {
                found.named.push(client_id.clone());
            }
        }
        match page.into_iter().last() {
            Some((last, _)) => after = Some(last),
            None => return Ok(found),
        }
    }
}

fn stray(tokens: &Tokens, stored: &[KeyCheck], keys: &SecretKeys, source: &str) -> KeyError {
    let (source_name, given) = (source.to_owned(), join(&keys.checks(), KeyCheck::name));
    if tokens.opened == 0 && stored.is_empty() {
        return KeyError::Wrong { source_name, given, used: "another key".to_owned() };
    }
    let more = tokens.stray - tokens.named.len();
    let more = if more > 0 { format!(" and {more} more clients") } else { String::new() };
    let given_checks = keys.checks();
    let removed: Vec<KeyCheck> = stored.iter().filter(|check| !given_checks.contains(check)).cloned().collect();
    let removed = match removed.as_slice() {
        [] => String::new(),
        gone => {
            format!("key {} was removed: put it back at the end of the list, and then ", join(gone, KeyCheck::name))
        }
    };
    KeyError::Stray { source_name, given, clients: format!("{}{more}", tokens.named.join(", ")), removed }
}

fn read(stored: &str) -> Vec<KeyCheck> {
    stored.split_whitespace().map(KeyCheck::stored).collect()
}

fn join(checks: &[KeyCheck], text: impl Fn(&KeyCheck) -> &str) -> String {
    checks.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
