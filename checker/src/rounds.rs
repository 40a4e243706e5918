//! The checker's rules of what ranks show: when they may show and view, and that two ranks use an element at the same time only if
//! both read it.

use super::{
    Fault, Violation,
    memory::{Area, SpanLocation},
    run::Checker,
    shown::{Round, SLOTS, Shows, Use},
    state::LaneId,
};
use unisono_schedule::{Place, Rank, Shown, Span, Step};

impl Checker<'_> {
    /// True if others read a rank's elements in place. Scratch is always read in place.
    fn in_place(&self, rank: Rank) -> bool {
        let inside = self.shows.as_ref().is_some_and(|shows| shows.inside);
        inside
            || self.setup.job.shown == Some(unisono_schedule::Showing::InPlace)
                && self.setup.writable >> rank & 1 == 1
    }

    /// True if a rank may show these elements.
    fn may_be_shown(&self, span: &Span) -> bool {
        match self.shows.as_ref().is_some_and(|shows| shows.inside) {
            true => span.place == Place::Scratch || span.len == 0,
            false => matches!(span.place, Place::Input | Place::Output),
        }
    }

    /// The elements of another rank's memory that a span of what it shows stands for.
    pub(super) fn find_shown(
        &self,
        shows: &Shows,
        rank: Rank,
        from: Rank,
        span: &Span,
    ) -> Result<SpanLocation, Fault> {
        let round = shows.rounds[rank].len();
        let viewed = shows.viewed[rank].contains(&from) && round > 0;
        let Some(Round { shown, .. }) = shows.rounds[from].get(round.wrapping_sub(1)).filter(|_| viewed)
        else {
            return Err(Fault::NotHeld(from));
        };
        let bounds = Fault::Bounds { span: *span, room: shown.len() };
        let Some(there) = shown.within(span.offset, span.len) else { return Err(bounds) };
        if !self.in_place(from) {
            let area = Area::Copied { owner: from, slot: round % SLOTS };
            return Ok(SpanLocation { area, range: span.offset..span.offset + span.len });
        }
        let found = self.memories[from].find(there.place, there.offset, there.len);
        let (part, range) = found.map_err(|_| bounds)?;
        Ok(SpanLocation { area: Area::Theirs { owner: from, part }, range })
    }

    /// Begins a rank's next round.
    pub(super) fn show(&mut self, at: LaneId, shown: Shown) -> Result<(), Fault> {
        let rank = at.rank;
        let foreign = || Fault::Kind(Box::new(Step::Show { shown }));
        let shows = self.shows.as_mut().ok_or_else(foreign)?;
        let now = shows.tick(rank);
        let round = shows.rounds[rank].len() + 1;
        for other in shows.sharers(rank) {
            if let Some(before) = round.checked_sub(2).map(|at| shows.rounds[other][at].clock.clone()) {
                shows.learn(rank, &before);
            }
        }
        shows.viewed[rank].clear();
        let mut copy = Vec::new();
        for span in (0..shown.blocks).map(|block| shown.block(block)) {
            if !self.may_be_shown(&span) {
                return Err(foreign());
            }
            if self.in_place(rank) {
                self.find(at, &span)?;
            } else {
                copy.extend(self.read(at, &span)?);
            }
        }
        let found =
            SpanLocation { area: Area::Copied { owner: rank, slot: round % SLOTS }, range: 0..copy.len() };
        let past = self.past(at);
        let Some(shows) = &mut self.shows else { return Ok(()) };
        shows.slots[rank][round % SLOTS] = copy;
        if let Some(reader) = shows.uses(rank, Use { by: rank, at: now, found, writes: true }) {
            return Err(Fault::StillRead { span: shown.first, reader });
        }
        let clock = shows.clocks[rank].clone();
        shows.rounds[rank].push(Round { shown, clock, past });
        let others = shows.sharers(rank);
        (0..self.ranks).for_each(|owner| shows.forget(owner));
        others.filter(|&other| other != rank).for_each(|other| self.wake(other, at.lane));
        Ok(())
    }

    /// Learns that a rank has begun this round.
    pub(super) fn view(&mut self, at: LaneId, from: Rank, wanted: Shown) -> Result<(), Fault> {
        let foreign = || Fault::Kind(Box::new(Step::View { from, shown: wanted }));
        let shows = self.shows.as_mut().ok_or_else(foreign)?;
        shows.tick(at.rank);
        let round = shows.rounds[at.rank].len();
        let Some(Round { shown, clock, past }) = shows.rounds[from].get(round.wrapping_sub(1)) else {
            return Err(Fault::NotHeld(from));
        };
        if *shown != wanted {
            return Err(Fault::Views { from, wanted: Box::new(wanted), found: Box::new(*shown) });
        }
        let (clock, past, inside) = (clock.clone(), *past, shows.inside);
        shows.learn(at.rank, &clock);
        shows.viewed[at.rank].push(from);
        self.hear(at, past);
        if !inside {
            self.taken[at.rank].insert(from);
        }
        Ok(())
    }

    /// A rank comes to its [`Step::Settle`].
    pub(super) fn settles(&mut self, rank: Rank) {
        let Some(shows) = self.shows.as_mut().filter(|shows| !shows.inside) else { return };
        if shows.settled[rank].is_none() {
            shows.settled[rank] = Some(shows.clocks[rank].clone());
            (0..self.ranks).filter(|&other| other != rank).for_each(|other| self.wake(other, 0));
        }
    }

    /// All ranks have come to their [`Step::Settle`].
    pub(super) fn settled(&mut self, rank: Rank) {
        let Some(shows) = self.shows.as_mut().filter(|shows| !shows.inside) else { return };
        for other in 0..self.ranks {
            if let Some(clock) = shows.settled[other].clone() {
                shows.learn(rank, &clock);
            }
        }
    }

    /// Notes a use of a rank's memory. Returns the rank of another use that may happen at the same time, if one of the two writes.
    fn used(&mut self, owner: Rank, by: Rank, found: &SpanLocation, writes: bool) -> Option<Rank> {
        let shows = self.shows.as_mut()?;
        let at = shows.tick(by);
        shows.uses(owner, Use { by, at, found: found.clone(), writes })
    }

    /// Notes that a rank reads these elements, and checks that their rank does not write them.
    pub(super) fn reads(&mut self, rank: Rank, found: &SpanLocation, span: &Span) -> Result<(), Fault> {
        let (Area::Theirs { owner, .. } | Area::Copied { owner, .. }) = found.area else { return Ok(()) };
        match self.used(owner, rank, found, false) {
            Some(_) => Err(Fault::ReadsEarly { span: *span, owner }),
            None => Ok(()),
        }
    }

    /// Notes that a rank writes its own elements, and checks that no other reads them.
    pub(super) fn writes_own(&mut self, rank: Rank, found: &SpanLocation, span: &Span) -> Result<(), Fault> {
        let Area::Own(part) = found.area else { return Ok(()) };
        let shown = SpanLocation { area: Area::Theirs { owner: rank, part }, range: found.range.clone() };
        match if self.in_place(rank) { self.used(rank, rank, &shown, true) } else { None } {
            Some(reader) => Err(Fault::StillRead { span: *span, reader }),
            None => Ok(()),
        }
    }

    /// Checks that all ranks have had the same number of rounds, and that no rank reads the elements of one that has ended.
    pub(super) fn judge_shows(&self) -> Result<(), Violation> {
        let Some(shows) = &self.shows else { return Ok(()) };
        for rank in 0..self.ranks {
            let first = shows.sharers(rank).next().unwrap_or(rank);
            let (found, wanted) = (shows.rounds[rank].len(), shows.rounds[first].len());
            if found != wanted {
                let fault = Fault::Shape { what: "the number of rounds", found, wanted };
                return Err(self.violation(rank, 0, fault));
            }
            let known = &shows.clocks[rank];
            let reads = |it: &&Use| matches!(it.found.area, Area::Theirs { .. }) && known[it.by] < it.at;
            if let Some(reads) = shows.uses[rank].iter().find(reads) {
                return Err(self.violation(rank, 0, Fault::EndsEarly(reads.by)));
            }
        }
        Ok(())
    }
}
