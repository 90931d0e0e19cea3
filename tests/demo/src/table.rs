//! Tables for the terminal.

pub fn print(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    say!("\n{title}");
    print_row(head, &widths);
    for row in rows {
        print_row(row, &widths);
    }
}

fn print_row(cells: &[impl AsRef<str>], widths: &[usize]) {
    let cell = |(column, (cell, width)): (usize, (&_, &usize))| {
        let text = AsRef::<str>::as_ref(cell);
        if column == 0 { format!("{text:<width$}") } else { format!("{text:>width$}") }
    };
    let line: Vec<String> = cells.iter().zip(widths).enumerate().map(cell).collect();
    say!("  {}", line.join("  ").trim_end());
}
