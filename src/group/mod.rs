//! Process groups and their calls: the methods of [`ProcessGroup`]. A call checks its arguments, plans the operation, and has the
//! runtime run it.

mod collective;
mod elsewhere;
mod erased;
mod membership;
mod order;
mod p2p;
mod plan;
mod sequence;
mod shared;
#[cfg(test)]
mod tests;
mod typed;

use std::{fmt, sync::Arc, time::Duration};

use unisono_schedule::{
    Collective, Rank,
    select::{Choice, Selection},
};
use unisono_transport::Limits;

pub use self::{
    erased::{Direction, MessageRequest, Request},
    membership::describe_transport,
    p2p::{Message, Source},
    typed::buckets::GradientBuckets,
};
use self::{
    plan::spec::{CallOptions, CallSpec, Pipeline, PlanOptions},
    shared::{Membership, Shared},
};
use crate::{
    buffer::{Buffer, Memory},
    config::{Config, YEAR},
    dtype::{Dtype, Element},
    error::{Error, Failure, Result},
    reduce::Reduction,
};

/// A handle of a group of ranks that communicate with each other: the world ([`from_env`](Self::from_env),
/// [`join`](Self::join)), or a part of it ([`split`](Self::split), [`new_group`](Self::new_group),
/// [`create_group`](Self::create_group)).
///
/// # Calls
/// Every rank makes the same collective calls in the same order. A call blocks until this rank's part is done: its output is
/// complete, and its input may be changed. Its `_async` twin returns a [`Work`](crate::Work) at once. Threads may share a group:
/// its operations run one after the other, those of different groups concurrently.
///
/// # Failures
/// If the calls of the ranks differ, the call fails on all of them with a [`Failure::Mismatch`], and no element of a message that
/// does not match is used. The contents of the output are then unspecified. A rank that only sends, as the root of a broadcast
/// does, may get the failure from its next call or when it leaves. After any [`Failure`], for instance the death of a rank or a
/// passed deadline, all calls of all groups of the world return it. If a call of libfabric does not return within 5 s after a
/// failure, the process writes the failure to its standard error and aborts (`SIGABRT`; shells show status 134).
///
/// A deadlock, in which ranks wait for each other in different groups or for messages, is a [`Failure::Deadlock`] after one second.
/// A rank counts as blocked if all of its threads that have ever called this library are blocked in it. A thread whose first call
/// comes late, and on which other ranks depend, should call any method before.
///
/// # Ranks
/// Roots, sources and destinations are ranks of the group, unlike `src` and `dst` of torch.distributed, which are ranks of the
/// world. [`local`](Self::local) and [`global`](Self::global) convert. An [`Error::Argument`] names ranks of the group. All other
/// errors name ranks of the world, except for the root in a call that they quote: `broadcast(i8, root 0)`.
///
/// # Forks
/// A child that this process forks and that executes no other program is no member: each call there returns [`Error::Forked`],
/// and dropping handles, [`Work`](crate::Work) and buffers does nothing. The parent is not affected.
///
/// # Options
/// [`with_algorithms`](Self::with_algorithms), [`with_pipeline`](Self::with_pipeline),
/// [`with_reduction`](Self::with_reduction) and [`with_timeout`](Self::with_timeout) return another handle of the same group, with other options for its calls. The group
/// ends when its last handle is dropped.
pub struct ProcessGroup {
    shared: Arc<Shared>,
    options: CallOptions,
    /// `None` in the handle of an asynchronous call, which does not keep the group from ending.
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
    /// This process's rank in this group, counted from 0. [`global_rank`](Self::global_rank) is its rank in the world.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.shared.planner.rank
    }

    /// The number of ranks of this group.
    #[must_use]
    pub fn size(&self) -> usize {
        self.shared.planner.topology.ranks
    }

    /// The configuration with which the world was joined.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.runtime.config
    }

    /// The capabilities of the transport, and the name and version of its provider.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.runtime.limits
    }

    /// Allocates a buffer of `len` zeros in registered memory. The NIC reads it, and writes large results into it, without a copy
    /// by the CPU. This is faster on providers that pin memory (verbs, EFA, cxi), and among the ranks of a host: they map it, and from
    /// 16 KiB on all_reduce, reduce_scatter, all_gather, broadcast and all_to_all read it where it lies. It makes no difference on tcp.
    /// [`Config::huge_pages`] says whether it is in huge pages.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, ReduceOp};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// let mut weights = group.buffer::<f32>(1000)?;
    /// weights.fill(1.0);
    /// group.all_reduce(&mut weights[..500], ReduceOp::Sum)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Transport`] if the memory cannot be allocated or registered (see `ulimit -l`); [`Error::Argument`] if the length
    /// overflows; [`Error::Failed`] if the group has failed.
    pub fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let overflow = || Error::Argument {
            call: "buffer",
            problem: format!("{len} elements of {} bytes are more than can be addressed", size_of::<T>()),
        };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(overflow)?;
        let (bytes, huge) = (bytes.max(1), self.shared.runtime.config.huge_pages);
        let region = self.shared.runtime.with(|engine| engine.transport().allocate(bytes, huge))??;
        Buffer::new(region, len, &self.shared.runtime.registry).ok_or_else(overflow)
    }

    /// Makes a buffer of memory that is there already, such as a part of a memfd that another library or process has made
    /// ([`Memory::of_memfd`]). It serves as one that [`buffer`](Self::buffer) allocates: the ranks of the host map the same memfd and read it
    /// in place, but they write to it through this process. Its elements are what the memory holds, and results are seen by each process that
    /// has mapped the memfd.
    ///
    /// ```
    /// # use std::os::{fd::OwnedFd, unix::fs::FileExt};
    /// # use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    /// # use unisono::{Config, Memory, ProcessGroup, ReduceOp};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// let file: OwnedFd = memfd_create("gradients", MemfdFlags::ALLOW_SEALING)?;
    /// ftruncate(&file, 400_000)?;
    /// // SAFETY: as long as `gradients` is there, nobody else writes to the file, and others read it between calls.
    /// let memory = unsafe { Memory::of_memfd(&file, 0, 400_000)? };
    /// let mut gradients = group.buffer_from::<f32>(memory)?;
    /// gradients.fill(1.5);
    /// group.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// let mut first = [0; 4];
    /// std::fs::File::from(file).read_exact_at(&mut first, 0)?;
    /// assert_eq!(f32::from_ne_bytes(first), 1.5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Transport`] if the memory cannot be registered (see `ulimit -l`); [`Error::Argument`] if it is not aligned for such
    /// elements, or no whole number of them; [`Error::Failed`] if the group has failed.
    pub fn buffer_from<T: Element>(&self, memory: Memory) -> Result<Buffer<T>> {
        let (bytes, size) = (memory.len(), size_of::<T>());
        let unfit = |what: &str| Error::Argument {
            call: "buffer_from",
            problem: format!("{bytes} bytes at {:p} are {what} of {size} bytes", memory.base()),
        };
        if !bytes.is_multiple_of(size) {
            return Err(unfit("no whole number of elements"));
        }
        let unaligned = unfit("not aligned for elements");
        let region = self.shared.runtime.with(|engine| engine.transport().register(memory))??;
        Buffer::new(region, bytes / size, &self.shared.runtime.registry).ok_or(unaligned)
    }

    /// Ends the world and all its groups, also for ranks that are not in this group: every rank gets [`Failure::Aborted`] with
    /// this reason from its current or next call. May be called while other threads are in calls; it ends them. Returns the error
    /// that every later call returns: this one, or that of an earlier failure.
    ///
    /// The reason may be any text, such as that of an exception. All ranks get it in one line: line breaks become spaces, other
    /// control characters `?`, and what follows the first 4000 characters is cut, so it should begin with what matters.
    /// Afterwards, handles are dropped without waiting, and this process may join a new world.
    pub fn abort(&self, why: &str) -> Error {
        let runtime = &self.shared.runtime;
        runtime.returned(runtime.fail(Failure::Aborted { rank: runtime.rank, why: why.to_owned() }))
    }

    /// The failure that has ended the world, if there is one; every call returns it.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        let runtime = &self.shared.runtime;
        match runtime.check().map_err(|error| runtime.returned(error)) {
            Err(Error::Failed(failure)) => Some(failure),
            _ => None,
        }
    }

    /// The name of the algorithm that this handle uses for a collective of `count` elements (as [`Collective`] counts them).
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths overflow; [`Error::Failed`] if the group has failed.
    pub fn algorithm(&self, collective: Collective, count: usize, dtype: Dtype) -> Result<&'static str> {
        Ok(self.choice(collective, count, dtype)?.algorithm.name)
    }

    /// The algorithm, the largest message and the most lanes that this handle uses for a collective of `count` elements (as
    /// [`Collective`] counts them).
    ///
    /// # Errors
    /// As [`Self::algorithm`].
    pub fn choice(&self, collective: Collective, count: usize, dtype: Dtype) -> Result<Choice> {
        self.shared.runtime.check()?;
        self.shared.planner.choose(&CallSpec::new(collective, count), dtype.size(), &self.options)
    }

    /// The number of collective operations of the group that this rank has begun. Errors give an operation's number: `op 3` is the
    /// fourth. A call of objects or tensors may be several operations.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.operations()
    }

    /// The bytes of registered memory that the groups of this process use now for windows, mailboxes, staging and scratch;
    /// [buffers](Self::buffer) are not counted. 0 after the group has ended.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.shared.runtime.with(|engine| engine.memory()).unwrap_or_default()
    }

    /// Another handle of the same group, whose calls use only these algorithms, instead of those of [`Config::algorithm`]; the
    /// text has the same format. All ranks must make a call with the same selection.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, ReduceOp};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// group.with_algorithms("all_reduce:ring")?.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such algorithm; it names all algorithms.
    pub fn with_algorithms(&self, algorithms: &str) -> Result<Self> {
        let selection = Selection::parse(algorithms)
            .map_err(|problem| Error::Argument { call: "with_algorithms", problem })?;
        Ok(self.with_plan(PlanOptions { selection, ..self.options.plan }))
    }

    /// The largest message of a collective, in bytes: [`Config::chunk`], or less if the limit on locked memory of some rank
    /// requires it.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.shared.runtime.settings.chunk_bytes
    }

    /// Another handle of the same group, whose calls send messages of at most `chunk_bytes` bytes on at most `lanes` lanes, instead
    /// of what the tables say. On one lane, messages have at most [`Config::eager`] bytes. All ranks must make a call with the same
    /// values; a difference is a [`Failure::Mismatch`].
    ///
    /// # Errors
    /// [`Error::Argument`] if a value is 0, or exceeds [`Config::chunk`] or [`Config::lanes`].
    pub fn with_pipeline(&self, chunk_bytes: usize, lanes: usize) -> Result<Self> {
        let config = &self.shared.runtime.config;
        let most = [("chunk_bytes", chunk_bytes, config.chunk), ("lanes", lanes, config.lanes)];
        if let Some((name, value, most)) =
            most.into_iter().find(|&(_, value, most)| value == 0 || value > most)
        {
            let problem = format!("{name} is {value}; with this configuration it must be from 1 to {most}");
            return Err(Error::Argument { call: "with_pipeline", problem });
        }
        Ok(self
            .with_plan(PlanOptions { pipeline: Some(Pipeline { chunk_bytes, lanes }), ..self.options.plan }))
    }

    /// Another handle of the same group, whose reductions are of this kind instead of [`Config::reduction`]. All ranks must make a
    /// call with the same.
    #[must_use]
    pub fn with_reduction(&self, reduction: Reduction) -> Self {
        self.with_plan(PlanOptions { reduction, ..self.options.plan })
    }

    /// Another handle of the same group, whose calls have this timeout instead of [`Config::timeout`]. The ranks' timeouts may
    /// differ: the first one that passes ends the world with a [`Failure::Deadline`] or [`Failure::Undelivered`], which says how long
    /// the call waited. The timeout of a call of several operations is that of each of them.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use unisono::{Config, ProcessGroup};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// let patient = group.with_timeout(Duration::from_secs(1800))?;
    /// patient.barrier()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] unless it is longer than 0 and at most a year.
    pub fn with_timeout(&self, timeout: Duration) -> Result<Self> {
        check_timeout("with_timeout", timeout)?;
        Ok(self.with_options(CallOptions { timeout: Some(timeout), ..self.options }))
    }

    fn with_plan(&self, plan: PlanOptions) -> Self {
        self.with_options(CallOptions { plan, ..self.options })
    }

    fn with_options(&self, options: CallOptions) -> Self {
        Self { shared: Arc::clone(&self.shared), options, membership: self.membership.clone() }
    }

    /// A handle for an asynchronous call. It does not keep the group from ending.
    fn under_way(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), options: self.options, membership: None }
    }

    /// The first handle of a group; `parent` is the group that it was made from, `None` for the world.
    fn of(shared: Shared, options: CallOptions, parent: Option<&Self>) -> Self {
        let (shared, parent) = (Arc::new(shared), parent.and_then(|parent| parent.membership.clone()));
        let membership = Some(Arc::new(Membership { shared: Arc::clone(&shared), parent }));
        Self { shared, options, membership }
    }

    /// On the world: leaves it and all groups in good order; no calls are possible afterwards. Every rank must call it, as any
    /// collective. It returns when all ranks have called it, or as soon as a rank dies, fails or cannot be reached. A rank that lives and
    /// has not called it is waited for however late it is, for it may have to write a checkpoint alone, or as long as
    /// [`Config::leave_timeout`](crate::Config::leave_timeout) says. From when all have called it, the timeout counts. A rank cannot
    /// leave earlier, because closing an endpoint may discard messages that the network has not delivered, and because a mismatch
    /// is detected only by ranks that are still members. After 30 s, 60 s and so on it logs a warning with the positions of the other
    /// ranks.
    /// Dropping the last handle of the world and of its groups does the same, but cannot return an error: a failure that no call has
    /// returned is then an error in the log, which is written to standard error unless the program has a subscriber of `tracing`, and
    /// [`late_failure`](crate::late_failure). If `unisono run` started the ranks, its status is 1.
    ///
    /// A process that ends before it has left, by [`std::process::exit`] or with the group in a `static`, is a rank that died: the ranks that
    /// are still there fail, and the status of `unisono run` is 1. Another launcher does not know it, so that if all ranks end so,
    /// what leaving would have found is lost.
    ///
    /// On another group: drops this handle, waits for no rank, and returns `Ok`.
    ///
    /// # Errors
    /// On the world, [`Error::Failed`] if it has failed, or if ranks leave while others call a collective or wait for a message of
    /// theirs, or if a message of any group was not received. All ranks get the same failure. A pending receive without a message
    /// is no failure: its [`Work`](crate::Work) ends with an error.
    pub fn leave(self) -> Result<()> {
        self.shared.shut_down()
    }
}

/// An error unless a call can have this timeout.
fn check_timeout(call: &'static str, timeout: Duration) -> Result<()> {
    if !timeout.is_zero() && timeout <= YEAR {
        return Ok(());
    }
    let problem = format!("the timeout is {timeout:?}; it must be longer than 0 and at most a year");
    Err(Error::Argument { call, problem })
}
