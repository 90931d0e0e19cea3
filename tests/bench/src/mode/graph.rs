//! The whole life of tasks in groups of 100, where each task depends on the one before. Every lane
//! creates ahead. So a task is created while its dependency is unresolved, and becomes pending with
//! the report of that dependency.

use tenure_api::ids::SlugId;

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

const GROUP_TASKS: u64 = 100;
const AHEAD: usize = 10;

pub(crate) struct Graph {
    created: u64,
    last: Option<SlugId>,
}

impl Mode for Graph {
    const STEPS: &'static [&'static str] = &["create", "claim", "report"];

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        let mut graph = Self { created: 0, last: None };
        for _ in 1..AHEAD {
            graph.create(lane, None).await?;
        }
        Ok(graph)
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        self.create(lane, Some(0)).await?;
        let claims = lane.claim(1, 1).await?;
        for claim in &claims {
            lane.complete(2, claim).await?;
        }
        Ok(claims.len() as u64)
    }
}

impl Graph {
    async fn create(&mut self, lane: &mut Lane, step: Option<usize>) -> Result<(), BenchError> {
        if self.created.is_multiple_of(GROUP_TASKS) {
            lane.use_a_new_group();
            self.last = None;
        }
        let task = lane.create_after(step, self.last.as_slice()).await?;
        self.created += 1;
        self.last = Some(task);
        Ok(())
    }
}
