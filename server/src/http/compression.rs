//! Large answers are compressed for who asks for it. What is small, and that is every answer of a hot operation, costs no
//! more than a look at its size; streams, and answers that carry claims, go out as they are.

use std::convert::Infallible;
use std::future::ready;

use axum::body::Body;
use http::header::{ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::{HeaderValue, Request, Response};
use http_body::Body as _;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::Predicate;

/// A smaller body goes out as it is, in bytes: it fits into the first packets of a connection.
const COMPRESSED_MIN: u64 = 16 << 10;

/// An answer with this extension is not compressed, whatever its size.
#[derive(Clone, Copy)]
pub struct AsItIs;

/// Compresses the answer if its reader says that it may be and it is worth it.
pub async fn compress(accepted: Option<&HeaderValue>, response: Response<Body>) -> Response<Body> {
    let Some(accepted) = accepted.filter(|_| is_worth_it(&response)) else { return response };
    let mut request = Request::new(());
    request.headers_mut().insert(ACCEPT_ENCODING, accepted.clone());
    let mut response = Some(response);
    let inner = service_fn(move |_| ready(Ok::<_, Infallible>(response.take().unwrap_or_default())));
    let layer = CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(Always);
    layer.layer(inner).oneshot(request).await.unwrap_or_default().map(Body::new)
}

/// Text of a known and large size. What has a tag or may be asked for in parts is a file, which keeps its bytes.
fn is_worth_it(response: &Response<Body>) -> bool {
    let headers = response.headers();
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_text = text.starts_with("application/json") || text.starts_with("text/");
    let is_file = [ETAG, ACCEPT_RANGES, CONTENT_RANGE].iter().any(|name| headers.contains_key(name));
    let size = response.body().size_hint().exact().unwrap_or_default();
    is_text && !is_file && size >= COMPRESSED_MIN && response.extensions().get::<AsItIs>().is_none()
}

/// What is compressed was decided before.
#[derive(Clone, Copy)]
struct Always;

impl Predicate for Always {
    fn should_compress<B: http_body::Body>(&self, _: &Response<B>) -> bool {
        true
    }
}
