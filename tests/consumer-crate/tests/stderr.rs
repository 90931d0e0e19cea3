//! Lines on stderr of a program without a `tracing` subscriber.

use std::process::Command;

/// Runs the program `failing_job`.
fn stderr(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_failing_job")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn failed_job_is_a_line_without_subscriber() {
    let text = stderr(&[]);
    let line = "tenure: task 9HrBC1jMQ3KlZw4CssPUeQ run 0: the run ended as failed: no such mailbox";
    assert!(text.lines().any(|said| said == line), "{text}");
    let text = stderr(&["with-subscriber"]);
    assert!(!text.contains("tenure:"), "{text}");
}
