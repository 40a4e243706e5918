//! Dissemination: a barrier in ⌈log2 n⌉ hops for any number of ranks. In hop k every rank sends a message to the rank 2^k after
//! it, so that after hop k it has heard, directly or indirectly, from the 2^(k+1) - 1 ranks before it.
//!
//! Debra Hensgen, Raphael Finkel and Udi Manber, "Two algorithms for barrier synchronization",
//! International Journal of Parallel Programming 17(1), 1988.

use super::{
    Plan,
    chunks::{Lanes, Pattern, PatternShape, Steps},
    doublings, wrapped,
};
use crate::{Collective, Rank, Span, cost::Alike};

/// The plan of dissemination.
pub(super) const PLANS: &[Plan] = &[Plan {
    alike: |_| Some(Alike::Turned),
    ..Plan::new(
        Collective::Barrier,
        |job| Lanes::schedule(job, Barrier { rank: job.rank, ranks: job.ranks }),
        doublings,
    )
}];

struct Barrier {
    rank: Rank,
    ranks: usize,
}

impl Barrier {
    fn after(&self, distance: usize) -> Rank {
        wrapped(self.rank + distance, self.ranks)
    }
}

impl Pattern for Barrier {
    fn shape(&self) -> PatternShape {
        PatternShape { chunks: 1, turns: doublings(self.ranks), ..PatternShape::default() }
    }

    fn turn(&self, _: usize, turn: usize, steps: &mut Steps) {
        let distance = 1 << turn;
        let from = self.after(self.ranks - distance);
        steps.put(self.after(distance), Span::input(0, 0));
        steps.take(from, 0);
        steps.free(from);
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (0..doublings(self.ranks)).map(|turn| self.after(self.ranks - (1 << turn))).for_each(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Job, algorithm::find};

    #[test]
    fn everyone_hears_from_distinct_ranks() -> Result<(), String> {
        for ranks in 2..40 {
            let job = Job::new(Collective::Barrier, 1, ranks, 0);
            let schedule = find("dissemination").and_then(|it| it.make(&job)).ok_or("not in the table")?;
            let mut seen = Vec::new();
            schedule.sources(&mut |rank| seen.push(rank));
            assert_eq!(seen.len(), doublings(ranks));
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), doublings(ranks), "{ranks} ranks");
        }
        Ok(())
    }
}
