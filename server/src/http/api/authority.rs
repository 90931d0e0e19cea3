//! [`Authority`] by the clients and roles of this server.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tenure_domain::scopes::Expression;
use tenure_engine::authority::{Authority, Denied, Needed};

use super::create_task;
use crate::auth::AuthError;
use crate::http::intake::Intake;
use crate::http::scopes::{Unfilled, Values};

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
                    let required = create_task::SCOPES.fill(&create_task::values(task), &Values::of_path());
                    let required = required.map_err(|Unfilled(name)| {
                        Denied::Refused(format!("the scopes of createTask need a value that the task lacks: {name}"))
                    })?;
                    self.find_missing(client_id, &required).await
                }
            }
        }
        .boxed()
    }
}

fn denied(error: AuthError) -> Denied {
    match error {
        AuthError::Failure(failure) => Denied::Refused(failure.to_string()),
        AuthError::Lookup(_) => Denied::Unavailable,
    }
}
