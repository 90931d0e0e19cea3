//! Completions of shells and man pages, which packages install.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::command::Cli;
use super::failed;
use super::print::finish;

pub(super) fn completions(shell: Shell) -> ExitCode {
    finish(&completions_of(shell))
}

fn completions_of(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

pub(super) fn man(dir: &Path) -> ExitCode {
    match write_pages(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("cannot write man pages into {}: {error}", dir.display())),
    }
}

/// Writes a page for each command, such as `tenure-queue-pause.1`.
fn write_pages(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command(), dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_have_commands_and_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = completions_of(shell);
            for word in ["serve", "policy", "delivery", "database-url"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn each_command_has_man_page_with_variables() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("man1");
        write_pages(&dir).unwrap();
        for page in ["tenure", "tenure-task-run", "tenure-queue-policy-set"] {
            assert!(dir.join(page).with_extension("1").is_file(), "{page}");
        }
        let serve = std::fs::read_to_string(dir.join("tenure-serve.1")).unwrap();
        assert!(serve.contains("TENURE_LISTEN"), "{serve}");

        let file = dir.join("tenure.1");
        assert!(write_pages(&file).is_err());
        assert!(file.is_file());
    }
}
