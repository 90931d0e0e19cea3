//! Documents that are the same for every caller: made and compressed once.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::compression::{COMPRESSED_MIN, Zipped, zip_well};
use super::error::ApiError;
use super::heavy::{Heavy, LARGE_MIN};

/// A document, plain and compressed.
#[derive(Debug)]
pub struct File {
    content_type: HeaderValue,
    plain: Bytes,
    zipped: Zipped,
}

impl File {
    /// Compresses a document, if that is worth it. Takes long: only for [`Files::get`].
    #[must_use]
    pub fn new(content_type: &str, text: impl Into<Bytes>) -> Self {
        let plain = text.into();
        let zipped = (plain.len() as u64 >= COMPRESSED_MIN).then(|| zip_well(&plain));
        let content_type = HeaderValue::from_str(content_type);
        Self {
            content_type: content_type.unwrap_or(HeaderValue::from_static("application/octet-stream")),
            zipped: Zipped(zipped.filter(|zipped| zipped.len() < plain.len())),
            plain,
        }
    }

    /// The answer that has it; it is sent compressed to clients that accept that.
    #[must_use]
    pub fn response(&self) -> Response {
        let mut response = ([(CONTENT_TYPE, self.content_type.clone())], self.plain.clone()).into_response();
        response.extensions_mut().insert(self.zipped.clone());
        response
    }
}

/// A document and when it was made, by the server's clock.
#[derive(Clone)]
struct Made {
    file: Arc<File>,
    at_ms: i64,
}

/// How long a document stays as it is.
#[derive(Clone, Copy, Debug)]
pub enum Life {
    /// As long as the server runs.
    Forever,
    /// So many milliseconds from when it was made; the clock shows this now.
    Milliseconds {
        /// How long.
        life: i64,
        /// The server's clock.
        now: i64,
    },
}

impl Life {
    fn has_ended(self, made: &Made) -> bool {
        match self {
            Self::Forever => false,
            // A clock that was set back ends it too, but not one that was read just before another caller's.
            Self::Milliseconds { life, now } => {
                !(made.at_ms.saturating_sub(life)..made.at_ms.saturating_add(life)).contains(&now)
            }
        }
    }

    fn begins_ms(self) -> i64 {
        match self {
            Self::Forever => 0,
            Self::Milliseconds { now, .. } => now,
        }
    }
}

/// The documents that were requested since the server started. Only those that exist are cached, so that their number is
/// bounded.
#[derive(Clone)]
pub struct Files {
    made: Arc<RwLock<HashMap<String, Made>>>,
    /// One is rendered at a time, and concurrent requests for it get the same one.
    making: Arc<Mutex<()>>,
    tasks: TaskTracker,
    heavy: Heavy,
}

impl Files {
    /// None yet. They are made by tasks of this tracker, in turns with other heavy work.
    #[must_use]
    pub fn new(tasks: &TaskTracker, heavy: &Heavy) -> Self {
        Self { made: Arc::default(), making: Arc::default(), tasks: tasks.clone(), heavy: heavy.clone() }
    }

    /// The document of this name, made now if it must be. Once begun it is rendered to its end even if its caller has
    /// disconnected, so that callers that never wait cannot have it rendered again and again. Before that a request waits
    /// for its turn by itself: there is one task at most, and callers that disconnect leave nothing behind.
    ///
    /// # Errors
    /// If it cannot be made.
    pub async fn get<M>(&self, name: String, life: Life, make: M) -> Result<Option<Arc<File>>, ApiError>
    where
        M: FnOnce() -> Result<Option<File>, String> + Send + 'static,
    {
        if let Some(file) = self.find(&name, life) {
            return Ok(Some(file));
        }
        let turn = Arc::clone(&self.making).lock_owned().await;
        if let Some(file) = self.find(&name, life) {
            return Ok(Some(file));
        }
        let files = self.clone();
        let making = self.tasks.spawn(async move {
            let _turn = turn;
            files.make_one(name, life, make).await
        });
        making.await.unwrap_or_else(|error| Err(ApiError::internal(&error.to_string())))
    }

    fn find(&self, name: &str, life: Life) -> Option<Arc<File>> {
        let made = self.made.read().unwrap_or_else(PoisonError::into_inner);
        made.get(name).filter(|made| !life.has_ended(made)).map(|made| Arc::clone(&made.file))
    }

    async fn make_one<M>(&self, name: String, life: Life, make: M) -> Result<Option<Arc<File>>, ApiError>
    where
        M: FnOnce() -> Result<Option<File>, String> + Send + 'static,
    {
        let file = self.heavy.run(LARGE_MIN, make).await.map_err(|error| ApiError::internal(&error))?;
        let Some(file) = file.map(Arc::new) else { return Ok(None) };
        let made = Made { file: Arc::clone(&file), at_ms: life.begins_ms() };
        self.made.write().unwrap_or_else(PoisonError::into_inner).insert(name, made);
        Ok(Some(file))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn callers_that_do_not_wait_for_their_turn_leave_no_task_behind() {
        let tasks = TaskTracker::new();
        let files = Files::new(&tasks, &Heavy::new());
        let turn = Arc::clone(&files.making).lock_owned().await;
        for number in 0..20 {
            let mut asking = pin!(files.get(format!("/docs/{number}"), Life::Forever, || Ok(None)));
            assert!(futures_util::poll!(asking.as_mut()).is_pending(), "another document is being made");
        }
        assert_eq!(tasks.len(), 0);
        drop(turn);
        let name = || "/docs/a".to_owned();
        let made = files.get(name(), Life::Forever, || Ok(Some(File::new("text/plain", "a")))).await.unwrap();
        let again = files.get(name(), Life::Forever, || Err("it is made once".to_owned())).await.unwrap();
        assert!(Arc::ptr_eq(&made.unwrap(), &again.unwrap()));
    }
}
