//! Groups of some of a group's ranks: `split` and `new_group`.
//!
//! Both are two all_gathers of the group they come from. In the first every rank says where it belongs and which communicator ids
//! it has free; from that all see who the members are and which id all of them have free. In the second each says where its mailbox
//! lies. So ids and ranks follow from the calls alone, and a rank that belongs to no group takes part all the same. If another
//! thread of a rank has taken the id in between, all begin again with what is free then.

use std::sync::{Arc, Mutex};

use unisono_schedule::{Collective, Rank};
use unisono_transport::RemoteRegion;

use crate::{
    buffer::Borrowed,
    config::fnv,
    dtype::Dtype,
    engine::{Cargo, CommId, CommIds, MAX_MEMBERS},
    error::{Error, Failure, Result, list},
    group::{
        ProcessGroup,
        plan::{Planner, spec::CallSpec},
        shared::{Shared, State},
    },
    runtime::{network, peer},
};

/// What a member says of the new group's mailbox: there is no memory for it; it is there; another group has just taken that
/// channel.
const NO_MEMORY: u64 = 0;
const OPENED: u64 = 1;
const TAKEN: u64 = 2;

/// What a rank says in the first all_gather: whether it belongs to a group, to which, its key, and its free channels.
const WORDS: usize = 3 + size_of::<CommIds>() / 8;

/// The same, as numbers.
#[derive(Clone, Copy, Debug)]
struct Say {
    color: Option<u64>,
    key: u64,
    free: CommIds,
}

impl Say {
    fn words(self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let [belongs, color, key, free @ ..] = &mut words;
        (*belongs, *color, *key) = (self.color.is_some().into(), self.color.unwrap_or_default(), self.key);
        *free = self.free;
        words
    }

    fn of(words: &[u64; WORDS]) -> Self {
        let &[belongs, color, key, ref free @ ..] = words;
        Self { color: (belongs == 1).then_some(color), key, free: *free }
    }
}

/// So that keys, which may be negative, are in order as words.
fn ordered(key: i64) -> u64 {
    key.cast_unsigned() ^ 1 << 63
}

/// A group that is made.
pub(crate) struct Founding<'f> {
    pub call: &'static str,
    pub name: String,
    /// Its members, by their places among those who take part; which of them this rank is, if it is one; and their ranks in
    /// the world.
    pub members: &'f [usize],
    pub me: Option<Rank>,
    pub global: Vec<Rank>,
    /// What tells it from groups that other threads make at the same time, alike on all who take part.
    pub which: u64,
}

/// A channel that all have free. Of groups that are made at the same time each looks from a point of its own on, and from
/// another one in each round, so that they do not get in each other's way again and again.
fn common<'f>(free: impl Iterator<Item = &'f CommIds>, which: u64, round: u64) -> Option<CommId> {
    let free = free.fold([u64::MAX; size_of::<CommIds>() / 8], |all, free| {
        std::array::from_fn(|word| all[word] & free[word])
    });
    let [first, second, ..] = fnv(bytemuck::bytes_of(&[which, round])).to_le_bytes();
    let (first, all) = (CommId::from_le_bytes([first, second]), 64 * free.len());
    let comm_ids = (0..all).map(|it| (usize::from(first) + it) % all);
    let found = comm_ids.into_iter().find(|it| free[it / 64] & 1 << (it % 64) != 0);
    found.and_then(|it| CommId::try_from(it).ok())
}

impl ProcessGroup {
    /// Cuts this group up: the ranks that give the same color become a group, in the order of their keys, and of their
    /// ranks here where keys are equal. A rank without a color is in none and gets `None`. Every rank of this group
    /// must call it.
    ///
    /// The new groups work side by side with this one and with each other. A failure in one ends all of a process's
    /// groups, everywhere. Where calls of dozens of groups are under way at once, ranks should
    /// begin them in one order: what a process can receive at once may not suffice for all.
    ///
    /// # Errors
    /// [`Error::Argument`] on all members of a group if they are in as many groups already, taken together, as there may
    /// be at once (4096). If one has no memory for it, [`Error::Transport`] there, and on the other members
    /// [`Error::Argument`], which says which rank of the world has none. Ranks of other groups, or of none, are not
    /// told. [`Error::Failed`] if the ranks disagree or the group is over.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Self>> {
        let mut state = self.shared.state()?;
        let said = self.everyone(&mut state, Cargo::Split, color, ordered(key))?;
        let mut members: Vec<(u64, Rank)> = said
            .iter()
            .enumerate()
            .filter(|(_, say)| color.is_some() && say.color == color)
            .map(|(rank, say)| (say.key, rank))
            .collect();
        members.sort_unstable();
        let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
        let name = format!("{}:{}", state.made, color.unwrap_or_default());
        self.found(&mut state, ("split", Cargo::Split), &said, &members, &name)
    }

    /// A group of these ranks of this one, in this order. Every rank of this group must call it with the same list;
    /// those that are not on it get `None`.
    ///
    /// # Errors
    /// As [`split`](Self::split), and [`Error::Argument`] if the list is empty, or names a rank twice or one that does
    /// not exist.
    pub fn new_group(&self, ranks: &[Rank]) -> Result<Option<Self>> {
        let argument = |problem: String| Err(Error::Argument { call: "new_group", problem });
        if ranks.is_empty() {
            return argument("the list of ranks is empty".to_owned());
        }
        let mut seen = vec![false; self.size()];
        for &rank in ranks {
            match seen.get_mut(rank) {
                None => {
                    return argument(format!("there is no rank {rank}; there are 0 to {}", self.size() - 1));
                }
                Some(true) => return argument(format!("rank {rank} is named twice in {}", list(ranks))),
                Some(seen) => *seen = true,
            }
        }
        let mut state = self.shared.state()?;
        // Which list it is, so that ranks find out that theirs differ.
        let bytes: Vec<u8> = ranks.iter().flat_map(|&rank| (rank as u64).to_le_bytes()).collect();
        let which = fnv(&bytes);
        let said = self.everyone(&mut state, Cargo::NewGroup, Some(which), 0)?;
        if let Some(other) = said.iter().position(|say| say.color != Some(which)) {
            let (me, them) = (self.global_rank(), self.global(other));
            let mut sides = [(me, format!("has the ranks {}", list(ranks))), (them, "has others".to_owned())];
            sides.sort();
            let [left, right] = sides;
            let op = state.op();
            return Err(self.shared.fail(Failure::Mismatch {
                group: self.shared.group_name(),
                op,
                call: "new_group()".to_owned(),
                left,
                right,
            }));
        }
        let name = state.made.to_string();
        self.found(&mut state, ("new_group", Cargo::NewGroup), &said, ranks, &name)
    }

    /// This process's rank in the world.
    #[must_use]
    pub fn global_rank(&self) -> Rank {
        self.shared.runtime.rank
    }

    /// The rank in the world of a rank of this group; the same number if there is no such rank.
    #[must_use]
    pub fn global(&self, rank: Rank) -> Rank {
        self.shared.members.get(rank).copied().unwrap_or(rank)
    }

    /// The rank in this group of a rank of the world, if it is a member.
    #[must_use]
    pub fn local(&self, global: Rank) -> Option<Rank> {
        self.shared.members.iter().position(|&member| member == global)
    }

    /// The ranks in the world of all members, by rank.
    #[must_use]
    pub fn members(&self) -> &[Rank] {
        &self.shared.members
    }

    /// What the group is called, alike on all its members: `world`, and for others the group they come from, how many
    /// were made of that before, and the color: `world/0:2` is of the world's first split, color 2.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What every rank says.
    fn everyone(&self, state: &mut State, cargo: Cargo, color: Option<u64>, key: u64) -> Result<Vec<Say>> {
        let words = Say { color, key, free: self.free_comm_ids()? }.words();
        let all = self.gathered(state, cargo, &words)?;
        Ok(all.as_chunks().0.iter().map(Say::of).collect())
    }

    fn gathered(&self, state: &mut State, cargo: Cargo, words: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0; words.len() * self.size()];
        let spec = CallSpec { cargo, ..CallSpec::new(Collective::AllGather, words.len()) };
        self.shared.run(state, Dtype::U64, &spec, Borrowed::apart(words, &mut all), &self.options)?;
        Ok(all)
    }

    /// Makes the group of these ranks; for those that are not among them, helps the others.
    fn found(
        &self,
        state: &mut State,
        (call, cargo): (&'static str, Cargo),
        said: &[Say],
        members: &[Rank],
        name: &str,
    ) -> Result<Option<Self>> {
        state.made += 1;
        let founding = Founding {
            call,
            name: format!("{}/{name}", self.shared.name),
            members,
            me: members.iter().position(|&member| member == self.rank()),
            global: members.iter().map(|&rank| self.global(rank)).collect(),
            which: self.shared.comm_id.into(),
        };
        let free = said.iter().map(|say| say.free).collect();
        self.make(founding, free, &mut |words| self.gathered(state, cargo, words))
    }

    /// The channels that are free here.
    pub(crate) fn free_comm_ids(&self) -> Result<CommIds> {
        self.shared.runtime.with(|engine| engine.net().free_comm_ids())
    }

    /// Makes a group. Those who take part have said which channels they have `free`, and `tell` each other more.
    pub(crate) fn make(
        &self,
        founding: Founding<'_>,
        mut free: Vec<CommIds>,
        tell: &mut dyn FnMut(&[u64]) -> Result<Vec<u64>>,
    ) -> Result<Option<Self>> {
        let Founding { call, name, members, me, global, which } = founding;
        let runtime = &self.shared.runtime;
        let mut round = 0;
        let (comm_id, opened, told) = loop {
            let free_there = members.iter().filter_map(|&member| free.get(member));
            let comm_id = if members.len() > MAX_MEMBERS { None } else { common(free_there, which, round) };
            // Before anyone can know that the group is there.
            let opened = match (me, comm_id) {
                (Some(me), Some(comm_id)) => {
                    // A rank that cannot must still take part in what follows.
                    Some(runtime.with(|engine| engine.net().open(comm_id, me, &global, runtime.settings))?)
                }
                _ => None,
            };
            let (mailbox, how) = match &opened {
                Some(Ok(Some(mailbox))) => (*mailbox, OPENED),
                Some(Ok(None)) => (RemoteRegion::default(), TAKEN),
                Some(Err(_)) | None => (RemoteRegion::default(), NO_MEMORY),
            };
            let told = tell(&[mailbox.base, mailbox.key, mailbox.len, how])?;
            if !told.as_chunks().0.iter().any(|&[.., how]: &[u64; 4]| how == TAKEN) {
                break (comm_id, opened, told);
            }
            // All begin again: also those that have opened a group, and those that are not in any.
            if let (OPENED, Some(comm_id)) = (how, comm_id) {
                runtime.leave(comm_id)?;
            }
            free = tell(&self.free_comm_ids()?)?.as_chunks().0.to_vec();
            round += 1;
        };
        let Some(me) = me else { return Ok(None) };
        let (Some(opened), Some(comm_id)) = (opened, comm_id) else {
            let problem = match members.len() {
                many if many > MAX_MEMBERS => {
                    format!("a group of {many} ranks; at most {MAX_MEMBERS} may be in one that is not the world")
                }
                _ => "its members are in 4096 groups already, taken together, which is the most at once: drop some"
                    .to_owned(),
            };
            return Err(Error::Argument { call, problem });
        };
        let opened = opened?;
        let there: Vec<&[u64; 4]> =
            members.iter().filter_map(|&member| told.as_chunks().0.get(member)).collect();
        if let Some((rank, _)) = global.iter().zip(&there).find(|(_, it)| it[3] != OPENED) {
            if opened.is_some() {
                runtime.leave(comm_id)?;
            }
            let problem = format!("rank {rank} has no memory for the group's mailbox");
            return Err(Error::Argument { call, problem });
        }
        let mailboxes = there.iter().map(|&&[base, key, len, _]| RemoteRegion { base, key, len });
        let label: Arc<str> = format!("{name} of ranks {}", list(&global)).into();
        // A name alone may have been another group's, of two ranks, before.
        let id = fnv(format!("{label}, {which}").as_bytes()).max(1);
        let introduced = runtime.with(|engine| {
            engine.net().core(comm_id).map(|core| {
                core.comm.name(id, Arc::clone(&label));
                core.comm.introduce(mailboxes);
            })
        })?;
        introduced
            .map_err(|stop| self.shared.stopped(stop, "a group's making", std::time::Duration::ZERO))?;
        let peers: Vec<_> = global.iter().filter_map(|&rank| runtime.peers.get(rank).cloned()).collect();
        let tuned = runtime.tuned.clone().of(members.len());
        let cheap = runtime.limits.cheap_registration;
        let planner = Planner::new(
            me,
            peer::chooser(&peers, network::kind(&runtime.limits.provider)),
            tuned,
            runtime.settings,
            cheap,
        );
        let shared = Shared {
            runtime: Arc::clone(runtime),
            comm_id,
            planner,
            label: Some(label),
            id,
            name,
            members: global,
            state: Mutex::default(),
        };
        Ok(Some(Self::of(shared, self.options, Some(self))))
    }
}
