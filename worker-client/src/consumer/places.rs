//! How many runs the session of a consumer may be given at a time. For the server a place is free when its run has ended; here it is taken
//! until the handler has ended too, which may go on: the task was cancelled, or the session of the run has ended.

use std::time::Duration;

use super::shared::Shared;

/// Most handlers stop in this time when their run is gone: the server is not told of them.
const STOPS_WITHIN: Duration = Duration::from_millis(250);

/// Counts the places for as long as the consumer runs. Never returns.
pub(super) async fn run(shared: &Shared) {
    loop {
        shared.places_changed.notified().await;
        tokio::time::sleep(STOPS_WITHIN).await;
        shared.count_places();
    }
}
