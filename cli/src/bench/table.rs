//! Tables of at most 100 columns, which lose their least needed columns where a terminal is narrower.

use std::iter;

use crate::words;

/// The widest line.
pub(super) const WIDEST: usize = 100;

/// A column, and its cell in one row.
pub(super) struct Column {
    /// The heading over it and its neighbours, if there is one.
    over: &'static str,
    head: &'static str,
    unit: &'static str,
    width: usize,
    /// The columns with the largest number are dropped first; those with 0 stay.
    least: u8,
    cell: String,
}

impl Column {
    pub(super) fn new(
        head: &'static str,
        unit: &'static str,
        width: usize,
        least: u8,
        cell: impl ToString,
    ) -> Self {
        Self { over: "", head, unit, width, least, cell: cell.to_string() }
    }

    /// The same with a number, of which it shows as many of `digits` digits behind the point as it has room for.
    pub(super) fn number(self, value: f64, digits: usize) -> Self {
        Self { cell: fixed(value, digits, self.width), ..self }
    }

    pub(super) fn over(self, over: &'static str) -> Self {
        Self { over, ..self }
    }
}

/// The columns that fit into a line.
pub(super) fn fitting(mut columns: Vec<Column>, width: usize) -> Vec<Column> {
    while columns.iter().map(|column| column.width + 1).sum::<usize>() > width + 1
        && let Some(least) = columns.iter().map(|column| column.least).max().filter(|&least| least > 0)
    {
        columns.retain(|column| column.least < least);
    }
    columns
}

/// The lines over the rows, each behind a `#`.
pub(super) fn head(columns: &[Column]) -> Vec<String> {
    let mut over = String::new();
    for all in columns.chunk_by(|one, next| one.over == next.over && !one.over.is_empty()) {
        let width = all.iter().map(|column| column.width + 1).sum::<usize>() - 1;
        over += &format!("{:^width$} ", all[0].over);
    }
    let lines = [over, line(columns, |column| column.head), line(columns, |column| column.unit)];
    let written = lines.iter().filter(|line| !line.trim().is_empty());
    written.map(|line| format!("#{}", line.get(1..).unwrap_or_default().trim_end())).collect()
}

/// The row of their cells.
pub(super) fn row(columns: &[Column]) -> String {
    line(columns, |column| &column.cell)
}

fn line(columns: &[Column], of: impl Fn(&Column) -> &str) -> String {
    columns.iter().map(|column| format!("{:>1$}", of(column), column.width)).collect::<Vec<_>>().join(" ")
}

/// A number with as many of `digits` digits behind the point as `width` has room for.
pub(super) fn fixed(value: f64, digits: usize, width: usize) -> String {
    let mut texts = (0..=digits).rev().map(|digits| format!("{value:.digits$}"));
    texts.find(|text| text.len() <= width).unwrap_or_else(|| format!("{value:.0}"))
}

/// Lines of words behind `# `, as wide as they may be.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let begins = iter::once("# ").chain(iter::repeat("#   "));
    let lines = begins.zip(words::wrapped(text, width.saturating_sub(4)));
    lines.map(|(begin, line)| format!("{begin}{line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: usize) -> Vec<Column> {
        let time = |value| Column::new("time", "(us)", 8, 0, "").number(value, 1).over("in place");
        let columns = vec![
            Column::new("size", "(B)", 6, 0, 8),
            Column::new("type", "", 5, 2, "f32"),
            Column::new("root", "", 4, 1, -1),
            time(1.5),
            time(2.5),
        ];
        fitting(columns, width)
    }

    #[test]
    fn narrow_terminals_have_fewer_columns() {
        assert_eq!(row(&table(100)), "     8   f32   -1      1.5      2.5");
        assert_eq!(row(&table(30)), "     8   -1      1.5      2.5");
        assert_eq!(row(&table(24)), "     8      1.5      2.5");
        assert_eq!(row(&table(3)), "     8      1.5      2.5");
        let head = head(&table(24));
        assert_eq!(head, ["#          in place", "# size     time     time", "#  (B)     (us)     (us)"]);
    }

    #[test]
    fn numbers_fit_their_columns() {
        for (value, wanted) in [
            (0.5, "0.500"),
            (12.3456, "12.346"),
            (123.456, "123.46"),
            (123_456.7, "123457"),
            (1e7, "10000000"),
        ] {
            assert_eq!(fixed(value, 3, 6), wanted);
        }
    }

    #[test]
    fn words_are_wrapped() {
        assert_eq!(wrapped("one two, three four", 12), ["# one two,", "#   three", "#   four"]);
    }
}
