//! A body with claims, which count as delivered once it is flushed.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http_body::{Frame, SizeHint};

use super::answers::COUNTED_MIN;
use super::compression::{AsItIs, COMPRESSED_MIN};
use super::connection::Connection;
use tenure_engine::batch::delivery::Delivery;

struct Carrier {
    content: Option<Bytes>,
    delivery: Option<Delivery>,
    connection: Option<Connection>,
}

#[must_use]
pub fn carry(json: Vec<u8>, delivery: Delivery, connection: Option<Connection>) -> Response {
    let size = json.len();
    let body = Carrier { content: Some(Bytes::from(json)), delivery: Some(delivery), connection };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Never compress or refuse claims: a compressor could hold back the rest at the flush. Small
    // responses are safe anyway.
    if size as u64 >= COMPRESSED_MIN.min(COUNTED_MIN) {
        response.extensions_mut().insert(AsItIs);
    }
    response
}

impl http_body::Body for Carrier {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        let Some(content) = self.content.take() else { return Poll::Ready(None) };
        // The connection now owns the claims. They are delivered on flush, or requeued if the
        // connection ends first.
        if let (Some(delivery), Some(connection)) = (self.delivery.take(), &self.connection) {
            connection.deliver_with_next_flush(delivery);
        }
        Poll::Ready(Some(Ok(Frame::data(content))))
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.content.as_ref().map_or(0, |content| content.len() as u64))
    }
}
