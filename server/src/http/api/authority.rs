//! [`Authority`] by the clients and roles of this server.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tenure_domain::bulk_job::Order;
use tenure_domain::scopes::Expression;
use tenure_engine::authority::{Authority, Denied, Needed};

use super::{change_task, change_task_priority, create_task};
use crate::auth::AuthError;
use crate::http::intake::Intake;
use crate::http::scopes::{Template, Unfilled, Values};

/// Clones share the cached clients.
#[derive(Clone)]
pub struct ClientAuthority {
    intake: Arc<Intake>,
}

impl ClientAuthority {
    #[must_use]
    pub fn new(intake: Arc<Intake>) -> Self {
        Self { intake }
    }

    async fn find_missing(&self, client_id: &str, required: &Expression) -> Result<(), Denied> {
        let scopes = self.intake.authenticator.scopes_of(client_id).await.map_err(denied)?;
        match scopes.missing(required) {
            None => Ok(()),
            Some(missing) => Err(Denied::Refused(format!("the client {client_id:?} lacks the scopes {missing}"))),
        }
    }
}

impl Authority for ClientAuthority {
    fn check<'a>(&'a self, client_id: &'a str, needed: Needed<'a>) -> BoxFuture<'a, Result<(), Denied>> {
        async move {
            match needed {
                Needed::Scopes(required) => self.find_missing(client_id, required).await,
                Needed::CreateTask(task) => {
                    let required = filled(&create_task::SCOPES, &create_task::values(task))?;
                    self.find_missing(client_id, &required).await
                }
                Needed::ChangeTask(order, task) => {
                    let scopes = match order {
                        Order::Cancel => change_task::CANCELLING,
                        Order::Rerun => change_task::RERUNNING,
                        Order::Priority(_) => change_task_priority::SCOPES,
                    };
                    let values = change_task::values(task).text("taskId", task.id.to_string());
                    self.find_missing(client_id, &filled(&scopes, &values)?).await
                }
            }
        }
        .boxed()
    }
}

fn filled(scopes: &Template, values: &Values<'_>) -> Result<Expression, Denied> {
    scopes
        .fill(values, &Values::of_path())
        .map_err(|Unfilled(name)| Denied::Refused(format!("the scopes need a value that the task lacks: {name}")))
}

fn denied(error: AuthError) -> Denied {
    match error {
        AuthError::Failure(failure) => Denied::Refused(failure.to_string()),
        AuthError::Lookup(_) => Denied::Unavailable,
    }
}
