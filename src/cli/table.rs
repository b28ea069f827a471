//! Plain tables for people: columns as wide as they need to be, numbers to the right.

/// Lays `rows` out under `head`. A column of whole numbers is aligned to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
    let columns: Vec<(usize, bool)> = head
        .iter()
        .enumerate()
        .map(|(column, title)| {
            let cells = rows.iter().map(|row| cell(row, column));
            let width = cells.clone().map(|text| text.chars().count()).max().unwrap_or(0).max(title.chars().count());
            let numeric = cells.clone().all(|text| text == "-" || text.parse::<i64>().is_ok());
            (width, numeric && !rows.is_empty())
        })
        .collect();
    let line = |cells: Vec<String>| {
        let padded: Vec<String> = cells
            .into_iter()
            .zip(&columns)
            .map(|(text, (width, right))| if *right { format!("{text:>width$}") } else { format!("{text:<width$}") })
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(head.iter().map(ToString::to_string).collect());
    for row in rows {
        text.push_str(&line((0..head.len()).map(|column| cell(row, column)).collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["phone".to_owned(), "1000".to_owned()], vec!["tv".to_owned(), "-5".to_owned()]];
        assert_eq!(table(&["sku", "left"], &rows), "sku    left\nphone  1000\ntv       -5\n");
    }
}
