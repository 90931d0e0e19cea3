//! How commands print what they found: for people, or as JSON.

/// JSON over several lines.
pub(super) fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).expect("what is printed is text, dates and lists")
}

/// Columns as wide as what is in them; the last one as it is.
pub(super) fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..N - 1).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate().map(|(column, cell)| match widths.get(column) {
            Some(&width) => format!("{cell:width$}  "),
            None => cell.clone(),
        });
        cells.collect::<String>() + "\n"
    };
    rows.iter().map(line).collect()
}
