//! Sections of a group's page: failures first, completed tasks last.

use tenure_api::states::TaskState;
use tenure_store::page::Member;

/// In the order of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// Failed tasks and exceptions.
    Failed,
    Running,
    Waiting,
    /// Cannot run, because a required task failed.
    Never,
    Unscheduled,
    Completed,
}

impl Section {
    pub(super) const ALL: [Self; 6] =
        [Self::Failed, Self::Running, Self::Waiting, Self::Never, Self::Unscheduled, Self::Completed];

    fn of(state: TaskState, is_blocked: bool) -> Self {
        match state {
            TaskState::Failed | TaskState::Exception => Self::Failed,
            TaskState::Running => Self::Running,
            TaskState::Pending => Self::Waiting,
            TaskState::Unscheduled if is_blocked => Self::Never,
            TaskState::Unscheduled => Self::Unscheduled,
            TaskState::Completed => Self::Completed,
        }
    }

    /// In the URL.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Never => "never",
            Self::Unscheduled => "unscheduled",
            Self::Completed => "completed",
        }
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.word() == word)
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Failed => "Failed",
            Self::Running => "Running",
            Self::Waiting => "Waiting for a worker",
            Self::Never => "Can never run",
            Self::Unscheduled => "Waiting for other tasks",
            Self::Completed => "Completed",
        }
    }
}

/// Sorts tasks into sections. Each keeps their order.
pub(super) fn sort(members: &[Member], is_blocked: impl Fn(i64) -> bool) -> Vec<(Section, Vec<Member>)> {
    let mut sections: Vec<_> = Section::ALL.into_iter().map(|section| (section, Vec::new())).collect();
    for member in members {
        let of = Section::of(member.state, is_blocked(member.seq));
        for (_, tasks) in sections.iter_mut().filter(|(section, _)| *section == of) {
            tasks.push(*member);
        }
    }
    sections
}

/// Divides `most` rows among sections of these sizes: first up to `each` for every section, then
/// the rest in order.
pub(super) fn allot(sizes: &[usize], most: usize, each: usize) -> Vec<usize> {
    let (mut rows, mut left) = (vec![0; sizes.len()], most);
    for at_most in [each, most] {
        for (row, &size) in rows.iter_mut().zip(sizes) {
            let more = size.min(at_most).saturating_sub(*row).min(left);
            *row += more;
            left -= more;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn tasks_are_sorted_by_urgency() {
        let member = |(seq, &state): (i64, &TaskState)| Member { id: Uuid::nil(), seq, state };
        let mut members: Vec<Member> = (0..).zip(TaskState::ALL).map(member).collect();
        members.push(member((6, &TaskState::Unscheduled)));
        let sections = sort(&members, |seq| seq == 6);
        let seqs = |tasks: &[Member]| tasks.iter().map(|task| task.seq).collect::<Vec<_>>();
        let sorted: Vec<_> = sections.iter().map(|(section, tasks)| (section.word(), seqs(tasks))).collect();
        let expected = [
            ("failed", vec![4, 5]),
            ("running", vec![2]),
            ("waiting", vec![1]),
            ("never", vec![6]),
            ("unscheduled", vec![0]),
            ("completed", vec![3]),
        ];
        assert_eq!(sorted, expected);
    }

    #[test]
    fn words_of_sections_are_parsed() {
        for section in Section::ALL {
            assert_eq!(Section::parse(section.word()), Some(section));
        }
        assert_eq!(Section::parse("<script>"), None);
    }

    #[test]
    fn each_section_gets_rows() {
        assert_eq!(allot(&[100, 3, 0, 100], 25, 5), [17, 3, 0, 5]);
        assert_eq!(allot(&[2, 2], 25, 5), [2, 2]);
        assert_eq!(allot(&[100; 6], 12, 5), [5, 5, 2, 0, 0, 0]);
        assert!(allot(&[], 25, 5).is_empty());
    }
}
