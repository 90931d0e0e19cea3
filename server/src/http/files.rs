//! Documents shared by all callers, rendered and compressed once.

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

#[derive(Debug)]
pub struct File {
    content_type: HeaderValue,
    plain: Bytes,
    zipped: Zipped,
}

impl File {
    /// Compresses the document if worthwhile. Slow: call it only within [`Files::get`].
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

    #[must_use]
    pub fn response(&self) -> Response {
        let mut response = ([(CONTENT_TYPE, self.content_type.clone())], self.plain.clone()).into_response();
        response.extensions_mut().insert(self.zipped.clone());
        response
    }
}

#[derive(Clone)]
struct Made {
    file: Arc<File>,
    at_ms: i64,
}

#[derive(Clone, Copy, Debug)]
pub enum Life {
    /// Until the server stops.
    Forever,
    /// From the creation.
    Milliseconds {
        life: i64,
        /// By the server's clock.
        now: i64,
    },
}

impl Life {
    fn has_ended(self, made: &Made) -> bool {
        match self {
            Self::Forever => false,
            // A clock set back by more than `life` expires it too; a slightly older reading does
            // not.
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

/// Cache of requested documents. Only existing ones are cached, which bounds their number.
#[derive(Clone)]
pub struct Files {
    made: Arc<RwLock<HashMap<String, Made>>>,
    /// Serializes rendering; concurrent requests share one result.
    making: Arc<Mutex<()>>,
    tasks: TaskTracker,
    heavy: Heavy,
}

impl Files {
    /// `tasks` runs the rendering.
    #[must_use]
    pub fn new(tasks: &TaskTracker, heavy: &Heavy) -> Self {
        Self { made: Arc::default(), making: Arc::default(), tasks: tasks.clone(), heavy: heavy.clone() }
    }

    /// Returns a document, rendering it if needed. Rendering completes even if the caller
    /// disconnects, so callers that never wait cannot force repeated renderings. Requests queue
    /// without a task: at most one task runs, and disconnected callers leave nothing behind.
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
    async fn disconnected_caller_leaves_no_rendering_task() {
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
