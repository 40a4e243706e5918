//! The public face: a process group and its calls. Arguments are checked here, a call is planned, and the runtime runs it.

mod collective;
mod membership;
mod p2p;
mod plan;
mod sequence;
mod shared;
#[cfg(test)]
mod tests;
mod typed;

use std::{fmt, sync::Arc};

use unisono_schedule::{
    Collective, Rank,
    select::{Choice, Selection},
};
use unisono_transport::{Limits, Memory};

pub use self::{
    p2p::{Message, Source},
    typed::buckets::GradientBuckets,
};
use self::{
    plan::spec::{CallOptions, CallSpec, Pipeline},
    shared::{Membership, Shared},
};
pub use crate::engine::Traced;
use crate::{
    buffer::{Borrowed, Buffer},
    config::Config,
    dtype::{Dtype, Element},
    error::{Error, Failure, Result},
    reduce::Reduction,
};

/// The ranks that work together, seen from one of them.
///
/// Every rank makes the same calls in the same order. Calls block until this rank's part is done: its
/// output is complete and its input may be changed. A call that does not fit what the other ranks call
/// fails on all of them: no element of a message that does not fit is used. What the output holds then is
/// not said, for it may hold what came from ranks that agree. A rank that only sends, as a broadcast's root
/// does, may learn of it at its next call or when it leaves. Every call fails once a rank has died or a
/// deadline has passed; from then on the group is over. Where libfabric does not return from a call for 5 s
/// after that, no error can be returned: the process says so on its standard error and aborts (`SIGABRT`, which
/// shells tell as status 134).
///
/// It may be shared by threads: their operations run one after the other, those of different groups side by side.
///
/// Ranks that wait for each other, in groups that they call in different orders or for messages, are told after a second. A rank
/// counts as waiting when all of its threads that have ever called this library do: let a thread that calls for the first time
/// late, and that others count on, call anything before.
///
/// Roots, sources and destinations are ranks of the group; torch.distributed's `src` and `dst` are those of the world.
/// [`local`](Self::local) gives the group's rank of one of the world, [`global`](Self::global) that in the world of one
/// of the group. An [`Error::Argument`] that rejects a rank given here names ranks of the group. Other errors, failures
/// and mismatches above all, name those of the world; only the root in a call that they quote, as in
/// `broadcast(i8, root 0)`, is one of the group.
///
/// A child that this process forks and that executes no other program has no part in the group: there every call is an
/// [`Error::Forked`], and dropping handles, [`Work`](crate::Work) and buffers does nothing. The parent goes on.
///
/// [`with_algorithms`](Self::with_algorithms), [`with_pipeline`](Self::with_pipeline) and
/// [`with_reduction`](Self::with_reduction) give another handle of the same group, whose calls go about it in another
/// way. The group ends with its last handle.
pub struct ProcessGroup {
    shared: Arc<Shared>,
    options: CallOptions,
    /// What a call under way does not have.
    membership: Option<Arc<Membership>>,
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup")
            .field("rank", &self.rank())
            .field("ranks", &self.size())
            .field("provider", &self.limits().provider)
            .finish_non_exhaustive()
    }
}

impl ProcessGroup {
    /// This process's rank in this group, from 0; [`global_rank`](Self::global_rank) is that in the world.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.shared.planner.rank
    }

    /// How many ranks this group has.
    #[must_use]
    pub fn size(&self) -> usize {
        self.shared.planner.topology.ranks
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.runtime.config
    }

    /// What the transport under the group can do, and its provider's name and version.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.runtime.limits
    }

    /// A buffer of `len` zeros in registered memory: puts read it, and large results are written into it, without a
    /// copy. On providers that pin memory (verbs, EFA, cxi) that saves a copy of everything that is sent and of
    /// large results; on tcp and shm it changes nothing. The configuration says whether it lies in huge pages.
    ///
    /// # Errors
    /// [`Error::Transport`] if the memory cannot be had or not be registered (see `ulimit -l`);
    /// [`Error::Argument`] if the length overflows; [`Error::Failed`] if the group is over.
    pub fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let overflow = || Error::Argument {
            call: "buffer",
            problem: format!("{len} elements of {} bytes are more than can be addressed", size_of::<T>()),
        };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(overflow)?;
        let memory = Memory::map(bytes.max(1), self.shared.runtime.config.huge_pages)?;
        let region = self.shared.runtime.with(|engine| engine.transport().register(memory))??;
        Buffer::new(region, len, &self.shared.runtime.registry).ok_or_else(overflow)
    }

    /// Ends the world and all its groups, also for ranks that are not in this one: all get [`Failure::Aborted`] with this
    /// reason from the call they are in or make next. May be called while another thread is in a call, which it ends.
    /// Returns what every later call returns: that, or the failure that came before it.
    pub fn abort(&self, why: &str) -> Error {
        let runtime = &self.shared.runtime;
        runtime.fail(Failure::Aborted { rank: runtime.rank, why: why.to_owned() })
    }

    /// The name of the algorithm that does a collective of `count` elements (as [`Collective`] counts them).
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths overflow; [`Error::Failed`] if the group is over.
    pub fn algorithm(&self, collective: Collective, count: usize, dtype: Dtype) -> Result<&'static str> {
        Ok(self.choice(collective, count, dtype)?.algorithm.name)
    }

    /// How a collective of `count` elements (as [`Collective`] counts them) is done: by which algorithm, in messages of at
    /// most how many bytes, on at most how many lanes.
    ///
    /// # Errors
    /// As [`Self::algorithm`].
    pub fn choice(&self, collective: Collective, count: usize, dtype: Dtype) -> Result<Choice> {
        self.shared.runtime.check()?;
        self.shared.planner.choose(&CallSpec::new(collective, count), dtype.size(), &self.options)
    }

    /// The number of the group's operations begun so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.operations()
    }

    /// Keeps, from now on, the steps of each operation of any of this process's groups in the order in which they finished;
    /// [`Self::trace`] gives those of the one that ended last. It costs memory: one entry for every step.
    pub fn keep_trace(&self) {
        // Of a group that is over there is nothing to keep.
        let _ = self.shared.runtime.with(|engine| engine.trace = Some(Vec::new()));
    }

    /// The steps of the operation that ended last, of whichever group, if [`Self::keep_trace`] was called before it.
    #[must_use]
    pub fn trace(&self) -> Vec<Traced> {
        self.shared.runtime.with(|engine| engine.trace.clone()).ok().flatten().unwrap_or_default()
    }

    /// Bytes of memory that windows, mailboxes, staging and scratch of all groups take in this process at present.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.shared.runtime.with(|engine| engine.memory()).unwrap_or_default()
    }

    /// Another handle of the same group, whose calls take only these algorithms, whatever the configuration says; the
    /// words are those of [`Config::algorithm`]. Every rank must make a call with the same selection.
    ///
    /// # Errors
    /// [`Error::Argument`] names what does not exist, and what does.
    pub fn with_algorithms(&self, algorithms: &str) -> Result<Self> {
        let selection = Selection::parse(algorithms)
            .map_err(|problem| Error::Argument { call: "with_algorithms", problem })?;
        Ok(self.with_options(CallOptions { selection, ..self.options }))
    }

    /// The most bytes of a message: as [`Config::chunk`] has it, or less where the limit on locked memory of some rank wants it.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.shared.runtime.settings.chunk_bytes
    }

    /// Another handle of the same group, whose calls are cut into messages of at most so many bytes on at most so many
    /// lanes, whatever the tables say. On one lane messages have at most [`Config::eager`] bytes. Every rank must make
    /// a call with the same; if one does not, all are told.
    ///
    /// # Errors
    /// [`Error::Argument`] if one of them is 0 or more than [`Config::chunk`] and [`Config::lanes`] allow.
    pub fn with_pipeline(&self, chunk_bytes: usize, lanes: usize) -> Result<Self> {
        let config = &self.shared.runtime.config;
        let most = [("chunk_bytes", chunk_bytes, config.chunk), ("lanes", lanes, config.lanes)];
        if let Some((name, value, most)) =
            most.into_iter().find(|&(_, value, most)| value == 0 || value > most)
        {
            let problem = format!("{name} is {value}; with this configuration it must be from 1 to {most}");
            return Err(Error::Argument { call: "with_pipeline", problem });
        }
        Ok(self.with_options(CallOptions { pipeline: Some(Pipeline { chunk_bytes, lanes }), ..self.options }))
    }

    /// Another handle of the same group, whose reductions are of this kind, whatever the configuration says. Every
    /// rank must make a call with the same.
    #[must_use]
    pub fn with_reduction(&self, reduction: Reduction) -> Self {
        self.with_options(CallOptions { reduction, ..self.options })
    }

    fn with_options(&self, options: CallOptions) -> Self {
        Self { shared: Arc::clone(&self.shared), options, membership: self.membership.clone() }
    }

    /// A handle for a call, with which the group may end nevertheless.
    fn under_way(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), options: self.options, membership: None }
    }

    /// The first handle of a group, which comes from another unless it is the world.
    fn of(shared: Shared, options: CallOptions, parent: Option<&Self>) -> Self {
        let (shared, parent) = (Arc::new(shared), parent.and_then(|parent| parent.membership.clone()));
        let membership = Some(Arc::new(Membership { shared: Arc::clone(&shared), parent }));
        Self { shared, options, membership }
    }

    /// Runs a collective of `T` on borrowed memory; a failure ends the group.
    fn run<T: Element>(&self, spec: &CallSpec<'_>, borrowed: Borrowed<'_>) -> Result<()> {
        self.shared.run(&mut *self.shared.state()?, T::DTYPE, spec, borrowed, &self.options)
    }

    /// Called on the world, leaves it in good order, and with it all groups: from then on there are no calls. Every rank must
    /// call it, as any collective, and it ends when all ranks have: however far apart that is, for there is no timeout, and at
    /// once if a rank dies or fails. A rank cannot go earlier, because an endpoint that closes may take along what it has sent
    /// and the network has not delivered; and only a rank that is still there can tell that the others call something else.
    /// After 30 s it logs a warning that says where the others are. Dropping the last handle of the world and of the groups
    /// made of it does the same, but cannot tell what came of it.
    ///
    /// Called on another group, ends this handle, waits for nobody, and is always `Ok`.
    ///
    /// # Errors
    /// On the world, [`Error::Failed`] if it is over, or the others call something else: a rank that leaves while
    /// others call a collective or wait for its message is a failure, and so is a call whose messages nobody took, or a
    /// message that nobody has received, in any group. All ranks get the same. A receive for which nothing has come when all
    /// ranks leave is none: its [`Work`](crate::Work) ends with an error of its own.
    pub fn leave(self) -> Result<()> {
        self.shared.part()
    }
}
