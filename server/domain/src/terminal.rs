//! Output for terminals as plain text: without escape sequences and control characters.
//!
//! A sequence ends before the first character that cannot belong to it, so that a truncated one
//! hides no text. A command to the terminal (OSC, DCS) has free text, and ends with its line.

const BELL: char = '\u{7}';
const ESCAPE: char = '\u{1b}';
/// C1 controls as single characters.
const CSI: char = '\u{9b}';
const STRING_END: char = '\u{9c}';
const OSC: char = '\u{9d}';

/// The position in an escape sequence, kept between pieces of an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Terminal {
    #[default]
    Text,
    /// After ESC, and intermediate characters.
    Escape,
    /// Parameters of a control sequence, such as a colour.
    Csi,
    /// In a command to the terminal, such as a window's title.
    Command,
    /// After ESC within a command.
    CommandEscape,
}

impl Terminal {
    /// Reads the next character. True if it is text; line feeds and tabs are.
    pub fn shows(&mut self, character: char) -> bool {
        let (next, is_text) = self.step(character);
        *self = next;
        is_text
    }

    fn step(self, character: char) -> (Self, bool) {
        match self {
            Self::Text => Self::text(character),
            Self::Escape => match character {
                '[' => (Self::Csi, false),
                ']' | 'P' | 'X' | '^' | '_' => (Self::Command, false),
                ' '..='/' => (Self::Escape, false),
                '0'..='~' => (Self::Text, false),
                _ => Self::text(character),
            },
            Self::Csi => match character {
                ' '..='?' => (Self::Csi, false),
                '@'..='~' => (Self::Text, false),
                _ => Self::text(character),
            },
            Self::Command => match character {
                BELL | STRING_END => (Self::Text, false),
                ESCAPE => (Self::CommandEscape, false),
                '\n' => (Self::Text, true),
                _ => (Self::Command, false),
            },
            Self::CommandEscape => match character {
                '\\' => (Self::Text, false),
                _ => Self::Escape.step(character),
            },
        }
    }

    fn text(character: char) -> (Self, bool) {
        match character {
            ESCAPE => (Self::Escape, false),
            CSI => (Self::Csi, false),
            OSC => (Self::Command, false),
            _ => (Self::Text, matches!(character, '\n' | '\t') || !character.is_control()),
        }
    }
}

/// Returns a whole output as plain text.
pub fn plain(output: &str) -> String {
    let mut terminal = Terminal::default();
    output.chars().filter(|character| terminal.shows(*character)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sequences_are_dropped_and_text_is_kept() {
        for (output, text) in [
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}[38;2;1;2;3mtrue\u{1b}[m", "true"),
            ("\u{9b}1mbold", "bold"),
            ("\u{1b}[?25lhidden cursor", "hidden cursor"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;https://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{9d}0;title\u{9c}after", "after"),
            // tput sgr0.
            ("\u{1b}(B\u{1b}[mreset", "reset"),
            ("\u{1b}7saved\u{1b}8", "saved"),
            ("\u{1b}P1$r0m\u{1b}\\answer", "answer"),
            ("a\r\nb\tc\0d\u{7f}", "a\nb\tcd"),
            // Truncated and invalid ones.
            ("\u{1b}[31\nline", "\nline"),
            ("\u{1b}[31é", "é"),
            ("\u{1b}\nline", "\nline"),
            ("\u{1b}[1\u{1b}[2mtwo", "two"),
            ("\u{1b}]0;no end\nline", "\nline"),
            ("\u{1b}]0;no end\u{1b}[1mbold", "bold"),
            ("[31m without an escape", "[31m without an escape"),
            ("\u{1b}", ""),
        ] {
            assert_eq!(plain(output), text, "{output:?}");
        }
    }

    fn part() -> impl Strategy<Value = (String, String)> {
        // Text that no sequence before it can take in: after a complete one, any text.
        let text = "[\\PC\n\t]{0,20}".prop_map(|text| (text.clone(), text));
        let csi = "\u{1b}\\[[0-?]{0,8}[ -/]{0,2}[@-~]".prop_map(|csi| (csi, String::new()));
        let osc = "\u{1b}\\][ -~]{0,20}(\u{7}|\u{1b}\\\\)".prop_map(|osc| (osc, String::new()));
        prop_oneof![text, csi, osc]
    }

    proptest! {
        #[test]
        fn no_text_around_sequences_is_lost(parts in prop::collection::vec(part(), 0..12)) {
            let output: String = parts.iter().map(|(output, _)| output.as_str()).collect();
            let text: String = parts.iter().map(|(_, text)| text.as_str()).collect();
            prop_assert_eq!(plain(&output), text);
        }

        #[test]
        fn next_line_is_never_lost(start in "[\u{1b}\u{9b}\u{9d}\\[\\];0-9mBP \\PC]{0,20}") {
            let output = format!("{start}\nline");
            prop_assert!(plain(&output).ends_with("\nline"), "{:?}", plain(&output));
        }

        #[test]
        fn output_shows_no_control_characters(output in any::<String>()) {
            prop_assert!(plain(&output).chars().all(|one| matches!(one, '\n' | '\t') || !one.is_control()));
        }
    }
}
