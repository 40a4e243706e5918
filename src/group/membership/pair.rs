//! Groups of two ranks, made by these two alone: `open_pair` and `join_pair`.
//!
//! The two ranks exchange by messages what [split](ProcessGroup::split) exchanges by all_gathers. The first message has the
//! caller's tag and contains a number that its sender chose; that number is the tag of all further messages. So threads that
//! make pairs at the same time, in the same or in opposite directions, do not receive each other's messages.

use unisono_schedule::Rank;

use crate::{
    buffer::Borrowed,
    call::Form,
    dtype::{Alias, Dtype},
    engine::{CommIds, Inbound, Place, What},
    error::{Error, Result},
    group::{
        ProcessGroup,
        membership::split::{NewGroup, common},
        p2p::{Source, sender},
        plan::spec::CallOptions,
    },
    runtime::ANSWER,
};

/// The number of words that hold a set of communicator ids.
const IDS: usize = size_of::<CommIds>() / 8;

/// The words of the first message: the number, and the free communicator ids.
const FIRST: usize = 1 + IDS;

/// The exchange with the other rank.
struct Exchange<'g> {
    group: &'g ProcessGroup,
    peer: Rank,
    number: u32,
    /// Whether this rank has sent the first message.
    first: bool,
}

impl ProcessGroup {
    /// Makes a group of two ranks: this rank, which becomes rank 0, and rank `to`, which calls [`join_pair`](Self::join_pair)
    /// with the same tag. Other ranks take no part. Calls are matched as messages are, by tag and order; several threads may
    /// make pairs at the same time.
    ///
    /// The new group has the configuration's options, not those of this handle
    /// ([`with_algorithms`](Self::with_algorithms) and its siblings).
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
    /// [`Error::Argument`] if there is no such rank, if it is this one, or if the two already are in 4096 groups, taken
    /// together. If one of the two has no memory for the group, [`Error::Transport`] there and [`Error::Argument`] on the
    /// other. [`Error::Failed`] if the other rank receives something else with this tag or does not join before the deadline,
    /// or if the group has failed.
    pub fn open_pair(&self, to: Rank, tag: u32) -> Result<Self> {
        let call = "open_pair";
        self.other(call, to.into())?;
        let (number, free) = (self.shared.runtime.inner(), self.free_comm_ids()?);
        let mut first = [number.into(); FIRST];
        first[1..].copy_from_slice(&free);
        let exchange = Exchange { group: self, peer: to, number, first: true };
        let mut theirs = [0; IDS];
        let first =
            self.outbound(Dtype::U64, &Borrowed::apart(&first, &mut []).input, to, tag, Form::Pair)?;
        self.wait(What::Several(vec![first, exchange.receives(&mut theirs)]))?;
        exchange.pair(call, common([&free, &theirs]))
    }

    /// Makes a group of two ranks: one that calls [`open_pair`](Self::open_pair), which becomes rank 0, and this one. Returns
    /// the group, and the other's rank in this group.
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
        let exchange =
            Exchange { group: self, peer: from, number: (number & 0xffff_ffff) as u32, first: false };
        self.wait(exchange.sends(&free)?)?;
        Ok((exchange.pair(call, common([&free, &theirs]))?, from))
    }

    /// Checks that the peer is another rank, or any.
    fn other(&self, call: &'static str, peer: Source) -> Result<Option<Rank>> {
        if peer != Source::Rank(self.rank()) {
            return self.source(call, peer);
        }
        let problem = format!("rank {} is this rank; a pair needs another one", self.rank());
        Err(Error::Argument { call, problem })
    }
}

impl Exchange<'_> {
    /// The send of these words.
    fn sends(&self, words: &[u64]) -> Result<What> {
        let (tag, form) =
            if self.first { (self.number, Form::Inner) } else { (self.number | ANSWER, Form::Answer) };
        self.group.outbound(Dtype::U64, &Borrowed::apart(words, &mut []).input, self.peer, tag, form)
    }

    /// The receive of as many words as these, which outlive it.
    fn receives(&self, words: &mut [u64]) -> What {
        let (tag, form) =
            if self.first { (self.number | ANSWER, Form::Answer) } else { (self.number, Form::Inner) };
        inbound(words, Some(self.peer), tag, form)
    }

    /// Sends words to the other rank and receives as many. Returns both ranks' words, those of rank 0 first.
    fn tell(&self, words: &[u64]) -> Result<Vec<u64>> {
        let mut both = [words, words].concat();
        let (zero, one) = both.split_at_mut(words.len());
        let theirs = if self.first { one } else { zero };
        self.group.wait(What::Several(vec![self.sends(words)?, self.receives(theirs)]))?;
        Ok(both)
    }

    /// Makes the group, from the communicator ids that both ranks have free.
    fn pair(&self, call: &'static str, free: CommIds) -> Result<ProcessGroup> {
        let Self { group, peer, number, first } = *self;
        let both = if first { [group.rank(), peer] } else { [peer, group.rank()] };
        let global = both.map(|rank| group.global(rank));
        let new = NewGroup {
            call,
            name: format!("{}/pair", group.name()),
            members: &[0, 1],
            me: Some(usize::from(!first)),
            which: (global[0] as u64) << 32 | u64::from(number),
            global: global.to_vec(),
        };
        let made = group.make(new, free, &mut |words| self.tell(words))?;
        // Only messages were exchanged, so the options of the two handles may differ.
        let pair = made.map(|pair| pair.with_options(CallOptions::default()));
        pair.ok_or_else(|| Error::Argument { call, problem: "this rank is neither of the two".to_owned() })
    }
}

/// A receive into these words, which outlive it.
fn inbound(words: &mut [u64], from: Option<Rank>, tag: u32, form: Form) -> What {
    let count = words.len();
    let place =
        Place::There { output: Borrowed::apart::<u64>(&[], words).output.region, count, registered: None };
    What::Receive(Inbound { from, tag: tag.into(), form, dtype: Dtype::U64, alias: Alias::NONE, place })
}
