//! Tables of at most 100 columns, which lose their least needed columns where a terminal is narrower.

use crate::words;

/// The widest line.
pub(super) const WIDEST: usize = 100;

/// A column.
pub(super) struct Column {
    /// The heading over it and its neighbours, if there is one.
    pub over: &'static str,
    pub head: &'static str,
    pub unit: &'static str,
    pub width: usize,
    /// The columns with the largest number are dropped first; those with 0 stay.
    pub least: u8,
}

impl Column {
    pub(super) const fn new(head: &'static str, unit: &'static str, width: usize, least: u8) -> Self {
        Self { over: "", head, unit, width, least }
    }

    pub(super) const fn over(self, over: &'static str) -> Self {
        Self { over, ..self }
    }
}

/// The columns that fit, each with its place among all.
pub(super) struct Table(Vec<(usize, Column)>);

impl Table {
    pub(super) fn new(columns: Vec<Column>, width: usize) -> Self {
        let mut shown: Vec<_> = columns.into_iter().enumerate().collect();
        while shown.iter().map(|(_, column)| column.width + 1).sum::<usize>() > width + 1
            && let Some(least) = shown.iter().map(|(_, column)| column.least).max().filter(|&least| least > 0)
        {
            shown.retain(|(_, column)| column.least < least);
        }
        Self(shown)
    }

    /// The lines over the rows, each behind a `#`.
    pub(super) fn head(&self) -> Vec<String> {
        let mut over = String::new();
        let columns = || self.0.iter().map(|(_, column)| column);
        let mut all = columns().peekable();
        while let Some(column) = all.next() {
            let mut width = column.width;
            while let Some(next) = all.next_if(|next| next.over == column.over && !column.over.is_empty()) {
                width += 1 + next.width;
            }
            over += &format!("{:^width$} ", column.over);
        }
        let line = |of: fn(&Column) -> &'static str| {
            columns().map(|it| format!("{:>1$}", of(it), it.width)).collect::<Vec<_>>().join(" ")
        };
        let lines = [over, line(|column| column.head), line(|column| column.unit)];
        let written = lines.iter().filter(|line| !line.trim().is_empty());
        written.map(|line| format!("#{}", line.get(1..).unwrap_or_default().trim_end())).collect()
    }

    /// A row of these cells, one for each column.
    pub(super) fn row(&self, cells: &[String]) -> String {
        let shown = self.0.iter().map(|(at, column)| format!("{:>1$}", cells[*at], column.width));
        shown.collect::<Vec<_>>().join(" ")
    }
}

/// A number with as many of `digits` digits behind the point as `width` has room for.
pub(super) fn fixed(value: f64, digits: usize, width: usize) -> String {
    let mut texts = (0..=digits).rev().map(|digits| format!("{value:.digits$}"));
    texts.find(|text| text.len() <= width).unwrap_or_else(|| format!("{value:.0}"))
}

/// Lines of words behind `# `, as wide as they may be.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let lines = words::wrapped(text, width.saturating_sub(4));
    lines
        .iter()
        .enumerate()
        .map(|(at, line)| if at == 0 { format!("# {line}") } else { format!("#   {line}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: usize) -> Table {
        let time = || Column::new("time", "(us)", 8, 0).over("in place");
        Table::new(
            vec![
                Column::new("size", "(B)", 6, 0),
                Column::new("type", "", 5, 2),
                Column::new("root", "", 4, 1),
                time(),
                time(),
            ],
            width,
        )
    }

    #[test]
    fn narrow_terminals_have_fewer_columns() {
        let cells = ["8", "f32", "-1", "1.5", "2.5"].map(str::to_owned);
        assert_eq!(table(100).row(&cells), "     8   f32   -1      1.5      2.5");
        assert_eq!(table(30).row(&cells), "     8   -1      1.5      2.5");
        assert_eq!(table(24).row(&cells), "     8      1.5      2.5");
        assert_eq!(table(3).row(&cells), "     8      1.5      2.5");
        let head = table(24).head();
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
