//! Ids of traces and spans, and the choice of recorded traces.
//!
//! The trace of a task has the task's id. Its spans have ids that follow from that id, so all
//! servers give a span the same id, and none is stored.

use uuid::Uuid;

/// Random bits of a trace id that decide about recording, as in the W3C's Trace Context.
const RANDOM_BITS: u32 = 56;
/// Length of a header `traceparent` of version 00.
const TRACEPARENT_LEN: usize = 55;

/// A span and its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    pub trace: Uuid,
    pub span: u64,
}

impl SpanContext {
    /// Reads a header `traceparent`. Later versions may be longer.
    #[must_use]
    pub fn from_traceparent(text: &str) -> Option<Self> {
        let lower_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_long = text.len() > TRACEPARENT_LEN;
        if !text.is_ascii() || text.len() < TRACEPARENT_LEN || (is_long && text.as_bytes()[TRACEPARENT_LEN] != b'-') {
            return None;
        }
        let mut parts = text[..TRACEPARENT_LEN].split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let lengths = [version.len(), trace.len(), span.len(), flags.len()];
        if lengths != [2, 32, 16, 2] || ![version, trace, span, flags].into_iter().all(lower_hex) {
            return None;
        }
        if version == "ff" || (version == "00" && is_long) {
            return None;
        }
        let (trace, span) = (Uuid::try_parse(trace).ok()?, u64::from_str_radix(span, 16).ok()?);
        (!trace.is_nil() && span != 0).then_some(Self { trace, span })
    }

    /// Returns the header `traceparent`.
    #[must_use]
    pub fn to_traceparent(self, is_sampled: bool) -> String {
        format!("00-{}-{:016x}-{:02x}", self.trace.simple(), self.span, u8::from(is_sampled))
    }
}

/// Spans of a task; all but the first with the number of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskSpan {
    /// The root of the trace.
    Submit,
    /// From pending to claimed.
    Wait(u16),
    /// While a worker held the run.
    Run(u16),
    /// The end of the run.
    Report(u16),
}

impl TaskSpan {
    /// Returns the context of the span: the first 48 bits of the task's id, and 16 bits for the
    /// span.
    #[must_use]
    pub fn of(self, task: Uuid) -> SpanContext {
        let of_run = |run: u16| 4 * (u64::from(run) + 1);
        let own = match self {
            Self::Submit => 1,
            Self::Wait(run) => of_run(run),
            Self::Run(run) => of_run(run) + 1,
            Self::Report(run) => of_run(run) + 2,
        };
        SpanContext { trace: task, span: (task.as_u64_pair().0 >> 16 << 16) | (own & 0xffff) }
    }
}

/// Decides by the id of a trace whether it is recorded, so that all servers agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    /// Ids with smaller random bits are not recorded.
    threshold: u64,
}

impl Sampler {
    /// `ratio` is the recorded part of all traces, from 0 to 1.
    #[must_use]
    pub fn new(ratio: f64) -> Self {
        let all = 1_u64 << RANDOM_BITS;
        Self { threshold: ((1.0 - ratio.clamp(0.0, 1.0)) * all as f64) as u64 }
    }

    #[must_use]
    pub fn samples(self, trace: Uuid) -> bool {
        trace.as_u64_pair().1 & ((1 << RANDOM_BITS) - 1) >= self.threshold
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const TASK: &str = "f5ddc10b-4d8c-4329-a566-f0b8b2c3d4e5";

    fn task() -> Uuid {
        TASK.parse().unwrap()
    }

    #[test]
    fn spans_of_a_task_have_different_ids() {
        let runs = (0..=1000).flat_map(|run| [TaskSpan::Wait(run), TaskSpan::Run(run), TaskSpan::Report(run)]);
        let spans: Vec<SpanContext> = runs.chain([TaskSpan::Submit]).map(|span| span.of(task())).collect();
        let ids: BTreeSet<u64> = spans.iter().map(|span| span.span).collect();
        assert_eq!(ids.len(), spans.len());
        assert!(spans.iter().all(|span| span.trace == task() && span.span != 0));
        assert_eq!(
            TaskSpan::Run(0).of(task()).to_traceparent(true),
            "00-f5ddc10b4d8c4329a566f0b8b2c3d4e5-f5ddc10b4d8c0005-01"
        );
    }

    #[test]
    fn traceparent_is_read_as_written() {
        let context = SpanContext { trace: task(), span: 0x10 };
        for is_sampled in [true, false] {
            assert_eq!(SpanContext::from_traceparent(&context.to_traceparent(is_sampled)), Some(context));
        }
        let later = format!("cc{}-more", &context.to_traceparent(true)[2..]);
        assert_eq!(SpanContext::from_traceparent(&later), Some(context));
    }

    #[test]
    fn invalid_traceparent_is_ignored() {
        for text in [
            "",
            "00",
            "00-f5ddc10b4d8c4329a566f0b8b2c3d4e5-0000000000000010-01-more",
            "00-f5ddc10b4d8c4329a566f0b8b2c3d4e5-0000000000000010-01 ",
            "cc-f5ddc10b4d8c4329a566f0b8b2c3d4e5-0000000000000010-01more",
            "ff-f5ddc10b4d8c4329a566f0b8b2c3d4e5-0000000000000010-01",
            "00-F5DDC10B4D8C4329A566F0B8B2C3D4E5-0000000000000010-01",
            "00-f5ddc10b4d8c4329a566f0b8b2c3d4e5-0000000000000000-01",
            "00-00000000000000000000000000000000-0000000000000010-01",
            "00-f5ddc10b-d8c4329a566f0b8b2c3d4e5-0000000000000010-01",
            "00-f5ddc10b4d8c4329a566f0b8b2c3d4e5-00000000000000é-01",
        ] {
            assert_eq!(SpanContext::from_traceparent(text), None, "{text}");
        }
    }

    /// The fixed bits of a version 4 UUID must not decide.
    #[test]
    fn sampler_takes_its_share_of_task_ids() {
        let random = |n: u128| ((n << 113) | (n << 42)).to_be_bytes();
        let ids: Vec<Uuid> = (0..1 << 14).map(|n| uuid::Builder::from_random_bytes(random(n)).into_uuid()).collect();
        let count = |ratio: f64| ids.iter().filter(|id| Sampler::new(ratio).samples(**id)).count();
        assert_eq!([count(0.0), count(1.0)], [0, ids.len()]);
        let recorded = |ratio: f64| ids.iter().filter(move |id| Sampler::new(ratio).samples(**id));
        assert!(recorded(0.2).all(|id| Sampler::new(0.5).samples(*id)), "a larger ratio records the same traces too");
        assert_eq!(count(0.5), ids.len() / 2);
    }
}
