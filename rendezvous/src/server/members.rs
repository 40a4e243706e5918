//! The members of a group: which are alive, have left or are dead, and the messages that tell them. It knows no sockets.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use unisono_core::{
    error::{Failure, Refusal, clean},
    position::{Position, Stage, judge},
};
use unisono_schedule::Rank;

use super::{
    super::{
        GATHER,
        protocol::{ConnectionPurpose, Frame, Hello, MAX_WHO, ToServer, ToWatch},
    },
    Id, Outbox,
    process::RankProcess,
};

/// The least time between two comparisons of all positions, however many ranks ask for one.
const SPACING: Duration = Duration::from_millis(100);

/// The longest that a query for all positions may take.
const MAX_QUERY: Duration = Duration::from_secs(10);

/// The states of all ranks.
#[derive(Debug, Default)]
pub(super) struct RankStates {
    states: Vec<RankState>,
    /// The ranks whose watch has ended and may connect again; some may have connected.
    lost: BTreeSet<Rank>,
    sessions: u64,
    /// True if this is not the first group at this store.
    renewed: bool,
    /// The first failure of the group.
    pub(super) failure: Option<Failure>,
    /// The rank that did not leave the latest group, if that was its failure.
    pub(super) stayed: Option<(Rank, Failure)>,
    query: Option<Query>,
    queries: u64,
    /// The time at which the comparison begins that ranks have asked for.
    doubted: Option<Instant>,
    /// The earliest time of the next comparison.
    spaced: Option<Instant>,
    /// True if a rank is leaving or has left.
    leaving: bool,
    /// The first few processes that the store has refused while ranks were missing, in words, and the number of the others.
    refused: Vec<String>,
    refused_more: u64,
    /// The number of refused processes that belong to the job. They know why the group failed, and each stands for a missing rank.
    unfit: usize,
}

/// The number of refused processes that the store reports to all ranks. It is limited, because strangers can connect as often as they like.
const TOLD: usize = 3;

/// The state of a rank.
#[derive(Debug)]
enum RankState {
    Empty,
    Taken {
        session: u64,
        who: String,
        watch: Watching,
        /// Known if the process is on this host.
        process: Option<RankProcess>,
    },
    Left,
    Dead,
}

/// The watch of a rank.
#[derive(Clone, Copy, Debug)]
enum Watching {
    NotYet,
    By(Id),
    /// The connection has ended. A rank that lives connects again before `until`; the server checks it again at `next`.
    Lost {
        ending: Ending,
        until: Instant,
        next: Instant,
    },
}

/// How long a rank has to connect its watch again. A rank that lives notices the end of its connection when the server does. A rank whose
/// transport breaks because another rank died waits longer for that rank's name (`NAMED_WITHIN` of the monitor).
const RETURN: Duration = Duration::from_millis(400);

/// How long to wait before checking again whether a process has ended: a process closes its connections shortly before it ends.
const AGAIN: Duration = Duration::from_millis(5);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Closed by its process, by the kernel of its host, or by a device between.
    Closed,
    /// Reset by its host or by a device between.
    Reset,
    /// Nothing arrived for this long.
    Silent(Duration),
    /// The server drops it because it sent invalid data.
    Dropped,
}

impl RankState {
    /// True if the rank has not come, or has no watch now.
    fn is_unheard(&self) -> bool {
        matches!(self, Self::Empty | Self::Taken { watch: Watching::NotYet | Watching::Lost { .. }, .. })
    }
}

/// The rank that a connection belongs to, and its purpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Role {
    pub(super) rank: Rank,
    pub(super) session: u64,
    pub(super) watch: bool,
}

/// A question to all ranks, for one rank or several.
#[derive(Debug)]
struct Query {
    number: u64,
    askers: Vec<(Id, u64)>,
    /// True if the answers are compared.
    judged: bool,
    positions: Vec<Option<Position>>,
    until: Instant,
}

impl RankStates {
    pub(super) fn new(ranks: usize) -> Self {
        Self { states: (0..ranks).map(|_| RankState::Empty).collect(), ..Self::default() }
    }

    /// Gives an authenticated connection its role, or refuses it.
    pub(super) fn hello(&mut self, id: Id, hello: &Hello, outbox: &mut Outbox) -> Result<Role, Refusal> {
        let ranks = self.states.len();
        let ours = usize::try_from(hello.ranks).unwrap_or(usize::MAX);
        if let Some(failure) = self.failure.as_ref().filter(|_| ours != ranks || hello.rank >= ranks as u64) {
            return Err(Refusal::Failed(Box::new(failure.clone())));
        }
        if ours != ranks {
            return Err(Refusal::WorldSize { store: ranks, ours });
        }
        let rank = usize::try_from(hello.rank).unwrap_or(usize::MAX);
        let Some(state) = self.states.get_mut(rank) else {
            return Err(Refusal::NoSuchRank { ranks });
        };
        match (hello.purpose, &mut *state) {
            // A new watch is accepted while an earlier one exists, because the end of the earlier one may not have arrived.
            (ConnectionPurpose::Watch { session }, RankState::Taken { session: held, watch, .. })
                if session == *held =>
            {
                *watch = Watching::By(id);
                let refused = self.refused.iter().cloned().map(ToWatch::Refused);
                let failure = self.failure.clone().map(ToWatch::Failure);
                let leaving = self.leaving.then_some(ToWatch::SomeoneLeaving);
                let query = self.query.as_ref().map(|query| ToWatch::WhereAreYou { query: query.number });
                let messages = refused.chain(failure).chain(leaving).chain(query);
                outbox.extend(messages.map(|message| (id, Frame::new(&message))));
                Ok(Role { rank, session, watch: true })
            }
            // The server is about to report its death.
            (_, RankState::Taken { watch: Watching::Lost { .. }, .. }) => Err(Refusal::Left),
            (_, RankState::Taken { who, .. }) => Err(Refusal::Duplicate { holder: who.clone() }),
            (_, RankState::Left) => Err(Refusal::Left),
            (ConnectionPurpose::Requests, RankState::Empty) if self.failure.is_none() => {
                self.sessions += 1;
                self.stayed = None;
                let who = clean(&hello.who, MAX_WHO);
                let process = RankProcess::find(&who);
                *state = RankState::Taken { session: self.sessions, who, watch: Watching::NotYet, process };
                Ok(Role { rank, session: self.sessions, watch: false })
            }
            (_, RankState::Empty | RankState::Dead) => Err(match &self.failure {
                Some(failure) => {
                    *state = RankState::Dead;
                    Refusal::Failed(Box::new(failure.clone()))
                }
                None => Refusal::Left,
            }),
        }
    }

    /// Handles a message of a watch.
    pub(super) fn tell(&mut self, id: Id, role: Role, tell: ToServer, now: Instant, outbox: &mut Outbox) {
        if !self.is_here(role) {
            return;
        }
        match tell {
            ToServer::Failure(mut failure) => {
                if let Failure::Joining { rank, why } = &mut failure
                    && *rank == role.rank
                    && let Some(RankState::Taken { who, .. }) = self.states.get(role.rank)
                {
                    *why = format!("{who}: {why}");
                }
                match &self.failure {
                    None => self.fail(failure.cleaned(), outbox),
                    // The server sent the failure to the rank before, but the rank may have reported before it read that.
                    Some(first) => outbox.push((id, Frame::new(&ToWatch::Failure(first.clone())))),
                }
            }
            ToServer::Position { query: number, position } => {
                if let Some(query) = self.query.as_mut().filter(|query| query.number == number)
                    && let Some(slot) = query.positions.get_mut(role.rank)
                {
                    *slot = Some(position.cleaned());
                }
            }
            ToServer::WhereIsEveryone { number, wait } => {
                let until = now + Duration::from_millis(wait).min(MAX_QUERY);
                self.ask(Some((id, number)), until, outbox);
            }
            ToServer::Compare => self.doubt(now),
            ToServer::Leaving => {
                if !std::mem::replace(&mut self.leaving, true) {
                    self.send_all(&ToWatch::SomeoneLeaving, outbox);
                }
                self.doubt(now);
            }
            // The server handles these, because they concern connections and the launcher.
            ToServer::Patience { .. } | ToServer::Late(_) => {}
            ToServer::Leave => {
                if let Some(state @ RankState::Taken { .. }) = self.states.get_mut(role.rank) {
                    *state = RankState::Left;
                }
                outbox.push((id, Frame::new(&ToWatch::LeaveSeen)));
            }
        }
        self.answer(now, outbox);
    }

    /// Notes that a connection has ended. A watch may connect again.
    pub(super) fn closed(&mut self, id: Id, role: Role, ending: Ending, now: Instant, outbox: &mut Outbox) {
        let Some(RankState::Taken { session, watch, .. }) = self.states.get_mut(role.rank) else { return };
        // Once there has been a watch, only the watch shows whether the rank lives.
        let current = match watch {
            Watching::NotYet => !role.watch,
            Watching::By(current) => *current == id,
            Watching::Lost { .. } => false,
        };
        if *session != role.session || !current {
            return;
        }
        if let Ending::Closed | Ending::Reset = ending {
            *watch = Watching::Lost { ending, until: now + RETURN, next: now };
            self.lost.insert(role.rank);
            self.expire(now, outbox);
        } else {
            self.lose(role.rank, ending, outbox);
        }
        self.answer(now, outbox);
    }

    /// The time at which ranks whose watch has ended are checked next.
    pub(super) fn lost_until(&self) -> Option<Instant> {
        let lost = self.lost.iter().filter_map(|&rank| match self.states.get(rank)? {
            RankState::Taken { watch: Watching::Lost { until, next, .. }, .. } => Some(*until.min(next)),
            _ => None,
        });
        lost.min()
    }

    /// Gives up ranks whose process has ended, or whose watch has not connected again in time.
    pub(super) fn expire(&mut self, now: Instant, outbox: &mut Outbox) {
        for rank in std::mem::take(&mut self.lost) {
            let Some(RankState::Taken { watch: Watching::Lost { ending, until, next }, process, .. }) =
                self.states.get_mut(rank)
            else {
                continue;
            };
            let ended = process.as_ref().is_some_and(RankProcess::has_ended);
            if ended || *until <= now {
                let ending = *ending;
                self.lose(rank, ending, outbox);
            } else {
                *next = if process.is_some() { now + AGAIN } else { *until };
                self.lost.insert(rank);
            }
        }
    }

    /// Gives up a rank.
    fn lose(&mut self, rank: Rank, ending: Ending, outbox: &mut Outbox) {
        let Some(state) = self.states.get_mut(rank) else { return };
        let RankState::Taken { who, process, .. } = std::mem::replace(state, RankState::Dead) else { return };
        let what = match ending {
            _ if process.is_some_and(|process| process.has_ended()) => {
                let how = format!("{who}: its process ended before it left the group");
                return self.keep(rank, Failure::Died { rank, how }, outbox);
            }
            Ending::Silent(silence) => {
                format!("nothing has come from it for {silence:.0?}, its host or the network is down")
            }
            Ending::Dropped => {
                "the store has closed its connection, which brought what no rank sends".to_owned()
            }
            Ending::Closed | Ending::Reset => {
                let how = if ending == Ending::Reset { "reset" } else { "closed" };
                format!(
                    "its connection to the store was {how} before it left the group, and did not come again: it died, or something \
                     between, such as a firewall, ended the connection"
                )
            }
        };
        self.keep(rank, Failure::Unreachable { rank, how: format!("{who}: {what}") }, outbox)
    }

    /// As [`fail`](Self::fail), for a rank that did not leave.
    fn keep(&mut self, rank: Rank, failure: Failure, outbox: &mut Outbox) {
        if self.failure.is_none() {
            self.stayed = Some((rank, failure.clone()));
        }
        self.fail(failure, outbox);
    }

    /// Keeps the first failure and sends it to every watch.
    pub(super) fn fail(&mut self, failure: Failure, outbox: &mut Outbox) {
        if self.failure.is_some() {
            return;
        }
        unisono_transport::log::info!("the group failed: {failure}");
        self.send_all(&ToWatch::Failure(failure.clone()), outbox);
        self.failure = Some(failure);
    }

    /// Sends a message to every watch.
    fn send_all(&self, message: &ToWatch, outbox: &mut Outbox) {
        let message = Frame::new(message);
        outbox.extend(self.watches().map(|(_, id)| (id, message.clone())));
    }

    /// Notes that the store refused a process, and reports it to all watches except that of `host`, whose process has logged it.
    pub(super) fn refuse(&mut self, process: String, host: Option<Rank>, outbox: &mut Outbox) {
        if self.refused.len() == TOLD {
            self.refused_more += 1;
            return;
        }
        let message = Frame::new(&ToWatch::Refused(process.clone()));
        let others = self.watches().filter(|&(rank, _)| Some(rank) != host);
        outbox.extend(others.map(|(_, id)| (id, message.clone())));
        self.refused.push(process);
    }

    /// The processes that were refused, in words.
    pub(super) fn refused(&self) -> String {
        let more = (self.refused_more > 0).then(|| format!("{} others", self.refused_more));
        self.refused.iter().cloned().chain(more).collect::<Vec<_>>().join("; and ")
    }

    pub(super) fn all_have_come(&self) -> bool {
        !self.states.iter().any(|state| matches!(state, RankState::Empty))
    }

    /// True if this rank has not come, or there is no such rank.
    pub(super) fn lacks(&self, rank: u64) -> bool {
        self.state(rank).is_none_or(|state| matches!(state, RankState::Empty))
    }

    fn state(&self, rank: u64) -> Option<&RankState> {
        self.states.get(usize::try_from(rank).ok()?)
    }

    /// True if the group has failed and some ranks have not come to learn that.
    pub(super) fn owes_news(&self) -> bool {
        let unheard = self.states.iter().filter(|state| state.is_unheard()).count();
        self.failure.is_some() && unheard > self.unfit
    }

    /// Notes that the store refused a process which belongs to the job and knows why the group failed.
    pub(super) fn is_unfit(&mut self) {
        self.unfit += 1;
    }

    /// The same for one rank.
    pub(super) fn owes_news_to(&self, rank: u64) -> bool {
        self.failure.is_some() && self.state(rank).is_some_and(RankState::is_unheard)
    }

    /// True if a rank is alive.
    pub(super) fn anyone(&self) -> bool {
        self.states.iter().any(|state| matches!(state, RankState::Taken { .. }))
    }

    /// The ranks that are alive.
    pub(super) fn here(&self) -> Vec<Rank> {
        let states = self.states.iter().enumerate();
        states.filter(|(_, state)| matches!(state, RankState::Taken { .. })).map(|(rank, _)| rank).collect()
    }

    pub(super) fn has_left(&self, rank: Rank) -> bool {
        matches!(self.states.get(rank), Some(RankState::Left))
    }

    /// True if every rank has left or died, so that a new group may meet.
    pub(super) fn all_gone(&self) -> bool {
        self.states.iter().all(|state| matches!(state, RankState::Left | RankState::Dead))
    }

    /// True if a rank of this group or an earlier one has left or died. If a rank's process serves the store, the store then ends
    /// soon.
    pub(super) fn anyone_gone(&self) -> bool {
        let gone = |state: &RankState| matches!(state, RankState::Left | RankState::Dead);
        self.failure.is_some() || self.renewed || self.states.iter().any(gone)
    }

    /// Begins a new group. The session number keeps counting, so that old connections are not taken for new ones.
    pub(super) fn renew(&mut self) {
        let Self { sessions, queries, .. } = *self;
        let stayed = self.stayed.take();
        *self = Self { sessions, queries, stayed, renewed: true, ..Self::new(self.states.len()) };
    }

    /// True if this connection's rank is alive.
    pub(super) fn is_here(&self, role: Role) -> bool {
        matches!(self.states.get(role.rank), Some(RankState::Taken { session, .. }) if *session == role.session)
    }

    /// The time when the query ends, or the next one begins.
    pub(super) fn query_until(&self) -> Option<Instant> {
        self.query.as_ref().map(|query| query.until).or(self.doubted)
    }

    /// Begins a query if ranks have asked for a comparison, and ends it if all have answered or its time is over.
    pub(super) fn answer(&mut self, now: Instant, outbox: &mut Outbox) {
        if self.query.is_none() && self.doubted.is_some_and(|doubted| doubted <= now) {
            (self.doubted, self.spaced) = (None, Some(now + SPACING));
            if self.failure.is_none() {
                self.ask(None, now + GATHER, outbox);
            }
        }
        let Some(mut query) = self.query.take() else { return };
        let silent = self.watches().any(|(rank, _)| query.positions.get(rank).is_some_and(Option::is_none));
        if silent && now < query.until {
            self.query = Some(query);
            return;
        }
        for (state, position) in self.states.iter().zip(&mut query.positions) {
            if matches!(state, RankState::Left) {
                *position = Some(Position::of(Stage::Left));
            }
        }
        // At a deadline all ranks ask, most with the same number, so one frame serves all of these.
        let mut frames: BTreeMap<u64, Frame> = BTreeMap::new();
        for (id, number) in query.askers {
            let answer = || Frame::new(&ToWatch::Positions { number, positions: query.positions.clone() });
            outbox.push((id, frames.entry(number).or_insert_with(answer).clone()));
        }
        if let Some(failure) = judge(&query.positions).filter(|_| query.judged) {
            self.fail(failure, outbox);
        }
    }

    /// Plans a comparison, as soon as the least time between two allows.
    fn doubt(&mut self, now: Instant) {
        let soonest = self.spaced.map_or(now, |spaced| spaced.max(now));
        self.doubted.get_or_insert(soonest);
    }

    /// Asks every watch, for one rank or for a comparison; if a query is in progress, the rank joins it.
    fn ask(&mut self, asker: Option<(Id, u64)>, until: Instant, outbox: &mut Outbox) {
        if let Some(query) = &mut self.query {
            query.askers.extend(asker);
            return;
        }
        self.queries += 1;
        let positions = self.states.iter().map(|_| None).collect();
        let (askers, judged) = (asker.into_iter().collect(), asker.is_none());
        self.query = Some(Query { number: self.queries, askers, judged, positions, until });
        self.send_all(&ToWatch::WhereAreYou { query: self.queries }, outbox);
    }

    fn watches(&self) -> impl Iterator<Item = (Rank, Id)> {
        self.states.iter().enumerate().filter_map(|(rank, state)| match state {
            RankState::Taken { watch: Watching::By(id), .. } => Some((rank, *id)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::protocol, *};

    #[test]
    fn all_that_ask_at_once_share_one_answer() {
        const RANKS: usize = 4096;
        let (mut members, mut outbox, now) = (RankStates::new(RANKS), Outbox::new(), Instant::now());
        let ranks = RANKS as u64;
        let mut hello = |rank: Rank, purpose| {
            let hello = Hello {
                nonce: [0; 32],
                job: String::new(),
                rank: rank as u64,
                ranks,
                who: String::new(),
                purpose,
            };
            members.hello(rank as Id, &hello, &mut outbox).unwrap()
        };
        let watches: Vec<Role> = (0..RANKS)
            .map(|rank| {
                let session = hello(rank, ConnectionPurpose::Requests).session;
                hello(rank, ConnectionPurpose::Watch { session })
            })
            .collect();
        let mut tell = |rank: Rank, tell| {
            let mut outbox = Outbox::new();
            members.tell(rank as Id, watches[rank], tell, now, &mut outbox);
            outbox
        };
        // One of these ranks has asked before.
        let number = |rank: Rank| if rank == 7 { 2 } else { 1 };
        let asked: Vec<_> = (0..RANKS)
            .flat_map(|rank| tell(rank, ToServer::WhereIsEveryone { number: number(rank), wait: 1000 }))
            .collect();
        assert_eq!(asked.len(), RANKS, "each is asked once");
        let position = |rank: Rank| (rank, ToServer::Position { query: 1, position: Position::default() });
        let answers: Vec<_> =
            (0..RANKS).rev().map(position).flat_map(|(rank, position)| tell(rank, position)).collect();
        let mut ids: Vec<Id> = answers.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..RANKS as Id), "each gets one answer");
        let (first, rest) = answers.split_first().unwrap();
        let others: Vec<_> = rest.iter().filter(|(_, answer)| answer.as_ptr() != first.1.as_ptr()).collect();
        assert!(matches!(others[..], [(7, _)]), "{} answers to others", others.len());
        for ((_, answer), wanted) in [(first, 1), (others[0], 2)] {
            let message = protocol::decode(&answer[4..]).unwrap();
            assert!(
                matches!(message, ToWatch::Positions { number, positions } if number == wanted && positions.len() == RANKS)
            );
        }
    }
}
