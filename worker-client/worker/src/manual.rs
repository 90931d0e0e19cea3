//! Completions of shells and man pages, which packages install.

use std::io::{self, Write as _};
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::Cli;

pub fn completions(shell: Shell) -> io::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut visible(), "tenure-worker", &mut text);
    io::stdout().write_all(&text)
}

/// Writes a page for each command, such as `tenure-worker-run.1`.
pub fn man(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(visible(), dir)
}

/// Returns the command line without the internal commands, which completions would offer.
fn visible() -> Command {
    let whole = Cli::command();
    let shown: Vec<Command> = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let about = whole.get_about().cloned().unwrap_or_default();
    Command::new("tenure-worker").version(env!("CARGO_PKG_VERSION")).about(about).subcommands(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_commands_are_left_out() {
        let names: Vec<String> = visible().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert_eq!(names, ["run"]);
    }

    #[test]
    fn man_pages_name_variables() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("man1");
        man(&dir).unwrap();
        let run = std::fs::read_to_string(dir.join("tenure-worker-run.1")).unwrap();
        assert!(run.contains("TENURE_WORK_DIR"), "{run}");
        assert!(dir.join("tenure-worker.1").is_file());
    }
}
