//! Sends the emails of the queue `acme/mail`: typed payloads, and failures with and without a
//! retry.
//!
//!     cargo run -p tenure-client --example email

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_client::consumer::{Consumer, Handler, Job, Outcome, Stop};
use tenure_client::{Client, ExceptionReason};

/// Without `to`, or with an unknown field, a task ends as malformed-payload.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Email {
    to: String,
    subject: String,
    #[serde(default)]
    body: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Receipt {
    message_id: String,
}

enum MailError {
    NoMailbox,
    /// The mail server requests a retry.
    Busy(Duration),
    /// The mail server refused our own account.
    Account,
}

struct Mailer {
    from: String,
}

impl Mailer {
    async fn send(&self, email: &Email, id: &str) -> Result<Receipt, MailError> {
        println!("{} -> {}: {} ({} bytes)", self.from, email.to, email.subject, email.body.len());
        match email.to.split_once('@') {
            None | Some(("", _)) => Err(MailError::NoMailbox),
            Some((_, "busy.example")) => Err(MailError::Busy(Duration::from_secs(30))),
            Some((_, "closed.example")) => Err(MailError::Account),
            Some(_) => Ok(Receipt { message_id: format!("<{id}@acme.example>") }),
        }
    }
}

impl Handler<Email> for Mailer {
    async fn run(&self, job: Job<Email>, stop: Stop) -> Outcome {
        // A task may be restarted if its first worker vanished, so the id must be the same each
        // time.
        let id = job.task_id().to_string();
        let sent = tokio::select! {
            sent = self.send(job.payload(), &id) => sent,
            () = stop.requested() => return Outcome::Release { after: None },
        };
        match sent {
            Ok(receipt) => Outcome::completed(receipt),
            Err(MailError::NoMailbox) => Outcome::FailedForGood(None).because("there is no such mailbox"),
            Err(MailError::Busy(pause)) => Outcome::Retry { after: Some(pause) }.because("the mail server is busy"),
            Err(MailError::Account) => {
                Outcome::Exception(ExceptionReason::InternalError).because("our account was refused")
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mailer = Mailer { from: "robot@acme.example".to_owned() };
    let consumer = Consumer::builder(Client::from_env()?, "acme/mail".parse()?)
        .name("here", &format!("mail-{}", std::process::id()))
        .capacity(8)
        .session(Duration::from_secs(120))
        .handler(mailer)
        .build()?;
    Ok(consumer.run_until(tokio::signal::ctrl_c()).await?)
}
