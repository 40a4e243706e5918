//! Describes the positions of all ranks in words, for the error of an operation or message that missed its deadline.

use std::fmt::Write as _;

use unisono_schedule::Rank;

use super::{Position, Stage};
use crate::error::rank_list;

/// The most ranks that a report describes one by one; it counts the others.
const DETAILS: usize = 16;

/// Describes operation `op` of a group in one line: the ranks that have not entered it, and which rank is stuck behind which.
/// `positions[r]` is the position of rank r, or `None` if it gave no answer.
///
/// For instance: `rank 2 has not entered it (finished all_gather(f32) and called nothing since); ranks 0, 1, 3 are in it:
/// rank 0 waits for rank 2 (5 steps done), ...`.
#[must_use]
pub fn report(group: u64, op: u64, positions: &[Option<Position>]) -> String {
    let mut sentences = Sentences::default();
    let (mut silent, mut left, mut inside) = (Vec::new(), Vec::new(), Vec::new());
    for (rank, position) in positions.iter().enumerate() {
        let Some(position) = position else {
            silent.push(rank);
            continue;
        };
        match position.group(group) {
            _ if position.stage == Stage::Left => left.push(rank),
            _ if position.stage == Stage::Busy => sentences.add(rank, false, BUSY.to_owned()),
            // The rank is not a member, or has called nothing in the group.
            None if !position.groups.is_empty() && group != 0 => {}
            Some(it) if it.running.is_some() && it.begun.checked_sub(1) == Some(op) => inside.push(rank),
            Some(it) if it.begun > op => {
                sentences.add(rank, true, format!("has finished it ({})", activity(position)))
            }
            _ => sentences.add(rank, false, format!("has not entered it ({})", activity(position))),
        }
    }
    let mut parts = sentences.lines();
    if !left.is_empty() {
        parts.push(format!("{} left the group", rank_list(&left)));
    }
    if !silent.is_empty() {
        parts.push(format!("{} {SILENT}", rank_list(&silent)));
    }
    let waits = |rank: Rank| positions.get(rank)?.as_ref()?.group(group)?.running.as_ref();
    if !inside.is_empty() {
        let mut part =
            format!("{} {} in it", rank_list(&inside), if inside.len() == 1 { "is" } else { "are" });
        for (i, &rank) in inside.iter().take(DETAILS).enumerate() {
            let Some(running) = waits(rank) else { continue };
            let waited =
                if running.waits.is_empty() { "nobody".to_owned() } else { rank_list(&running.waits) };
            let comma = if i == 0 { ":" } else { "," };
            let steps = if running.steps == 1 { "step" } else { "steps" };
            let _ = write!(part, "{comma} rank {rank} waits for {waited} ({} {steps} done)", running.steps);
        }
        if inside.len() > DETAILS {
            let _ = write!(part, ", and {} more", inside.len() - DETAILS);
        }
        parts.push(part);
    }
    // A rank that waits for a lost put is not stuck behind another rank.
    let lost = lost(positions);
    if lost.is_empty() {
        let next = |rank: Rank| inside.contains(&rank).then(|| waits(rank)?.waits.first().copied()).flatten();
        parts.extend(Some(behind(&inside, next)).filter(|words| !words.is_empty()));
    }
    parts.extend(lost);
    parts.join("; ")
}

/// Describes the positions of all ranks in one line; `positions` as in [`report`].
///
/// For instance: `rank 0 called send(f32, to 1, tag 7), waits for rank 1; rank 1 finished barrier() and called nothing since`.
#[must_use]
#[doc(hidden)]
pub fn whereabouts(positions: &[Option<Position>]) -> String {
    let mut sentences = Sentences::default();
    for (rank, position) in positions.iter().enumerate() {
        sentences.add(rank, false, position.as_ref().map_or_else(|| SILENT.to_owned(), activity));
    }
    let mut parts = sentences.lines();
    parts.extend(lost(positions));
    parts.join("; ")
}

/// Puts that have not arrived at ranks that wait for them. If a connection breaks after the bytes have left and is made again,
/// the provider reports no error (libfabric 2.5 over TCP).
fn lost(positions: &[Option<Position>]) -> Vec<String> {
    let mut found = Vec::new();
    for (to, waiting) in
        positions.iter().enumerate().filter_map(|(to, position)| Some((to, position.as_ref()?)))
    {
        let mut ranks: Vec<Rank> = waiting.waits().flat_map(|wait| wait.ranks).copied().collect();
        ranks.sort_unstable();
        ranks.dedup();
        for from in ranks.into_iter().filter(|&from| from != to) {
            let Some(Some(sender)) = positions.get(from) else { continue };
            let sent = sender.traffic(to).map_or(0, |it| it.sent);
            let missing = sent.saturating_sub(waiting.traffic(from).map_or(0, |it| it.arrived));
            if missing > 0 {
                found.push(format!(
                    "{missing} of {sent} puts of rank {from} to rank {to}, which waits for them, {} not arrived: the \
                     connection between them was broken and lost them, or the network holds them back",
                    if missing == 1 { "has" } else { "have" }
                ));
            }
        }
    }
    found.truncate(DETAILS);
    found
}

const SILENT: &str = "gave no answer (stopped, or cut off)";
const BUSY: &str = "is held up in libfabric or in a copy, and did not answer";

/// The calls of a rank in all groups.
fn activity(position: &Position) -> String {
    match position.stage {
        Stage::Joins => return "has not joined yet".to_owned(),
        Stage::Busy => return BUSY.to_owned(),
        Stage::Left => return "left the group".to_owned(),
        Stage::Calls | Stage::Leaves => {}
    }
    let waits = position.waits().map(|wait| {
        let waited = if wait.ranks.is_empty() {
            String::new()
        } else {
            format!(", waits for {}", rank_list(wait.ranks))
        };
        format!("called {}{waited}", wait.group.says(wait.call, None))
    });
    let waits: Vec<_> = waits.take(DETAILS).collect();
    if !waits.is_empty() {
        return waits.join(", and ");
    }
    let latest = position.groups.iter().find_map(|group| Some((group, group.latest.first()?)));
    match latest {
        Some((group, called)) => {
            format!("finished {} and called nothing since", group.says(&called.call, None))
        }
        None => "called nothing yet".to_owned(),
    }
}

/// Sentences, each with the ranks that it describes.
#[derive(Default)]
struct Sentences(Vec<(bool, String, Vec<Rank>)>);

impl Sentences {
    /// Adds a sentence about a rank; it comes after the others if it is `done`.
    fn add(&mut self, rank: Rank, done: bool, words: String) {
        match self.0.iter_mut().find(|(_, known, _)| *known == words) {
            Some((.., ranks)) => ranks.push(rank),
            None => self.0.push((done, words, vec![rank])),
        }
    }

    fn lines(mut self) -> Vec<String> {
        self.0.sort_by_key(|(done, ..)| *done);
        let more = self.0.len().saturating_sub(DETAILS);
        let lines = self.0.iter().take(DETAILS).map(|(_, words, ranks)| {
            let plural = [("has ", "have"), ("is ", "are"), ("was ", "were")];
            let mut verbs = plural.into_iter().filter(|_| ranks.len() > 1);
            match verbs.find_map(|(one, many)| Some((many, words.strip_prefix(one)?))) {
                Some((verb, words)) => format!("{} {verb} {words}", rank_list(ranks)),
                None => format!("{} {words}", rank_list(ranks)),
            }
        });
        let more = (more > 0).then(|| format!("{more} more such"));
        lines.chain(more).collect()
    }
}

/// Follows the waits of ranks: to the ranks at which they end, or to a cycle.
fn behind(inside: &[Rank], next: impl Fn(Rank) -> Option<Rank>) -> String {
    let mut ends: Vec<(Rank, Vec<Rank>)> = Vec::new();
    let mut cycle: Option<Vec<Rank>> = None;
    for &start in inside.iter().take(1024) {
        let mut path = vec![start];
        let mut at = start;
        while let Some(to) = next(at) {
            if let Some(from) = path.iter().position(|&rank| rank == to) {
                let mut around = path.split_off(from);
                let low = around.iter().enumerate().min_by_key(|(_, rank)| **rank).map_or(0, |(i, _)| i);
                around.rotate_left(low);
                cycle.get_or_insert(around);
                path.clear();
                break;
            }
            path.push(to);
            at = to;
        }
        if path.len() > 1 {
            match ends.iter_mut().find(|(end, _)| *end == at) {
                Some((_, behind)) => behind.push(start),
                None => ends.push((at, vec![start])),
            }
        }
    }
    let mut words = Vec::new();
    for (end, behind) in ends.iter().take(DETAILS) {
        let verb = if behind.len() == 1 { "is" } else { "are" };
        words.push(format!("{} {verb} stuck behind rank {end}", rank_list(behind)));
    }
    if let Some(around) = cycle {
        let chain: Vec<String> = around.iter().chain(around.first()).map(ToString::to_string).collect();
        words.push(format!("ranks {} wait for each other in a cycle", chain.join(" → ")));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{
        super::{CallRecord, GroupPosition, MessagePosition, Running, Traffic},
        *,
    };

    /// A rank whose latest operation of a group is `op`, and that waits for others in it, if `waits` is given.
    fn position(id: u64, op: u64, waits: Option<&[Rank]>) -> Option<Position> {
        let called = CallRecord {
            call: "barrier()".into(),
            count: 0,
            algorithm: String::new(),
            contents: 0,
            uneven: false,
            chunk: 1,
            lanes: 1,
        };
        let label = if id == 0 { String::new() } else { format!("g{id}") };
        let running = waits.map(|waits| Running { steps: 1, waits: waits.to_vec() });
        let group = GroupPosition {
            id,
            label,
            begun: op + 1,
            latest: vec![called],
            running,
            ..GroupPosition::default()
        };
        Some(Position { groups: vec![group], ..Position::of(Stage::Calls) })
    }

    #[test]
    fn a_report_finds_the_end_of_the_line() {
        // 0 waits for 1, 1 for 2, and 2 for 3, which is a step behind.
        let positions = [
            position(0, 5, Some(&[1])),
            position(0, 5, Some(&[2])),
            position(0, 5, Some(&[3])),
            position(0, 4, Some(&[0])),
        ];
        let report = report(0, 5, &positions);
        assert!(
            report.starts_with(
                "rank 3 has not entered it (called barrier(), waits for rank 0); ranks 0–2 are in it"
            ),
            "{report}"
        );
        assert!(report.ends_with("ranks 0–2 are stuck behind rank 3"), "{report}");
    }

    #[test]
    fn a_report_finds_a_cycle() {
        let cycle = [[1], [2], [0], [1]].map(|ranks| position(0, 0, Some(&ranks)));
        let report = report(0, 0, &cycle);
        assert!(report.ends_with("ranks 0 → 1 → 2 → 0 wait for each other in a cycle"), "{report}");
        assert!(!report.contains("has not entered"), "{report}");
    }

    /// The operation numbers of another group prove nothing about this one's.
    #[test]
    fn a_report_speaks_of_one_group() {
        let mut elsewhere = position(2, 9, Some(&[0])).unwrap();
        elsewhere.groups.push(GroupPosition { id: 1, begun: 3, ..GroupPosition::default() });
        let positions = [
            position(1, 3, Some(&[1, 2])),
            Some(elsewhere),
            Some(Position::of(Stage::Busy)),
            Some(Position::of(Stage::Left)),
            None,
            // This rank is no member.
            position(3, 3, None),
        ];
        let wanted = "rank 1 has not entered it (called barrier() of group g2, waits for rank 0); rank 2 is held up in \
                      libfabric or in a copy, and did not answer; rank 3 left the group; rank 4 gave no answer (stopped, \
                      or cut off); rank 0 is in it: rank 0 waits for ranks 1, 2 (1 step done); rank 0 is stuck behind \
                      rank 1";
        assert_eq!(report(1, 3, &positions), wanted);
    }

    #[test]
    fn what_holds_of_several_ranks_is_said_of_several() {
        let busy = || Some(Position::of(Stage::Busy));
        let held = "held up in libfabric or in a copy, and did not answer";
        for message in [report(0, 0, &[busy(), busy()]), whereabouts(&[busy(), busy()])] {
            assert_eq!(message, format!("ranks 0, 1 are {held}"));
        }
        assert_eq!(report(0, 0, &[busy()]), format!("rank 0 is {held}"));
    }

    #[test]
    fn a_report_names_ranks_that_are_ahead_and_stays_short() {
        let ahead = [position(0, 3, Some(&[1])), position(0, 3, None), position(0, 4, None)];
        let message = report(0, 3, &ahead);
        assert!(
            message.starts_with("ranks 1, 2 have finished it (finished barrier() and called nothing since)"),
            "{message}"
        );
        let many: Vec<_> = (0..10_000).map(|rank| position(0, rank % 100, Some(&[0]))).collect();
        assert!(report(0, 50, &many).len() < 20_000);
        assert_eq!(report(0, 0, &[]), "");
    }

    #[test]
    fn what_was_lost_on_the_way_is_no_cycle() {
        let mut positions = [[1], [0]].map(|ranks| position(0, 0, Some(&ranks)).unwrap());
        let traffic = |rank, sent, arrived| vec![Traffic { rank, sent, arrived }];
        positions[0].traffic = traffic(1, 7, 8);
        positions[1].traffic = traffic(0, 9, 7);
        let message =
            |positions: &[Position]| report(0, 0, &positions.iter().cloned().map(Some).collect::<Vec<_>>());
        let words = message(&positions);
        assert!(
            words.contains("1 of 9 puts of rank 1 to rank 0, which waits for them, has not arrived"),
            "{words}"
        );
        assert!(!words.contains("cycle"), "{words}");
        assert!(whereabouts(&positions.clone().map(Some)).contains("1 of 9 puts"));
        // All puts have arrived.
        positions[1].traffic = traffic(0, 8, 7);
        assert!(message(&positions).ends_with("in a cycle"));
    }

    #[test]
    fn pending_messages_are_reported_in_every_state() {
        let mut sends = position(0, 3, None).unwrap();
        let message =
            MessagePosition { call: "send(f32, to 1, tag 7)".into(), receives: false, waits: vec![1] };
        sends.groups[0].messages.push(message);
        let positions = [Some(sends), position(0, 3, None), Some(Position::of(Stage::Calls))];
        assert_eq!(
            whereabouts(&positions),
            "rank 0 called send(f32, to 1, tag 7), waits for rank 1; rank 1 finished barrier() and called nothing since; \
             rank 2 called nothing yet"
        );
    }
}
