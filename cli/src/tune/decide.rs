//! Turns measurements into the rows of a tuning table.

use unisono_schedule::{
    Collective,
    select::{
        Choice,
        shown::PlainMemory,
        table::{Ranks, Row, ShownRow},
    },
};

/// Another choice must be this many times faster than that of the size before to replace it. A smaller difference may be noise, and
/// would make the table alternate.
const BETTER: f64 = 1.03;

/// The measurements of a collective of one size.
pub(super) struct Measured {
    /// The size as a table counts it.
    pub(super) bytes: usize,
    /// The bytes that a rank gives to all others together.
    pub(super) given: usize,
    /// Choices and the time of each (s).
    pub(super) ways: Vec<(Choice, f64)>,
}

/// The rows of messages for sizes in ascending order.
pub(super) fn rows(collective: Collective, ranks: usize, sizes: &[Measured]) -> Vec<Row> {
    let sizes = sizes.iter().map(|it| {
        let messages = it.ways.iter().filter(|(choice, _)| way(choice) == PlainMemory::Messages);
        (it.bytes, messages.copied().collect())
    });
    let row = |(bytes, choice)| Row::new(collective, ranks, bytes, choice);
    ranges(sizes, same).into_iter().map(row).collect()
}

/// The rows about plain memory for sizes in ascending order: none if the ranks share no slots.
pub(super) fn shown(collective: Collective, ranks: usize, sizes: &[Measured]) -> Vec<ShownRow> {
    let sizes = sizes.iter().filter(|it| it.ways.iter().any(|(way, _)| way.shown.is_some()));
    let sizes = sizes.map(|it| {
        let ways = it.ways.iter().map(|(choice, time)| (way(choice), *time));
        (it.given, ways.collect())
    });
    let ranks = Ranks::Exactly(ranks);
    let row = |(bytes, way)| ShownRow { collective, ranks, bytes, way };
    ranges(sizes, |one, other| one == other).into_iter().map(row).collect()
}

/// The fastest ways, and the most bytes of each. The limit between two sizes with different ways is their middle on a logarithmic scale;
/// the last one has no limit.
fn ranges<K: Copy>(
    sizes: impl Iterator<Item = (usize, Vec<(K, f64)>)>,
    same: impl Fn(&K, &K) -> bool,
) -> Vec<(usize, K)> {
    let mut ranges: Vec<(usize, K)> = Vec::new();
    let mut before = 0;
    for (bytes, ways) in sizes {
        let Some(&(best, seconds)) = ways.iter().min_by(|one, other| one.1.total_cmp(&other.1)) else {
            continue;
        };
        let stays = ranges.last().is_some_and(|(_, taken)| {
            ways.iter().any(|(way, time)| same(way, taken) && *time <= seconds * BETTER)
        });
        if !stays {
            if let Some((most, _)) = ranges.last_mut() {
                *most = middle(before, bytes);
            }
            ranges.push((usize::MAX, best));
        }
        before = bytes;
    }
    ranges
}

/// How elements of plain memory move.
pub(super) fn way(choice: &Choice) -> PlainMemory {
    choice.shown.unwrap_or(PlainMemory::Messages)
}

/// True if two choices of messages are the same row of a table.
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
        (Choice { algorithm: find(name).unwrap(), chunk_bytes, lanes: 1, shown: None }, seconds)
    }

    fn through_slots(bytes: usize, seconds: f64) -> (Choice, f64) {
        let (choice, _) = way("direct", 64, seconds);
        (Choice { shown: Some(PlainMemory::Copied(bytes)), ..choice }, seconds)
    }

    fn read_in_place(seconds: f64) -> (Choice, f64) {
        let (choice, _) = way("direct", 64, seconds);
        (Choice { shown: Some(PlainMemory::Read), ..choice }, seconds)
    }

    fn table(sizes: &[(usize, &[(Choice, f64)])]) -> String {
        let sizes: Vec<_> = sizes
            .iter()
            .map(|&(bytes, ways)| Measured { bytes, given: 2 * bytes, ways: ways.to_vec() })
            .collect();
        let (collective, ranks) = (Collective::AllReduce, 4);
        Table::new(rows(collective, ranks, &sizes), shown(collective, ranks, &sizes)).to_string()
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
    fn slots_and_messages_have_rows_each() {
        let text = table(&[
            (8, &[way("direct", 64, 1.0)]),
            (64, &[way("direct", 64, 2.0), way("ring", 64, 1.9), through_slots(4096, 1.5)]),
            (
                1024,
                &[
                    way("direct", 64, 2.0),
                    way("ring", 64, 1.0),
                    through_slots(4096, 0.98),
                    through_slots(64, 0.99),
                ],
            ),
            (
                4096,
                &[
                    way("direct", 64, 4.0),
                    way("ring", 64, 1.0),
                    through_slots(4096, 3.0),
                    through_slots(64, 2.0),
                ],
            ),
        ]);
        assert_eq!(
            text,
            "unisono tuning 1\nall_reduce ranks 4 bytes 22 direct chunk 64 lanes 1\n\
             all_reduce ranks 4 bytes any ring chunk 64 lanes 1\n\
             all_reduce ranks 4 bytes 4K shown 4K\nall_reduce ranks 4 bytes any shown 0\n"
        );
    }

    #[test]
    fn what_is_read_in_place_has_rows_between_the_others() {
        let sizes: Vec<_> = [(16, [1.0, 2.0, 3.0]), (1024, [3.0, 2.0, 1.0]), (4096, [3.0, 1.0, 2.0])]
            .iter()
            .map(|&(bytes, [copied, sent, read])| Measured {
                bytes,
                given: bytes,
                ways: vec![way("direct", 64, sent), through_slots(64, copied), read_in_place(read)],
            })
            .collect();
        let rows = shown(Collective::AllGather, 2, &sizes);
        let text: Vec<_> = rows.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "all_gather ranks 2 bytes 128 shown 64",
                "all_gather ranks 2 bytes 2K shown read",
                "all_gather ranks 2 bytes any shown 0"
            ]
        );
    }

    #[test]
    fn any_size_has_a_middle() {
        for (low, high) in [(0, 0), (0, 8), (1, 2), (usize::MAX - 1, usize::MAX)] {
            assert!((low..=high).contains(&middle(low, high)));
        }
        assert!(rows(Collective::Barrier, 2, &[]).is_empty());
    }
}
