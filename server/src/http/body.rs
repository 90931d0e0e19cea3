//! Request bodies: read within a size limit and a memory budget, or discarded.

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

pub const BODY_MAX: usize = 10 << 20;
/// Default limit for callers without credentials.
pub const ANONYMOUS_BODY_MAX: usize = 64 << 10;
/// Limit for a body that quotes the head of another service's request: up to 128 KiB, and longer as
/// JSON.
pub const OTHERS_HEAD_MAX: usize = 256 << 10;
/// Bytes of each body exempt from the budget. Workers send less, so other callers never cause their
/// refusal.
const UNCOUNTED: usize = 4 << 10;
/// Enough for the largest body at 0.7 Mbit/s.
const ARRIVAL_MAX: Duration = Duration::from_secs(120);
/// Limits for draining an unused body. A client whose connection closes while it sends would not
/// see the response.
const UNWANTED_MAX: usize = 64 << 20;
const UNWANTED_TIME_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct BudgetedBody {
    pub bytes: Bytes,
    /// Hold this as long as `bytes`.
    pub reservation: Option<Reservation>,
}

#[must_use]
pub fn is_announced(headers: &HeaderMap) -> bool {
    headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING)
}

#[must_use]
pub fn announced_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a body of at most `limit` bytes. Discards a refused body first, so that the sender sees
/// the refusal.
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
        // Most bodies arrive with their heads and need no timer.
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
    // `collecting` has freed its bytes by now.
    drop(reservation);
    if !matches!(broken, Broken::Cut) {
        discard(stream).await;
    }
    Err(match broken {
        Broken::TooLarge => too_large(limit, share),
        Broken::NoRoom => ApiError::unavailable(
            "the bodies of other requests use all memory for request bodies; send the request again",
        ),
        Broken::Cut => ApiError::new(ErrorCode::MalformedPayload, "the body is incomplete"),
    })
}

fn too_large(limit: usize, share: Share) -> ApiError {
    let hint = if share == Share::Anonymous && limit < BODY_MAX { " for a request without credentials" } else { "" };
    ApiError::new(ErrorCode::InputTooLarge, format!("the body is over the limit of {limit} bytes{hint}"))
}

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
            // Most bodies come in one piece and need no copy.
            if announced == Some(piece.len()) {
                return Ok(piece);
            }
            // The allocator commits memory only when it is written to.
            collected.reserve(announced.unwrap_or_default());
        }
        collected.extend_from_slice(&piece);
    }
    Ok(collected.freeze())
}

/// Discards a refused body, unless the sender waits for 100-continue and has sent nothing.
pub async fn pass_over(headers: &HeaderMap, body: Body) {
    if is_announced(headers) && !headers.contains_key(EXPECT) {
        discard(body.into_data_stream()).await;
    }
}

pub async fn discard(mut body: BodyDataStream) {
    let reading = async {
        let mut read = 0;
        while let Some(Ok(piece)) = body.next().await
            && read <= UNWANTED_MAX
        {
            read += piece.len();
        }
    };
    // The response follows even if the body did not end in time.
    let _elapsed = tokio::time::timeout(UNWANTED_TIME_MAX, reading).await;
}
