//! The table of docs/internals/behaviours.md names tests that exist.

use std::path::Path;

const SOURCES: [&str; 4] = ["tests/tests", "server", "openapi/src", "worker-client"];
/// Folders of builds and packages.
const LEFT_OUT: [&str; 2] = ["target", "node_modules"];

fn read_all(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !LEFT_OUT.contains(&name.as_str()) {
                read_all(&path, text);
            }
        } else if name.ends_with(".rs") || name.ends_with(".py") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn table_of_behaviours_names_existing_tests() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(top.join("docs/internals/behaviours.md")).unwrap();
    let mut sources = String::new();
    for folder in SOURCES {
        read_all(&top.join(folder), &mut sources);
    }
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| row |"));
    let mut named = 0;
    for row in rows {
        let tests: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test: {row}");
        for test in tests.into_iter().filter(|test| *test != "table") {
            let heads = [format!("fn {test}("), format!("def {test}(")];
            assert!(heads.iter().any(|head| sources.contains(head)), "{test} does not exist: {row}");
            named += 1;
        }
    }
    assert!(named > 100, "{named}");
}
