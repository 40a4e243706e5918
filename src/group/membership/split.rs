//! Groups of some of a group's ranks: `split` and `new_group`.
//!
//! Both are two all_gathers of the parent group. In the first, every rank gives its color and its free communicator ids; from
//! these all ranks compute the members of the new groups and an id that all members have free. In the second, every rank gives
//! the address of its mailbox. Ranks that become no member take part too. If another thread of a member has taken the id meanwhile, all
//! ranks repeat both steps.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use unisono_engine::{Borrowed, Cargo, CommId, CommIds, MAX_MEMBERS};
use unisono_schedule::{Collective, Rank};
use unisono_transport::RemoteRegion;

use crate::{
    config::fnv,
    dtype::Dtype,
    error::{Failure, Result, list},
    group::{
        ProcessGroup,
        handle::Handle,
        order::Engaged,
        plan::{CallSpec, argument},
        shared::{CallKind, GroupState},
    },
};

/// The state of a member's mailbox for the new group: there is no memory for it; it is ready; another group has just taken the
/// communicator id.
const NO_MEMORY: u64 = 0;
const OPENED: u64 = 1;
const TAKEN: u64 = 2;

/// A rank's contribution to the first all_gather: the color, behind 1 if the rank has one, otherwise 0; the key; and the free
/// communicator ids.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Proposal {
    color: [u64; 2],
    key: u64,
    free: CommIds,
}

/// A key, which may be negative, as a word that sorts in the same order.
fn ordered(key: i64) -> u64 {
    key.cast_unsigned() ^ 1 << 63
}

/// The group that the members make.
pub(crate) struct NewGroup<'n> {
    pub call: &'static str,
    pub name: String,
    /// The members, as indices into the list of participants.
    pub members: &'n [usize],
    /// This rank's index in `members`, if it is a member.
    pub me: Option<Rank>,
    /// The members' ranks in the world.
    pub global: Vec<Rank>,
    /// Distinguishes groups that several threads make at the same time; the same on all participants.
    pub which: u64,
}

/// The communicator ids that are free in all of these sets.
pub(crate) fn common<'f>(sets: impl IntoIterator<Item = &'f CommIds>) -> CommIds {
    sets.into_iter().fold([u64::MAX; size_of::<CommIds>() / 8], |all, free| {
        std::array::from_fn(|word| all[word] & free[word])
    })
}

/// One of these ids, if there is any. The search starts at an id that depends on `which` and `round`, so that groups that several threads
/// make at the same time do not compete for the same ids.
fn one_of(free: &CommIds, which: u64, round: u64) -> Option<CommId> {
    let [first, second, ..] = fnv(bytemuck::bytes_of(&[which, round])).to_le_bytes();
    let (first, all) = (CommId::from_le_bytes([first, second]), 64 * free.len());
    let comm_ids = (0..all).map(|it| (usize::from(first) + it) % all);
    let found = comm_ids.into_iter().find(|it| free[it / 64] & 1 << (it % 64) != 0);
    found.and_then(|it| CommId::try_from(it).ok())
}

/// A communicator that all members have tried to open.
struct Proposed {
    /// Its id; `None` if there are too many members, or no id is free.
    comm_id: Option<CommId>,
    /// What this rank's attempt gave; `None` if it is no member, or there is no id.
    opened: Option<std::result::Result<Option<RemoteRegion>, unisono_transport::Error>>,
    /// The mailbox of each participant, and how its attempt ended.
    all_words: Vec<u64>,
}

/// # Groups of some ranks
impl ProcessGroup {
    /// Splits this group, as `MPI_Comm_split` does: ranks that give the same color form a group, ordered by key and, if keys
    /// are equal, by their ranks in this group. A rank without a color joins no group and gets `None`. Every rank of this group
    /// must call it.
    ///
    /// Calls of the new groups run concurrently with calls of this group and of each other. A failure in one group ends all
    /// groups of all its processes. If calls of dozens of groups run at once, all ranks should begin them in the same order,
    /// because the number of messages that a process can receive at once is bounded.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let world = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// // The ranks with even numbers, and those with odd ones; within each the highest rank first.
    /// let half = world.split(Some(world.rank() as u64 % 2), -(world.rank() as i64))?;
    /// assert_eq!(half.map(|half| half.size()), Some(world.size().div_ceil(2)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) on all members of a group if they already are in 4096 groups, taken together. If one member has no
    /// memory for the group, [`Error::Transport`](crate::Error::Transport) there, and [`Error::Argument`](crate::Error::Argument), which names that rank, on the other members;
    /// other ranks get no error. [`Error::Failed`](crate::Error::Failed) if the ranks disagree on the call, or the group has failed.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Self>> {
        let handle = &self.handle;
        let mut engaged = handle.shared.engage()?;
        let mine = [color.is_some().into(), color.unwrap_or_default()];
        let proposals = handle.proposals(Cargo::Split, mine, ordered(key))?;
        let mut members: Vec<(u64, Rank)> = proposals
            .iter()
            .enumerate()
            .filter(|(_, proposal)| color.is_some() && proposal.color == mine)
            .map(|(rank, proposal)| (proposal.key, rank))
            .collect();
        members.sort_unstable();
        let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
        let name = format!("{}:{}", engaged.state.made, color.unwrap_or_default());
        handle.found(&mut engaged, ("split", Cargo::Split), &proposals, &members, &name)
    }

    /// Makes a group of these ranks of this group, in this order. Every rank of this group must call it with the same list;
    /// ranks that are not on the list get `None`.
    ///
    /// # Errors
    /// As [`split`](Self::split), and [`Error::Argument`](crate::Error::Argument) if the list is empty, or has a rank twice or one that does not exist.
    pub fn new_group(&self, ranks: &[Rank]) -> Result<Option<Self>> {
        let handle = &self.handle;
        handle.check_members("new_group", ranks)?;
        let mut engaged = handle.shared.engage()?;
        // A hash of the list, which ranks compare.
        let bytes: Vec<u8> = ranks.iter().flat_map(|&rank| (rank as u64).to_le_bytes()).collect();
        let which = fnv(&bytes);
        let proposals = handle.proposals(Cargo::NewGroup, [1, which], 0)?;
        if let Some(other) = proposals.iter().position(|proposal| proposal.color != [1, which]) {
            let (me, them) = (handle.global_rank(), handle.global(other));
            let mut sides = [(me, format!("has the ranks {}", list(ranks))), (them, "has others".to_owned())];
            sides.sort();
            let [left, right] = sides;
            let op = handle.shared.op();
            return Err(handle.shared.fail(Failure::Mismatch {
                group: handle.shared.group_name(),
                op,
                call: "new_group()".to_owned(),
                left,
                right,
            }));
        }
        let name = engaged.state.made.to_string();
        handle.found(&mut engaged, ("new_group", Cargo::NewGroup), &proposals, ranks, &name)
    }
}

impl Handle {
    /// Checks a list of members: it is not empty, each rank is of this group, and none occurs twice.
    pub(crate) fn check_members(&self, call: &'static str, ranks: &[Rank]) -> Result<()> {
        if ranks.is_empty() {
            return Err(argument(call, "the list of ranks is empty"));
        }
        let mut seen = vec![false; self.size()];
        for &rank in ranks {
            match seen.get_mut(rank) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => {
                    return Err(argument(call, format!("rank {rank} is named twice in {}", list(ranks))));
                }
                None => {
                    let problem = format!("there is no rank {rank}; there are 0 to {}", self.size() - 1);
                    return Err(argument(call, problem));
                }
            }
        }
        Ok(())
    }

    /// Gathers the proposals of all ranks.
    fn proposals(&self, cargo: Cargo, color: [u64; 2], key: u64) -> Result<Vec<Proposal>> {
        let mine = Proposal { color, key, free: self.free_comm_ids()? };
        let all = self.gathered(cargo, bytemuck::cast_slice(&[mine]))?;
        Ok(bytemuck::cast_slice(&all).to_vec())
    }

    /// Gathers words of all ranks, by rank.
    fn gathered(&self, cargo: Cargo, words: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0; words.len() * self.size()];
        let spec = CallSpec { cargo, ..CallSpec::new(Collective::AllGather, Dtype::U64, words.len()) };
        self.shared.run(CallKind::Several, &spec, Borrowed::apart(words, &mut all), &self.options)?;
        Ok(all)
    }

    /// Makes the group of these ranks; a rank that is not a member only takes part in the exchange.
    fn found(
        &self,
        engaged: &mut Engaged<'_>,
        (call, cargo): (&'static str, Cargo),
        proposals: &[Proposal],
        members: &[Rank],
        name: &str,
    ) -> Result<Option<ProcessGroup>> {
        engaged.state.made += 1;
        let new = NewGroup {
            call,
            name: format!("{}/{name}", self.shared.name),
            members,
            me: members.iter().position(|&member| member == self.rank()),
            global: members.iter().map(|&rank| self.global(rank)).collect(),
            which: self.shared.comm_id.into(),
        };
        let members = members.iter().filter_map(|&member| proposals.get(member));
        let free = common(members.map(|proposal| &proposal.free));
        self.make(new, free, &mut |words| self.gathered(cargo, words))
    }

    /// The communicator ids that are free in this process.
    pub(crate) fn free_comm_ids(&self) -> Result<CommIds> {
        self.shared.with_engine(|engine| engine.free_comm_ids())
    }

    /// Opens the communicator of a new group on all members, under an id that is free on all.
    fn propose(
        &self,
        new: &NewGroup<'_>,
        mut free: CommIds,
        exchange: &mut dyn FnMut(&[u64]) -> Result<Vec<u64>>,
    ) -> Result<Proposed> {
        let NewGroup { members, me, global, which, .. } = new;
        let runtime = &self.shared.runtime;
        let mut round = 0;
        loop {
            let comm_id = if members.len() > MAX_MEMBERS { None } else { one_of(&free, *which, round) };
            // The communicator is open before any other member can send to the new group.
            let open = |(me, comm_id)| {
                self.shared.with_engine(|engine| engine.open(comm_id, me, global, runtime.settings))
            };
            // A rank that cannot open it must still take part in the exchange that follows.
            let opened = me.zip(comm_id).map(open).transpose()?;
            let (mailbox, how) = match &opened {
                Some(Ok(Some(mailbox))) => (*mailbox, OPENED),
                Some(Ok(None)) => (RemoteRegion::default(), TAKEN),
                Some(Err(_)) | None => (RemoteRegion::default(), NO_MEMORY),
            };
            let [base, key, len] = mailbox.words();
            let all_words = exchange(&[base, key, len, how])?;
            if !all_words.as_chunks().0.iter().any(|&[.., how]: &[u64; 4]| how == TAKEN) {
                return Ok(Proposed { comm_id, opened, all_words });
            }
            // All participants repeat both steps, also those that have opened the group and those that are no members.
            if let (OPENED, Some(comm_id)) = (how, comm_id) {
                runtime.leave(comm_id).map_err(|error| runtime.returned(error))?;
            }
            let all_free = exchange(&self.free_comm_ids()?)?;
            free = common(members.iter().filter_map(|&member| all_free.as_chunks().0.get(member)));
            round += 1;
        }
    }

    /// Makes a group. `free` has the communicator ids that all members have free; `exchange` gathers further words of all
    /// participants.
    pub(crate) fn make(
        &self,
        new: NewGroup<'_>,
        free: CommIds,
        exchange: &mut dyn FnMut(&[u64]) -> Result<Vec<u64>>,
    ) -> Result<Option<ProcessGroup>> {
        let Proposed { comm_id, opened, all_words } = self.propose(&new, free, exchange)?;
        let NewGroup { call, name, members, me, global, which } = new;
        let runtime = &self.shared.runtime;
        let Some(me) = me else { return Ok(None) };
        let (Some(opened), Some(comm_id)) = (opened, comm_id) else {
            let most = "a group other than the world may have at most";
            return Err(match members.len() {
                many if many > MAX_MEMBERS => {
                    argument(call, format!("a group of {many} ranks; {most} {MAX_MEMBERS}"))
                }
                _ => argument(
                    call,
                    "its members already are in 4096 groups, taken together, which is the maximum: drop some",
                ),
            });
        };
        let opened = opened?;
        let theirs: Vec<&[u64; 4]> =
            members.iter().filter_map(|&member| all_words.as_chunks().0.get(member)).collect();
        if let Some((rank, _)) = global.iter().zip(&theirs).find(|(_, it)| it[3] != OPENED) {
            if opened.is_some() {
                runtime.leave(comm_id).map_err(|error| runtime.returned(error))?;
            }
            return Err(argument(call, format!("rank {rank} has no memory for the group's mailbox")));
        }
        let mailboxes = theirs.iter().map(|&&[base, key, len, _]| RemoteRegion::from_words([base, key, len]));
        let label: Arc<str> = format!("{name} of ranks {}", list(&global)).into();
        // An earlier group of two ranks may have used the same name.
        let id = fnv(format!("{label}, {which}").as_bytes()).max(1);
        let introduced =
            self.shared.with_engine(|engine| engine.introduce(comm_id, id, Arc::clone(&label), mailboxes))?;
        introduced.map_err(|stop| self.shared.stopped(stop, "making a group", std::time::Duration::ZERO))?;
        let shared = GroupState::new(Arc::clone(runtime), comm_id, (me, global), (name, Some(label)));
        Ok(Some(ProcessGroup::of(Self::of(shared, self.options, Some(self)))))
    }
}
