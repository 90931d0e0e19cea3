//! Gzip compression of large responses. Small responses, among them all of hot operations, cost
//! only a size check. Streams and responses with claims stay uncompressed. Shared documents are
//! compressed in advance.

use std::io::Write as _;

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, VARY,
};
use http::{HeaderValue, Response};
use http_body::Body as _;
use http_body_util::BodyExt as _;

use super::budget::Share;
use super::heavy::Heavy;

/// In bytes. Smaller bodies fit into the first packets of a connection.
pub const COMPRESSED_MIN: u64 = 16 << 10;
/// Quality 1, in thousandths.
const WEIGHT_MAX: u32 = 1000;

/// Response extension: never compress.
#[derive(Clone, Copy)]
pub struct AsItIs;

/// Response extension: the precompressed form, if worthwhile. The server owns these bytes.
#[derive(Clone, Debug)]
pub struct Zipped(pub Option<Bytes>);

/// Compresses the response if worthwhile and accepted. Returns true if this allocated a new body.
pub async fn compress(
    heavy: &Heavy,
    share: Share,
    accepted: Option<&HeaderValue>,
    mut response: Response<Body>,
) -> (Response<Body>, bool) {
    if !accepted.is_some_and(accepts_gzip) || !is_worth_it(&response) {
        return (response, false);
    }
    let made = response.extensions().get::<Zipped>().is_none();
    let zipped = match response.extensions().get::<Zipped>() {
        Some(Zipped(None)) => return (response, false),
        Some(Zipped(Some(zipped))) => zipped.clone(),
        None => {
            let plain = std::mem::take(response.body_mut()).collect().await.unwrap_or_default().to_bytes();
            let size = plain.len();
            Bytes::from(heavy.run_for(share, size, move || zip(&plain, Compression::fast())).await)
        }
    };
    *response.body_mut() = Body::from(zipped);
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(VARY, HeaderValue::from_name(ACCEPT_ENCODING));
    (response, made)
}

/// For documents that are sent many times.
pub fn zip_well(plain: &[u8]) -> Bytes {
    Bytes::from(zip(plain, Compression::default()))
}

fn zip(plain: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    let written = encoder.write_all(plain).and_then(|()| encoder.finish());
    written.expect("writing to memory does not fail")
}

/// True for text of a known, large size. A body with a tag or byte ranges is a file and stays
/// unchanged.
fn is_worth_it(response: &Response<Body>) -> bool {
    let headers = response.headers();
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_text = text.starts_with("application/json") || text.starts_with("text/");
    let is_file = [ETAG, ACCEPT_RANGES, CONTENT_RANGE].iter().any(|name| headers.contains_key(name));
    let size = response.body().size_hint().exact().unwrap_or_default();
    is_text && !is_file && size >= COMPRESSED_MIN && response.extensions().get::<AsItIs>().is_none()
}

/// True if the client accepts gzip and does not prefer the uncompressed form.
fn accepts_gzip(accepted: &HeaderValue) -> bool {
    let (mut gzip, mut any, mut plain) = (None, None, None);
    for one in accepted.to_str().unwrap_or_default().split(',') {
        let (name, parameters) = one.split_once(';').unwrap_or((one, ""));
        let weight = Some(weight(parameters));
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => gzip = weight,
            "*" => any = weight,
            "identity" => plain = weight,
            _ => {}
        }
    }
    let gzip = gzip.or(any).unwrap_or_default();
    gzip > 0 && gzip >= plain.unwrap_or_default()
}

/// Parses the weight in `q=0.5`, in thousandths; invalid weights are zero.
fn weight(parameters: &str) -> u32 {
    let given = parameters.split(';').filter_map(|parameter| parameter.split_once('='));
    let given = given.map(|(name, value)| (name.trim(), value.trim())).find(|(name, _)| name.eq_ignore_ascii_case("q"));
    let Some((_, text)) = given else { return WEIGHT_MAX };
    let (whole, thousandths) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{thousandths:0<3}");
    match (whole, digits.parse::<u32>()) {
        ("0", Ok(thousandths)) if digits.len() == 3 => thousandths,
        ("1", Ok(0)) => WEIGHT_MAX,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_encoding_decides_whether_gzip_is_accepted() {
        for (accepted, expected) in [
            ("gzip", true),
            ("GZip", true),
            ("x-gzip", true),
            ("gzip, deflate, br", true),
            ("br;q=1.0, gzip;q=0.001", true),
            ("*", true),
            ("br, *;q=0.1", true),
            ("identity;q=0.5, gzip", true),
            ("gzip; q=1.000", true),
            ("", false),
            ("br", false),
            ("identity", false),
            ("gzip;q=0", false),
            ("gzip;q=0.000, *", false),
            ("identity, gzip;q=0", false),
            ("identity, gzip;q=0.5", false),
            ("*;q=0", false),
            ("gzip;q=nonsense", false),
            ("gzip;q=0.0001", false),
            ("gzip;q=2", false),
        ] {
            assert_eq!(accepts_gzip(&HeaderValue::from_static(accepted)), expected, "{accepted:?}");
        }
    }
}
