//! Groups that are made by their members alone: `create_group`.
//!
//! The members exchange by messages of the parent group the data that [split](ProcessGroup::split) exchanges by all_gathers. The messages
//! have the caller's tag in a separate space, so no send or receive of a caller matches them. They run twice along a tree of the list of
//! members, to its first member and back: up to 16 members all send to the first one; each way takes ⌈log16 n⌉ steps for n members.

use unisono_engine::{
    Borrowed, CommIds, Form, Inbound, MAX_RANKS, MessageKind, Outbound, Place, Receipts, RequestKind,
};
use unisono_schedule::Rank;

use crate::{
    dtype::Dtype,
    error::{Error, Failure, Result, list},
    group::{
        ProcessGroup,
        handle::Handle,
        membership::split::{NewGroup, common},
        message::elements,
        plan::{CallOptions, argument},
    },
};

/// The number of words that hold a set of communicator ids.
const IDS: usize = size_of::<CommIds>() / 8;

/// The tree: the parent of a member is the one whose index in the list has the lowest digit other than 0, of this base, replaced
/// by 0. A larger base needs fewer steps, in each of which a rank must be woken; 15 small messages take a rank less time than one more
/// step.
const BASE: usize = 16;

/// The exchange among the members.
struct Exchange<'g> {
    group: &'g Handle,
    /// The members, as ranks of the parent group.
    ranks: &'g [Rank],
    /// This rank's index in `ranks`.
    me: usize,
    tag: u64,
}

/// # Groups that only their members make
impl ProcessGroup {
    /// Makes a group of these ranks of this group, in this order, as `MPI_Comm_create_group` does: only the members call it, all
    /// with the same list and tag. Other ranks do nothing, and members may meanwhile be in other calls of this group by other
    /// threads. ([`new_group`](Self::new_group) is a collective call of all ranks of this group.)
    ///
    /// The tag distinguishes groups that threads make at the same time. Groups that a thread makes one after the other may have
    /// the same tag, if all ranks of several of them make these in the same order. No tag of a message is meant by it.
    ///
    /// The new group has the configuration's options, not those of this handle
    /// ([`with_algorithms`](Self::with_algorithms) and its siblings). Dropping it waits for no rank.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, ReduceOp};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let world = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// // The ranks with even numbers.
    /// let even: Vec<_> = (0..world.size()).step_by(2).collect();
    /// if even.contains(&world.rank()) {
    ///     let group = world.create_group(&even, 0)?;
    ///     group.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the list is empty, has a rank twice or one that does not exist, or if this rank is not in it; and
    /// on all members if they already are in 4096 groups, taken together. If one member has no memory for the group,
    /// [`Error::Transport`] there and [`Error::Argument`] on the others. [`Error::Failed`] with [`Failure::Members`] if two
    /// members have other lists; with [`Failure::Undelivered`], which names the ranks that called nothing or something else, if a
    /// member does not come before the deadline; with [`Failure::Deadlock`] if it waits for this rank in another call; or if
    /// the group has failed.
    pub fn create_group(&self, ranks: &[Rank], tag: u64) -> Result<Self> {
        let (call, handle) = ("create_group", &self.handle);
        handle.check_members(call, ranks)?;
        let Some(me) = ranks.iter().position(|&rank| rank == self.rank()) else {
            let problem = format!("rank {}, which is this rank, is not one of {}", self.rank(), list(ranks));
            return Err(argument(call, problem));
        };
        let exchange = Exchange { group: handle, ranks, me, tag };
        let (number, free) = exchange.agree(handle.free_comm_ids()?)?;
        let global: Vec<Rank> = ranks.iter().map(|&rank| handle.global(rank)).collect();
        let members: Vec<usize> = (0..ranks.len()).collect();
        let new = NewGroup {
            call,
            name: format!("{}/tag {tag}", self.name()),
            members: &members,
            me: Some(me),
            which: global.first().map_or(0, |&first| first as u64) << 32 | number,
            global,
        };
        let made = handle.make(new, free, &mut |words| exchange.gather(words))?;
        // Only messages were exchanged, so the options of the members' handles may differ.
        let made = made.map(|made| Self::of(made.handle.with_options(CallOptions::default())));
        made.ok_or_else(|| argument(call, "this rank is not a member"))
    }
}

/// The steps between siblings of the tree, from the leaves on.
fn levels() -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |step: &usize| step.checked_mul(BASE)).take_while(|step| *step < MAX_RANKS)
}

impl Exchange<'_> {
    /// The member that this one sends to on the way to the first member.
    fn parent(&self) -> Option<Rank> {
        let digit = levels().find(|step| !self.me.is_multiple_of(step * BASE))?;
        self.ranks.get(self.me - self.me % (digit * BASE)).copied()
    }

    /// The members that send to this one on the way to the first member, in the order of the list, and the number of members that send
    /// through each, itself included.
    fn children(&self) -> Vec<(Rank, usize)> {
        let (me, all) = (self.me, self.ranks.len());
        let levels = levels().take_while(|step| me.is_multiple_of(step * BASE) && me + step < all);
        let children = levels.flat_map(|step| (1..BASE).map(move |digit| (me + digit * step, step)));
        let children = children.take_while(|(child, _)| *child < all);
        children.map(|(child, step)| (self.ranks[child], step.min(all - child))).collect()
    }

    /// Compares the lists of all members. Returns a number that the first member has drawn, and the communicator ids that all
    /// members have free, out of those that are free on this rank.
    fn agree(&self, mut free: CommIds) -> Result<(u64, CommIds)> {
        let mine: Vec<u64> = self.ranks.iter().map(|&rank| rank as u64).collect();
        for (child, _) in self.children() {
            // They are received one after the other, so that this rank reports a list that differs even if other members do not come.
            let most = isize::MAX.unsigned_abs();
            let kind = MessageKind::new(Form::Group, Dtype::U64, most);
            let message = Inbound { from: Some(child), tag: self.tag, kind, place: Place::Fresh };
            let words = elements::<u64>(self.run(vec![RequestKind::Receive(message)])?)?.0;
            match words.split_last_chunk::<IDS>() {
                Some((theirs, ids)) if theirs == mine => free = common([&free, ids]),
                _ => return Err(self.differ(child, &words)),
            }
        }
        let mut agreed = [0; 1 + IDS];
        match self.parent() {
            None => {
                agreed[0] = self.group.shared.runtime.inner().into();
                agreed[1..].copy_from_slice(&free);
            }
            Some(parent) => {
                self.send([parent], &[&mine[..], &free].concat())?;
                self.run(vec![self.receive_into(parent, &mut agreed)])?;
            }
        }
        self.send_on(&agreed)?;
        let [number, free @ ..] = agreed;
        Ok((number, free))
    }

    /// Gathers words of all members, in the order of the list.
    fn gather(&self, words: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0; words.len() * self.ranks.len()];
        let (mine, mut theirs) = all.split_at_mut(words.len());
        mine.copy_from_slice(words);
        let (mut receives, mut end) = (Vec::new(), words.len());
        for (child, members) in self.children() {
            let (block, rest) = theirs.split_at_mut(words.len() * members);
            receives.push(self.receive_into(child, block));
            (theirs, end) = (rest, end + block.len());
        }
        self.run(receives)?;
        if let Some(parent) = self.parent() {
            self.send([parent], &all[..end])?;
            self.run(vec![self.receive_into(parent, &mut all)])?;
        }
        self.send_on(&all)?;
        Ok(all)
    }

    /// Sends words to the next members on the way from the first one, beginning with those that forward to most members.
    fn send_on(&self, words: &[u64]) -> Result<()> {
        self.send(self.children().into_iter().rev().map(|(child, _)| child), words)
    }

    fn send(&self, to: impl IntoIterator<Item = Rank>, words: &[u64]) -> Result<()> {
        let kind = MessageKind::new(Form::Group, Dtype::U64, words.len());
        let source = Borrowed::apart(words, &mut []).input.memory;
        let send = |to| RequestKind::Send(Outbound { to, tag: self.tag, kind, source: source.clone() });
        self.run(to.into_iter().map(send).collect()).map(drop)
    }

    fn receive_into(&self, from: Rank, words: &mut [u64]) -> RequestKind {
        self.group.receive_into(Form::Group, from, self.tag, words)
    }

    /// Runs these messages, and returns the results of the receives.
    fn run(&self, messages: Vec<RequestKind>) -> Result<Receipts> {
        if messages.is_empty() {
            return Ok(Receipts::new());
        }
        Ok(self.group.wait(RequestKind::Several(messages))?.received)
    }

    /// The failure if a member's first message has another list.
    fn differ(&self, child: Rank, words: &[u64]) -> Error {
        let group = self.group;
        let world = |ranks: &[Rank]| list(&ranks.iter().map(|&rank| group.global(rank)).collect::<Vec<_>>());
        let theirs = &words[..words.len().saturating_sub(IDS)];
        let theirs: Vec<Rank> = theirs.iter().filter_map(|&rank| rank.try_into().ok()).collect();
        let mut sides = [(group.global_rank(), world(self.ranks)), (group.global(child), world(&theirs))];
        sides.sort();
        let [left, right] = sides;
        group.shared.fail(Failure::Members { group: group.shared.group_name(), tag: self.tag, left, right })
    }
}
