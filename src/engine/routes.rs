//! The numbers of flows, one space for all groups of a process: to which group and which of its flows each leads.
//!
//! Numbers that come back are given out again as late as can be, the oldest first: what a group's peers sent before it
//! ended may still be on its way.

use std::collections::VecDeque;

use super::wire::MAX_FLOWS;

/// A group's channel, and the index of a flow in it.
type Lead = (u8, usize);

/// Numbers given out in runs, one for each lane.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// Where each number leads; `None` once it came back.
    leads: Vec<Option<Lead>>,
    /// Runs that came back: their first numbers and lengths.
    returned: VecDeque<(usize, usize)>,
}

impl Routes {
    /// Gives out a run of numbers that lead to the flows of `channel` from index `first` on; `None` if there is none.
    pub(crate) fn take(&mut self, channel: u8, first: usize, lanes: usize) -> Option<usize> {
        let fresh = self.leads.len();
        let number = if fresh + lanes <= MAX_FLOWS {
            self.leads.resize(fresh + lanes, None);
            fresh
        } else {
            let place = self.returned.iter().position(|&(_, len)| len == lanes)?;
            self.returned.remove(place)?.0
        };
        for (lane, lead) in self.leads.iter_mut().skip(number).take(lanes).enumerate() {
            *lead = Some((channel, first + lane));
        }
        Some(number)
    }

    /// Where a number leads.
    pub(crate) fn find(&self, number: u32) -> Option<Lead> {
        self.leads.get(number as usize).copied().flatten()
    }

    /// Takes back a run.
    pub(crate) fn give_back(&mut self, number: usize, lanes: usize) {
        self.leads.iter_mut().skip(number).take(lanes).for_each(|lead| *lead = None);
        self.returned.push_back((number, lanes));
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
        assert_eq!(routes.take(3, 0, 1), None, "runs are not cut");
        assert_eq!(routes.take(3, 7, 2), Some(given[5]));
        assert_eq!(routes.find(at(given[5]) + 1), Some((3, 8)));
        assert_eq!(routes.take(3, 7, 2), Some(given[3]));
    }

    #[test]
    fn a_number_never_given_leads_nowhere() {
        assert_eq!(Routes::default().find(0), None);
        assert_eq!(Routes::default().find(u32::MAX), None);
    }
}
