//! Lines of a log that contain a text.

use std::time::Duration;

use bytes::Bytes;
use maud::{Markup, html};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::lines::Text;
use crate::http::page::text;

const HITS_MAX: usize = 200;
/// Bytes of a line that are searched.
const LINE_MAX: usize = 16 << 10;
const SHOWN_BYTES: usize = 500;
const TIME_MAX: Duration = Duration::from_secs(5);

pub(super) struct Search {
    /// In lower case.
    wanted: String,
    text: Text,
    line: String,
    /// Complete lines before [`Self::line`].
    lines: u64,
    hits: Vec<(u64, String)>,
}

impl Search {
    pub(super) fn new(wanted: &str) -> Self {
        Self { wanted: wanted.to_lowercase(), text: Text::default(), line: String::new(), lines: 0, hits: Vec::new() }
    }

    /// Searches until the log ends, [`HITS_MAX`] lines are found, or [`TIME_MAX`] has passed. Returns
    /// true if the log has ended.
    pub(super) async fn run(&mut self, mut pieces: mpsc::Receiver<Bytes>) -> bool {
        let search = async {
            while let Some(piece) = pieces.recv().await {
                self.take(&piece);
                if self.hits.len() == HITS_MAX {
                    return false;
                }
            }
            if !self.line.is_empty() {
                self.end_line();
            }
            true
        };
        timeout(TIME_MAX, search).await.unwrap_or(false)
    }

    fn take(&mut self, bytes: &[u8]) {
        let text = self.text.take(bytes);
        for part in text.split_inclusive('\n') {
            let line = part.strip_suffix('\n');
            let (kept, _) = text::beginning(line.unwrap_or(part), LINE_MAX.saturating_sub(self.line.len()));
            self.line.push_str(kept);
            if line.is_some() {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        self.lines += 1;
        if self.hits.len() < HITS_MAX && self.line.to_lowercase().contains(&self.wanted) {
            let (shown, is_cut) = text::beginning(&self.line, SHOWN_BYTES);
            self.hits.push((self.lines, if is_cut { format!("{shown}…") } else { shown.to_owned() }));
        }
        self.line.clear();
    }

    /// Shows the lines; `log` is the address of the whole log. `is_whole` as [`Self::run`] returns.
    pub(super) fn shown(&self, log: &str, is_whole: bool) -> Markup {
        let count = |count: u64| text::count(i64::try_from(count).unwrap_or(i64::MAX));
        html! {
            p.dim {
                @if !is_whole { "The first " }
                (self.hits.len()) " of " (count(self.lines)) " lines" @if !is_whole { " read" } " · "
                a href=(log) { "all lines" }
            }
            @if !self.hits.is_empty() {
                div.log tabindex="0" { pre {
                    @for (number, line) in &self.hits { span { a href={ (log) "#L" (number) } { (number) } (line) "\n" } }
                } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn search(wanted: &str, log: &[u8], piece: usize) -> (bool, Search) {
        let (sender, pieces) = mpsc::channel(log.len().max(1));
        for bytes in log.chunks(piece) {
            sender.send(Bytes::copy_from_slice(bytes)).await.unwrap();
        }
        drop(sender);
        let mut search = Search::new(wanted);
        let is_whole = search.run(pieces).await;
        (is_whole, search)
    }

    #[tokio::test]
    async fn matching_lines_have_their_numbers() {
        let log = "one\nFÜNF <b>\ntwo\n\nfünf".as_bytes();
        for piece in [1, 3, log.len()] {
            let (is_whole, found) = search("fünf", log, piece).await;
            let expected = [(2, "FÜNF <b>".to_owned()), (5, "fünf".to_owned())];
            assert_eq!((is_whole, found.hits.as_slice(), found.lines), (true, &expected[..], 5));
            let shown = found.shown("/log?run=0", is_whole).into_string();
            assert!(shown.contains("<a href=\"/log?run=0#L2\">2</a>FÜNF &lt;b&gt;\n"), "{shown}");
        }
        assert!(search("x", log, 2).await.1.hits.is_empty());
        assert!(search("x", b"", 1).await.0);
    }

    #[tokio::test]
    async fn hits_and_lines_are_bounded() {
        let log = "same\n".repeat(HITS_MAX + 5);
        let (is_whole, found) = search("same", log.as_bytes(), 5).await;
        assert_eq!((is_whole, found.hits.len()), (false, HITS_MAX));
        let long = format!("{}end", "x".repeat(LINE_MAX));
        let (_, found) = search("end", long.as_bytes(), 1_000).await;
        assert!(found.hits.is_empty() && found.lines == 1);
        let (_, found) = search("x", long.as_bytes(), 1_000).await;
        assert_eq!(found.hits[0].1.len(), SHOWN_BYTES + "…".len());
    }
}
