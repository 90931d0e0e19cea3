//! The bodies of requests: read within a limit and within the budget of all of them, or discarded unread.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use tenure_api::errors::ErrorCode;

use super::budget::{Budget, Reservation, Share};
use super::error::ApiError;

/// The largest body.
pub const BODY_MAX: usize = 10 << 20;
/// The largest body of a caller without credentials, where no operation needs more.
pub const ANONYMOUS_BODY_MAX: usize = 64 << 10;
/// The same where it has in it the head of a request to another service, which may be as long as that of one to this server,
/// 128 KiB, and is longer as JSON.
pub const OTHERS_HEAD_MAX: usize = 256 << 10;
/// So much of each body is not counted: what workers send is smaller, and is never refused for what others send.
const UNCOUNTED: usize = 4 << 10;
/// A body must arrive within this time: the largest one at 0.7 Mbit/s.
const ARRIVAL_MAX: Duration = Duration::from_secs(120);
/// How much of a body that is not used is read before its sender is answered, and for how long: one whose connection is
/// closed while it sends sees a broken connection instead of the answer.
const UNWANTED_MAX: usize = 64 << 20;
const UNWANTED_TIME_MAX: Duration = Duration::from_secs(5);

/// A body that was read.
#[derive(Debug, Default)]
pub struct BudgetedBody {
    /// Its bytes.
    pub bytes: Bytes,
    /// To be held as long as they are.
    pub reservation: Option<Reservation>,
}

/// Whether the head announces a body.
#[must_use]
pub fn is_announced(headers: &HeaderMap) -> bool {
    headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING)
}

/// The length of the body, if the head has it.
#[must_use]
pub fn announced_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a body of at most so many bytes. One that is refused is discarded first, so that its sender sees the refusal.
///
/// # Errors
/// If it is too large, does not arrive whole, or finds no room in the budget.
pub async fn read(
    budget: &Arc<Budget>,
    share: Share,
    limit: usize,
    headers: &HeaderMap,
    body: Body,
) -> Result<BudgetedBody, ApiError> {
    if !is_announced(headers) {
        return Ok(BudgetedBody::default());
    }
    if announced_length(headers).is_some_and(|length| length > limit) {
        pass_over(headers, body).await;
        return Err(too_large(limit, share));
    }
    let mut reservation = budget.begin(share);
    let mut stream = body.into_data_stream();
    let collected = {
        let mut collecting = pin!(collect(&mut stream, limit, announced_length(headers), &mut reservation));
        // Most bodies are there with their heads, and need no timer.
        match futures_util::poll!(collecting.as_mut()) {
            Poll::Ready(collected) => Ok(collected),
            Poll::Pending => tokio::time::timeout(ARRIVAL_MAX, collecting).await,
        }
    };
    let broken = match collected {
        Ok(Ok(bytes)) => return Ok(BudgetedBody { bytes, reservation: Some(reservation) }),
        Ok(Err(broken)) => broken,
        Err(_) => Broken::Cut,
    };
    // What was read so far is freed by now.
    drop(reservation);
    if !matches!(broken, Broken::Cut) {
        discard(stream).await;
    }
    Err(match broken {
        Broken::TooLarge => too_large(limit, share),
        Broken::NoRoom => ApiError::unavailable(
            "the bodies of other requests take all the memory that there is for them; send the request again",
        ),
        Broken::Cut => ApiError::new(ErrorCode::MalformedPayload, "the body did not arrive whole"),
    })
}

fn too_large(limit: usize, share: Share) -> ApiError {
    let hint = if share == Share::Anonymous && limit < BODY_MAX { " for a request without credentials" } else { "" };
    ApiError::new(ErrorCode::InputTooLarge, format!("the body is over the limit of {limit} bytes{hint}"))
}

/// Why a body was not read to its end.
enum Broken {
    TooLarge,
    NoRoom,
    Cut,
}

async fn collect(
    stream: &mut BodyDataStream,
    limit: usize,
    announced: Option<usize>,
    reservation: &mut Reservation,
) -> Result<Bytes, Broken> {
    let mut collected = BytesMut::new();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|_| Broken::Cut)?;
        let length = collected.len() + piece.len();
        if length > limit {
            return Err(Broken::TooLarge);
        }
        reservation.grow_to(length.saturating_sub(UNCOUNTED)).map_err(|_| Broken::NoRoom)?;
        if collected.is_empty() {
            // Most bodies come in one piece, which need not be copied.
            if announced == Some(piece.len()) {
                return Ok(piece);
            }
            // Memory is taken when it is written to, and not before.
            collected.reserve(announced.unwrap_or_default());
        }
        collected.extend_from_slice(&piece);
    }
    Ok(collected.freeze())
}

/// Lets the sender of a body that is refused come to its end; one that waits for 100-continue has not begun.
pub async fn pass_over(headers: &HeaderMap, body: Body) {
    if is_announced(headers) && !headers.contains_key(EXPECT) {
        discard(body.into_data_stream()).await;
    }
}

/// Reads the rest of a body and discards it.
pub async fn discard(mut body: BodyDataStream) {
    let reading = async {
        let mut read = 0;
        while let Some(Ok(piece)) = body.next().await
            && read <= UNWANTED_MAX
        {
            read += piece.len();
        }
    };
    // Whether or not it came to its end, the answer follows.
    let _elapsed = tokio::time::timeout(UNWANTED_TIME_MAX, reading).await;
}
