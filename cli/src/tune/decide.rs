//! Turns measurements into the rows of a tuning table.

use unisono_schedule::{
    Collective,
    select::{Choice, table::Row},
};

/// Another choice must be this many times faster than that of the size before to replace it. A smaller difference may be noise, and
/// would make the table alternate.
const BETTER: f64 = 1.03;

/// The measurements of a collective of one size.
pub(super) struct Measured {
    /// The size as a table counts it.
    pub(super) bytes: usize,
    /// Choices and the time of each (s).
    pub(super) ways: Vec<(Choice, f64)>,
}

/// The rows for sizes in ascending order. The limit between two sizes with different choices is their middle on a logarithmic scale;
/// the last row has no limit.
pub(super) fn rows(collective: Collective, ranks: usize, sizes: &[Measured]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut before = 0;
    for Measured { bytes, ways } in sizes {
        let Some(&(best, seconds)) = ways.iter().min_by(|one, other| one.1.total_cmp(&other.1)) else {
            continue;
        };
        let stays = rows.last().is_some_and(|row| {
            let now = ways.iter().find(|(way, _)| same(way, &row.choice(ranks, *bytes)));
            now.is_some_and(|(_, time)| *time <= seconds * BETTER)
        });
        if !stays {
            if let Some(row) = rows.last_mut() {
                row.bytes = middle(before, *bytes);
            }
            rows.push(Row::new(collective, ranks, usize::MAX, best));
        }
        before = *bytes;
    }
    rows
}

/// True if two choices are the same row of a table.
pub(super) fn same(one: &Choice, other: &Choice) -> bool {
    let key = |it: &Choice| (it.algorithm.code, it.chunk_bytes, it.lanes);
    key(one) == key(other)
}

/// The geometric mean, rounded down.
fn middle(low: usize, high: usize) -> usize {
    let middle = (low as u128 * high as u128).isqrt();
    usize::try_from(middle).unwrap_or(usize::MAX).max(low)
}

#[cfg(test)]
mod tests {
    use unisono_schedule::{algorithm::find, select::table::Table};

    use super::*;

    fn way(name: &str, chunk_bytes: usize, seconds: f64) -> (Choice, f64) {
        (Choice { algorithm: find(name).unwrap(), chunk_bytes, lanes: 1 }, seconds)
    }

    fn table(sizes: &[(usize, &[(Choice, f64)])]) -> String {
        let sizes: Vec<_> =
            sizes.iter().map(|&(bytes, ways)| Measured { bytes, ways: ways.to_vec() }).collect();
        Table::new(rows(Collective::AllReduce, 4, &sizes)).to_string()
    }

    #[test]
    fn borders_are_in_the_middle_and_the_last_row_has_none() {
        let text = table(&[
            (8, &[way("direct", 64, 1.0), way("ring", 64, 2.0)]),
            (16, &[way("direct", 64, 1.0), way("ring", 64, 2.0)]),
            (1024, &[way("direct", 64, 2.0), way("ring", 64, 1.0)]),
            (4096, &[way("direct", 64, 4.0), way("ring", 64, 1.0)]),
        ]);
        assert_eq!(
            text,
            "unisono tuning 1\nall_reduce ranks 4 bytes 128 direct chunk 64 lanes 1\n\
             all_reduce ranks 4 bytes any ring chunk 64 lanes 1\n"
        );
    }

    #[test]
    fn what_is_hardly_faster_changes_nothing() {
        let message = table(&[
            (8, &[way("direct", 64, 1.0), way("ring", 64, 1.02)]),
            (16, &[way("direct", 64, 1.02), way("ring", 64, 1.0)]),
            (32, &[way("direct", 64, 1.0), way("ring", 64, 1.02)]),
        ]);
        assert_eq!(message.lines().count(), 2, "{message}");
        // A chunk is a part of the choice; and a choice that is no candidate any more gives way.
        let message = table(&[
            (8, &[way("direct", 64, 1.0)]),
            (16, &[way("direct", 128, 1.0), way("direct", 64, 1.04)]),
            (32, &[way("direct", 256, 1.0)]),
        ]);
        assert_eq!(message.lines().count(), 4, "{message}");
    }

    #[test]
    fn any_size_has_a_middle() {
        for (low, high) in [(0, 0), (0, 8), (1, 2), (usize::MAX - 1, usize::MAX)] {
            assert!((low..=high).contains(&middle(low, high)));
        }
        assert!(rows(Collective::Barrier, 2, &[]).is_empty());
    }
}
