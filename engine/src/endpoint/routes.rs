//! The numbers of flows, one space for all communicators of a process: each names a communicator and one of its flows.
//!
//! A number that was given back is used again as late as possible: puts that the peers of a communicator sent before it ended may
//! still be in flight.

use std::collections::VecDeque;

use crate::wire::{CommId, MAX_FLOWS};

/// A communicator, and the index of a flow in it.
type Flow = (CommId, usize);

/// The flows of numbers, which are assigned in runs: one number for each lane.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// The flow of each number; `None` if the number was given back.
    flows: Vec<Option<Flow>>,
    /// The numbers that were given back, the oldest first.
    returned: VecDeque<usize>,
}

impl Routes {
    /// Assigns a run of numbers to the flows of `comm_id` from index `first` on; `None` if there is no free run.
    pub(crate) fn take(&mut self, comm_id: CommId, first: usize, lanes: usize) -> Option<usize> {
        let fresh = self.flows.len();
        let number = if fresh + lanes <= MAX_FLOWS {
            self.flows.resize(fresh + lanes, None);
            fresh
        } else {
            // A free run may consist of parts of runs that were given back, since classes differ in lanes.
            let free = |number| {
                self.flows.get(number..number + lanes).is_some_and(|run| run.iter().all(Option::is_none))
            };
            let number = self.returned.iter().copied().find(|&number| free(number))?;
            self.returned.retain(|it| !(number..number + lanes).contains(it));
            number
        };
        for (lane, flow) in self.flows.iter_mut().skip(number).take(lanes).enumerate() {
            *flow = Some((comm_id, first + lane));
        }
        Some(number)
    }

    /// The flow of a number.
    pub(crate) fn find(&self, number: u32) -> Option<Flow> {
        self.flows.get(number as usize).copied().flatten()
    }

    /// True if a number was assigned and given back.
    pub(crate) fn retired(&self, number: u32) -> bool {
        self.flows.get(number as usize).is_some_and(Option::is_none)
    }

    /// Gives a run of numbers back.
    pub(crate) fn give_back(&mut self, number: usize, lanes: usize) {
        self.flows.iter_mut().skip(number).take(lanes).for_each(|flow| *flow = None);
        self.returned.extend(number..number + lanes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: usize) -> u32 {
        u32::try_from(number).unwrap()
    }

    #[test]
    fn numbers_come_back_as_late_as_can_be() {
        let mut routes = Routes::default();
        let mut given: Vec<usize> = Vec::new();
        while let Some(number) = routes.take(1, given.len(), 2) {
            assert_eq!(routes.find(at(number) + 1), Some((1, given.len() + 1)));
            given.push(number);
        }
        assert_eq!(given.len(), MAX_FLOWS / 2);
        assert_eq!(routes.take(2, 0, 1), None);
        routes.give_back(given[5], 2);
        routes.give_back(given[3], 2);
        assert_eq!(routes.find(at(given[5])), None);
        assert!(routes.retired(at(given[5])) && !routes.retired(at(given[4])));
        assert_eq!(routes.take(3, 7, 2), Some(given[5]));
        assert_eq!(routes.find(at(given[5]) + 1), Some((3, 8)));
        assert_eq!(routes.take(3, 7, 2), Some(given[3]));
        assert_eq!(routes.take(3, 7, 1), None);
    }

    #[test]
    fn runs_are_cut_and_put_together() {
        let mut routes = Routes::default();
        let single = |routes: &mut Routes| routes.take(1, 0, 1).unwrap();
        // There are more groups than numbers, one after the other, each with one flow.
        for _ in 0..MAX_FLOWS + 100 {
            let number = single(&mut routes);
            routes.give_back(number, 1);
        }
        let mut runs: Vec<usize> = (0..MAX_FLOWS / 4).map(|_| routes.take(2, 0, 4).unwrap()).collect();
        runs.sort_unstable();
        assert!(runs.windows(2).all(|two| two[0] + 4 <= two[1]), "no number is given out twice");
        assert_eq!(routes.take(3, 0, 1), None);
        routes.give_back(runs[7], 4);
        assert_eq!(
            (0..4).map(|_| single(&mut routes)).collect::<Vec<_>>(),
            (runs[7]..runs[7] + 4).collect::<Vec<_>>()
        );
        assert_eq!(routes.take(3, 0, 1), None);
    }

    #[test]
    fn a_number_never_given_leads_nowhere() {
        assert_eq!(Routes::default().find(0), None);
        assert_eq!(Routes::default().find(u32::MAX), None);
        assert!(!Routes::default().retired(0));
    }
}
