//! commandSession.

use http::StatusCode;
use tenure_api::sessions::{CommandRequest, CommandSent};

use super::{answer, identify, of_a_session, values};
use crate::http::api::prelude::*;
use tenure_domain::session::COMMANDS_MAX;
use tenure_engine::ops::sessions;

/// `POST /api/tenure/v1/sessions/:sessionId/commands`
pub fn endpoint() -> Endpoint {
    Endpoint::post("commandSession", command_session).scopes(Scope("tenure:command-worker:<taskQueueId>")).described(
        "tenure",
        "Send a command to the worker of a session",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    of_a_session(operation)
        .about(
            "The worker finds it in its inbox within a second, and carries it out: `freeze` and `unfreeze`, `balance`, `stop-task` \
             with a `taskId`, `shutdown`. The server does nothing but deliver it; a quarantine is its own means against a \
             worker. Commands end with their session, and one that has ended is not found.",
        )
        .takes::<CommandRequest>(&json!({"command": "freeze"}))
        .answers_json::<CommandSent>(202, "The command is in the inbox", &json!({"id": 5}))
        .refuses(InputError, "`stop-task` comes without a `taskId`, or another command with one")
        .refuses(RequestConflict, &format!("{COMMANDS_MAX} commands are not acknowledged yet"))
}

async fn command_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let identity = identify(&app, &call).await?;
    call.authorize(&values(&identity))?;
    call.no_query()?;
    let command: CommandRequest = call.json()?;
    let id = sessions::command(app.engine.session_parts(), &identity, &command).await?;
    answer(StatusCode::ACCEPTED, &CommandSent { id })
}
