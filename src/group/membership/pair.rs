//! Groups of two ranks, made by these two alone: `open_pair` and `join_pair`.
//!
//! What all ranks of a group tell each other when it is [split](ProcessGroup::split), the two tell each other by messages.
//! The first message bears the caller's tag and a number of its sender's; all that follow bear that number. So threads that
//! make groups of two at the same time, in the same or in opposite directions, do not take each other's messages.

use unisono_schedule::Rank;

use crate::{
    buffer::Borrowed,
    dtype::Dtype,
    engine::{CommIds, Form, Inbound, Place, What},
    error::{Error, Result},
    group::{
        ProcessGroup,
        membership::split::Founding,
        p2p::{Source, sender},
        plan::spec::CallOptions,
    },
    runtime::ANSWER,
};

/// Words of channels.
const CHANNELS: usize = size_of::<CommIds>() / 8;

/// What is told first: the number, and which channels are free.
const FIRST: usize = 1 + CHANNELS;

/// What leads to the other one.
struct Line<'g> {
    group: &'g ProcessGroup,
    peer: Rank,
    number: u32,
    /// Whether this rank has sent the first message.
    first: bool,
}

impl ProcessGroup {
    /// Makes a group of this rank, which becomes its rank 0, and another, which calls [`join_pair`](Self::join_pair) with the
    /// same tag. The other ranks take no part, and may do anything meanwhile. As in messages, tags and the order of calls
    /// tell what belongs together; several threads may make pairs at the same time.
    ///
    /// The new group's calls are done as the configuration says, whatever this handle asks for.
    ///
    /// ```no_run
    /// # fn main() -> unisono::Result<()> {
    /// # let group = unisono::ProcessGroup::from_env()?;
    /// if group.rank() == 0 {
    ///     let pair = group.open_pair(2, 7)?;
    ///     pair.broadcast(&mut [1.0_f32; 1000], 0)?;
    /// } else if group.rank() == 2 {
    ///     let (pair, _) = group.join_pair(0, 7)?;
    ///     pair.broadcast(&mut [0.0_f32; 1000], 0)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank, it is this one, or the two are in as many groups already, taken
    /// together, as there may be at once (4096). If one of the two has no memory for it, [`Error::Transport`] there and
    /// [`Error::Argument`] at the other. [`Error::Failed`] if the other receives something else with this tag, or does not
    /// join before the deadline, or if the group is over.
    pub fn open_pair(&self, to: Rank, tag: u32) -> Result<Self> {
        let call = "open_pair";
        self.other(call, to.into())?;
        let (number, free) = (self.shared.runtime.inner(), self.free_comm_ids()?);
        let mut first = [number.into(); FIRST];
        first[1..].copy_from_slice(&free);
        let line = Line { group: self, peer: to, number, first: true };
        let mut theirs = [0; CHANNELS];
        let first = self.outbound::<u64>(&Borrowed::apart(&first, &mut []), to, tag, Form::Pair)?;
        self.wait(What::Several(vec![first, line.hears(&mut theirs)]))?;
        line.pair(call, vec![free, theirs])
    }

    /// Makes a group of a rank that calls [`open_pair`](Self::open_pair), which becomes its rank 0, and this one; and tells
    /// which rank of this group that is.
    ///
    /// # Errors
    /// As [`open_pair`](Self::open_pair).
    pub fn join_pair(&self, from: impl Into<Source>, tag: u32) -> Result<(Self, Rank)> {
        let call = "join_pair";
        let from = self.other(call, from.into())?;
        let mut first = [0; FIRST];
        let from = sender(&self.wait(inbound(&mut first, from, tag, Form::Pair))?.received);
        let [number, theirs @ ..] = first;
        let free = self.free_comm_ids()?;
        let line = Line { group: self, peer: from, number: (number & 0xffff_ffff) as u32, first: false };
        self.wait(line.says(&free)?)?;
        Ok((line.pair(call, vec![theirs, free])?, from))
    }

    /// Another rank, or any: a process is in a group once.
    fn other(&self, call: &'static str, peer: Source) -> Result<Option<Rank>> {
        if peer != Source::Rank(self.rank()) {
            return self.source(call, peer);
        }
        let problem = format!("rank {} is this rank; it takes another one", self.rank());
        Err(Error::Argument { call, problem })
    }
}

impl Line<'_> {
    fn says(&self, words: &[u64]) -> Result<What> {
        let (tag, form) =
            if self.first { (self.number, Form::Inner) } else { (self.number | ANSWER, Form::Answer) };
        self.group.outbound::<u64>(&Borrowed::apart(words, &mut []), self.peer, tag, form)
    }

    fn hears(&self, words: &mut [u64]) -> What {
        let (tag, form) =
            if self.first { (self.number | ANSWER, Form::Answer) } else { (self.number, Form::Inner) };
        inbound(words, Some(self.peer), tag, form)
    }

    /// Tells the other one some words, and gives what both tell, rank 0 first.
    fn tell(&self, words: &[u64]) -> Result<Vec<u64>> {
        let mut both = [words, words].concat();
        let (zero, one) = both.split_at_mut(words.len());
        let theirs = if self.first { one } else { zero };
        self.group.wait(What::Several(vec![self.says(words)?, self.hears(theirs)]))?;
        Ok(both)
    }

    /// The group of both, who have told which channels they have free.
    fn pair(&self, call: &'static str, free: Vec<CommIds>) -> Result<ProcessGroup> {
        let Self { group, peer, number, first } = *self;
        let both = if first { [group.rank(), peer] } else { [peer, group.rank()] };
        let global = both.map(|rank| group.global(rank));
        let founding = Founding {
            call,
            name: format!("{}/pair", group.name()),
            members: &[0, 1],
            me: Some(usize::from(!first)),
            which: (global[0] as u64) << 32 | u64::from(number),
            global: global.to_vec(),
        };
        let made = group.make(founding, free, &mut |words| self.tell(words))?;
        // Handles with wishes of their own need not agree where only messages were sent.
        let pair = made.map(|pair| pair.wishing(CallOptions::default()));
        pair.ok_or_else(|| Error::Argument { call, problem: "this rank is neither of the two".to_owned() })
    }
}

/// A receive of these words, which are there until it has ended.
fn inbound(words: &mut [u64], from: Option<Rank>, tag: u32, form: Form) -> What {
    let count = words.len();
    let place = Place::There { output: Borrowed::apart::<u64>(&[], words).output, count, registered: None };
    What::Receive(Inbound { from, tag, form, dtype: Dtype::U64, place })
}
