//! The complete log of a run, as the worker uploaded it.

use async_compression::tokio::bufread::GzipDecoder;
use bytes::Bytes;
use tenure_api::live_log::{BACKING_LOG, SERVER_MARK};
use tokio::io::{AsyncReadExt as _, BufReader};
use tokio::sync::mpsc;

use crate::http::api::artifacts::reading::scopes_to_read;
use crate::http::page::error::PageError;
use crate::http::page::state::Site;
use crate::http::page::visit::{Visit, lookup_failed};
use tenure_domain::artifact::{Details, GET_URL_LIFE};
use tenure_engine::blobs::{BlobError, BlobName, Generation, Reader};
use tenure_engine::ops::create_artifact::RunRef;
use tenure_store::{artifacts, clock};

/// Bytes of the text that a page shows. The browser keeps the whole text in memory.
const SHOWN_MAX: usize = 16 << 20;
const PIECE_BYTES: usize = 16 << 10;

pub(super) struct Stored {
    pub(super) url: String,
    pub(super) generation: Generation,
}

/// Returns the complete log, if it exists and the visitor may read it.
pub(super) async fn find(app: &Site, visit: &Visit, of: RunRef) -> Result<Option<Stored>, PageError> {
    if !visit.may(scopes_to_read(BACKING_LOG)) {
        return Ok(None);
    }
    let mut conn = app.engine.pool.acquire().await?;
    let now = clock::get_now(&mut conn).await?;
    let Some((seq, run)) = artifacts::find_run(&mut conn, of.task, Some(of.run)).await? else { return Ok(None) };
    let stored = artifacts::find(&mut conn, seq, run, BACKING_LOG).await?;
    drop(conn);
    let is_whole = |artifact: &tenure_domain::artifact::Artifact| {
        matches!(artifact.details, Details::S3) && artifact.expires > now
    };
    let Some(stored) = stored.filter(|stored| is_whole(&stored.artifact)) else { return Ok(None) };
    let blob = BlobName::artifact(of.task, of.run, BACKING_LOG);
    // An upload without bytes is unfinished, perhaps for ever.
    let Some(generation) = app.engine.blobs.current(&app.engine.pool, &blob).await? else { return Ok(None) };
    let anonymous = app.intake.authenticator.anonymous().await.map_err(|error| lookup_failed(&error))?;
    let url = if anonymous.authorize(&scopes_to_read(BACKING_LOG)).is_ok() {
        app.engine.blobs.plain_url(&blob)
    } else {
        let end = (now + GET_URL_LIFE).min(stored.artifact.expires);
        app.engine.blobs.get_url(&blob, end.timestamp_millis())
    };
    Ok(Some(Stored { url, generation }))
}

/// Reads the beginning of the text. None with an encoding that only browsers decode.
pub(super) async fn read(app: &Site, generation: &Generation) -> Result<Option<mpsc::Receiver<Bytes>>, BlobError> {
    let size = generation.blob.size.unsigned_abs();
    let is_packed = match generation.blob.content_encoding.as_deref() {
        None | Some("" | "identity") => false,
        Some("gzip") => true,
        Some(_) => return Ok(None),
    };
    let stored = app.engine.blobs.read(generation, 0..size).await?;
    let reader: Reader = if is_packed {
        let mut decoder = GzipDecoder::new(BufReader::with_capacity(PIECE_BYTES, stored));
        decoder.multiple_members(true);
        Box::new(decoder)
    } else {
        stored
    };
    let (sender, pieces) = mpsc::channel(1);
    app.tasks.spawn(async move {
        tokio::select! {
            () = pass_on(reader, &sender) => {}
            () = sender.closed() => {}
        }
    });
    Ok(Some(pieces))
}

/// Sends up to [`SHOWN_MAX`] bytes, and a line if there are more.
async fn pass_on(mut reader: Reader, pieces: &mpsc::Sender<Bytes>) {
    let mut left = SHOWN_MAX;
    let mut piece = vec![0; PIECE_BYTES];
    let end = loop {
        match reader.read(&mut piece).await {
            Ok(0) => return,
            Ok(_) if left == 0 => break "the page ends here: download the log for the rest",
            Ok(read) => {
                let shown = read.min(left);
                left -= shown;
                if pieces.send(Bytes::copy_from_slice(&piece[..shown])).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a stored log could not be read to its end");
                break "the rest could not be read: download the log";
            }
        }
    };
    let _ = pieces.send(Bytes::from(format!("\n{SERVER_MARK}{end}\n"))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sent(bytes: Vec<u8>) -> Vec<u8> {
        let (sender, mut pieces) = mpsc::channel(1);
        let reading = tokio::spawn(async move { pass_on(Box::new(std::io::Cursor::new(bytes)), &sender).await });
        let mut all = Vec::new();
        while let Some(piece) = pieces.recv().await {
            assert!(piece.len() <= PIECE_BYTES);
            all.extend_from_slice(&piece);
        }
        reading.await.unwrap();
        all
    }

    #[tokio::test]
    async fn long_log_ends_with_a_line() {
        assert_eq!(sent(b"whole".to_vec()).await, b"whole");
        assert_eq!(sent(vec![b'x'; SHOWN_MAX]).await.len(), SHOWN_MAX);
        let cut = sent(vec![b'x'; SHOWN_MAX + 1]).await;
        assert!(cut.len() > SHOWN_MAX && cut[SHOWN_MAX..].starts_with(b"\n[tenure] the page ends here"));
    }
}
