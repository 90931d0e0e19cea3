//! Memory budget of responses, from creation until they are sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};

use super::budget::{Budget, Reservation, Share};
use super::compression::{AsItIs, Zipped};
use super::error::{self, ApiError};

/// In bytes. Smaller responses are exempt, so they are never refused because other clients do not
/// read.
pub(super) const COUNTED_MIN: u64 = 16 << 10;

/// Response extension: the caller's credentials were checked.
#[derive(Clone, Copy)]
struct ForAuthenticated;

fn counted_size(response: &Response<Body>) -> Option<u64> {
    response.body().size_hint().exact().filter(|size| *size >= COUNTED_MIN)
}

pub fn note_share(response: &mut Response<Body>, share: Share) {
    if share == Share::Authenticated && counted_size(response).is_some() {
        response.extensions_mut().insert(ForAuthenticated);
    }
}

pub(super) fn share_of(response: &Response<Body>) -> Share {
    let authenticated = response.extensions().get::<ForAuthenticated>().is_some();
    if authenticated { Share::Authenticated } else { Share::Anonymous }
}

/// Reserves memory for a response, or replaces it by a 503. Responses with claims are reserved but
/// never refused, because their runs would be lost for a while. Streams and shared documents are
/// exempt.
pub fn hold(budget: &Arc<Budget>, response: Response<Body>) -> Response<Body> {
    let Some(size) = counted_size(&response) else { return response };
    if response.extensions().get::<Zipped>().is_some() {
        return response;
    }
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut reservation = budget.begin(share_of(&response));
    if response.extensions().get::<AsItIs>().is_some() {
        reservation.force_to(size);
    } else if reservation.grow_to(size).is_err() {
        return error::stray(ApiError::unavailable(
            "responses that clients have not read use all memory for responses; send the request again",
        ));
    }
    response.map(|body| Body::new(Counted { body, reservation: Some(reservation) }))
}

/// A body in one piece; the piece takes over the reservation.
struct Counted {
    body: Body,
    reservation: Option<Reservation>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        let reservation = self.reservation.take();
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| {
                frame.map_data(|bytes| match reservation {
                    Some(reservation) => Bytes::from_owner(CountedBytes { bytes, _reservation: reservation }),
                    None => bytes,
                })
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes that hold their reservation until the connection drops them.
struct CountedBytes {
    bytes: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const SIZE: usize = 100 << 10;

    fn answer() -> Response<Body> {
        let mut response = Response::new(Body::from(vec![b'x'; SIZE]));
        note_share(&mut response, Share::Authenticated);
        response
    }

    #[tokio::test]
    async fn response_holds_budget_until_its_bytes_are_dropped() {
        let budget = Budget::new("answers", SIZE + SIZE / 2);
        let bytes = hold(&budget, answer()).into_body().collect().await.unwrap().to_bytes();
        assert_eq!(bytes.len(), SIZE);
        let refused = hold(&budget, answer());
        assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].as_bytes()), (503, b"1".as_slice()));
        let small = hold(&budget, Response::new(Body::from("small")));
        assert_eq!(small.status(), 200);
        drop(bytes);
        assert_eq!(hold(&budget, answer()).status(), 200);
        assert_eq!(hold(&budget, answer()).status(), 200, "a dropped response frees its bytes");
    }

    #[test]
    fn claims_are_counted_but_never_refused() {
        let budget = Budget::new("answers", SIZE);
        let mut claims = answer();
        claims.extensions_mut().insert(AsItIs);
        let first = hold(&budget, answer());
        let claims = hold(&budget, claims);
        assert_eq!((first.status().as_u16(), claims.status().as_u16()), (200, 200));
        drop(first);
        assert_eq!(hold(&budget, answer()).status(), 503);
    }
}
