//! Process groups and their calls: the methods of [`ProcessGroup`]. A call checks its arguments, plans the operation, and has the
//! runtime run it.

mod calls;
mod collective;
mod erased;
mod handle;
mod members;
mod membership;
mod message;
mod order;
mod plan;
mod sequence;
mod shared;
#[cfg(test)]
mod tests;
mod typed;

use std::{fmt, marker::PhantomData, time::Duration};

use unisono_schedule::{
    Collective, Rank,
    select::{self, Choice, Selection},
};
use unisono_transport::Limits;

pub use self::{
    calls::{
        mode::{Asynchronous, Blocking, Mode},
        operands::{Apart, Blocks, Gathered, InPlace, Input, Operands, UnevenBlocks, uneven},
        tensors::{TensorLists, TensorMode},
    },
    erased::{Direction, Erased, MessageRequest, Request},
    members::Members,
    membership::{describe_transport, open_transport, transport_options},
    message::{Message, Receiver, Sender, Source},
    plan::Pipeline,
    typed::GradientBuckets,
};
use self::{
    handle::{Handle, check_timeout},
    plan::{CallOptions, CallSpec, PlanOptions, argument},
};
use crate::{
    buffer::{Buffer, Memory},
    config::Config,
    dtype::{Dtype, Element},
    error::{Error, Failure, Result},
    reduce::Reduction,
};

/// The operations and the memory of a group: [`ProcessGroup::usage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The number of collective operations of the group that this rank has begun. Errors give an operation's number: `op 3` is the fourth.
    /// A call of objects or tensors may be several operations.
    pub operations: u64,
    /// The bytes of registered memory that the groups of this process use now for windows, mailboxes, staging and scratch;
    /// [buffers](ProcessGroup::buffer) are not counted. 0 after the group has ended.
    pub memory: usize,
    /// The largest message of a collective, in bytes: [`Config::chunk`], or less if the limit on locked memory of some rank requires it.
    pub chunk_bytes: usize,
    /// True if a call has gone through the slots that ranks of one host share, and these ranks may read all of each other's memory
    /// ([`Config::peer_reads`]).
    pub peer_reads: bool,
}

/// A handle of a group of ranks that communicate with each other: the world ([`from_env`](Self::from_env),
/// [`join`](Self::join)), or a part of it ([`split`](Self::split), [`new_group`](Self::new_group),
/// [`create_group`](Self::create_group)).
///
/// # I have, and I want
///
/// | each rank has | it wants | call |
/// |---|---|---|
/// | elements | their sum, maximum and so on over all ranks | [`all_reduce`](Self::all_reduce), at one rank [`reduce`](Self::reduce) |
/// | elements of all blocks | its block of the sum | [`reduce_scatter`](Self::reduce_scatter) |
/// | a block | the blocks of all ranks | [`all_gather`](Self::all_gather), at one rank [`gather`](Self::gather) |
/// | at one rank: elements | the same elements | [`broadcast`](Self::broadcast) |
/// | at one rank: a block for each | its block | [`scatter`](Self::scatter) |
/// | a block for each rank | a block of each rank | [`all_to_all`](Self::all_to_all) |
/// | blocks of several lengths that it knows | the same | the same calls, with [`uneven`] |
/// | blocks whose lengths others do not know | new memory | [`all_gather_v`](Self::all_gather_v), [`gather_v`](Self::gather_v), [`scatter_v`](Self::scatter_v), [`all_to_all_v`](Self::all_to_all_v) |
/// | elements for one rank | that the rank gets them | [`send`](Self::send), [`recv`](Self::recv), [`recv_vec`](Self::recv_vec), [`send_recv`](Self::send_recv) |
/// | values of any type | those of others | [`broadcast_object`](Self::broadcast_object) and the other calls of objects |
/// | tensors of any shapes | those of others | [`broadcast_tensors`](Self::broadcast_tensors) and the other calls of tensors |
/// | nothing | to wait for all | [`barrier`](Self::barrier) |
/// | any of these | not to wait | [`begin`](Self::begin) |
/// | any of these | another timeout, algorithm or order of reduction | [`with_timeout`](Self::with_timeout) and its siblings |
/// | a group | a part of it | [`split`](Self::split), [`new_group`](Self::new_group), [`create_group`](Self::create_group) |
///
/// # Calls
/// Every rank makes the same collective calls in the same order. A call blocks until this rank's part is done: its output is
/// complete, and its input may be changed. A call of the handle that [`begin`](Self::begin) returns takes its operands by value and
/// returns a [`Work`](crate::Work) at once. Threads may share a group: its operations run one after the other, those of different groups
/// concurrently.
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
/// world. [`members`](Self::members) converts. An [`Error::Argument`] names ranks of the group. All other
/// errors name ranks of the world, except for the root in a call that they quote: `broadcast(i8, root 0)`.
///
/// # Forks
/// A child that this process forks and that executes no other program is no member: each call there returns [`Error::Forked`],
/// and dropping handles, [`Work`](crate::Work) and buffers does nothing. The parent is not affected.
///
/// # Options
/// [`with_algorithms`](Self::with_algorithms), [`with_pipeline`](Self::with_pipeline), [`with_reduction`](Self::with_reduction) and
/// [`with_timeout`](Self::with_timeout) return another handle of the same group, with other options for its calls. The group ends when its
/// last handle is dropped.
pub struct ProcessGroup<M = Blocking> {
    handle: Handle,
    mode: PhantomData<fn() -> M>,
}

impl<M> fmt::Debug for ProcessGroup<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup")
            .field("rank", &self.handle.rank())
            .field("ranks", &self.handle.size())
            .field("provider", &self.handle.shared.runtime.limits.provider)
            .finish_non_exhaustive()
    }
}

impl<M> ProcessGroup<M> {
    fn of(handle: Handle) -> Self {
        Self { handle, mode: PhantomData }
    }
}

/// # The group
/// The ranks of the group, its memory, and its end.
impl ProcessGroup {
    /// A handle of this group whose calls return at once, with a [`Work`](crate::Work) to wait for or to await. They take their operands
    /// by value and return them when they have ended.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, ReduceOp};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// let sum = group.begin().all_reduce(vec![1.0_f32; 1000], ReduceOp::Sum)?;
    /// let names = group.begin().all_gather_object(&"a name".to_owned())?;
    /// // Compute something else meanwhile.
    /// assert_eq!(sum.wait()?[0], group.size() as f32);
    /// assert_eq!(names.wait()?.len(), group.size());
    /// # Ok(()) }
    /// ```
    ///
    /// Operations begin in the order of their calls, also where a call that blocks follows one that does not. A thread that begins a call
    /// does not wait for a call that blocks in another thread.
    #[must_use]
    pub fn begin(&self) -> ProcessGroup<Asynchronous> {
        ProcessGroup::of(self.handle.clone())
    }

    /// The calls of bindings to other languages, which know the type of elements at run time and have their memory elsewhere.
    #[must_use]
    pub fn erased(&self) -> Erased<'_> {
        Erased(&self.handle)
    }

    /// This process's rank in this group, counted from 0. [`members`](Self::members) has its rank in the world.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.handle.rank()
    }

    /// The number of ranks of this group.
    #[must_use]
    pub fn size(&self) -> usize {
        self.handle.size()
    }

    /// The ranks in the world of all members, by rank.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.handle.shared.members
    }

    /// The group's name, the same on all its members: `world`, or the name of the parent group, the number of groups made of
    /// that before, and the color: `world/0:2` is color 2 of the world's first split.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.shared.name
    }

    /// The configuration with which the world was joined.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.handle.shared.runtime.config
    }

    /// The capabilities of the transport, and the name and version of its provider.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.handle.shared.runtime.limits
    }

    /// Allocates a buffer of `len` zeros in registered memory. The NIC reads it, and writes large results into it, without a copy
    /// by the CPU. This is faster on providers that pin memory (verbs, EFA, cxi), and among the ranks of a host: they map it, and from
    /// 16 KiB on all_reduce, reduce_scatter, all_gather, broadcast and all_to_all read it where it lies. It makes no difference on tcp.
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
        let size = size_of::<T>();
        let overflow =
            || argument("buffer", format!("{len} elements of {size} bytes are more than can be addressed"));
        let bytes = len.checked_mul(size).ok_or_else(overflow)?;
        let region = self.handle.shared.with_engine(|engine| engine.transport().allocate(bytes.max(1)))??;
        Buffer::new(region, len, &self.handle.shared.runtime.registry).ok_or_else(overflow)
    }

    /// Ends the world and all its groups, also for ranks that are not in this group: every rank gets [`Failure::Aborted`] with
    /// this reason from its current or next call. May be called while other threads are in calls; it ends them. Returns the error
    /// that every later call returns: this one, or that of an earlier failure.
    ///
    /// The reason may be any text, such as that of an exception. All ranks get it in one line: line breaks become spaces, other
    /// control characters `?`, and the text after the first 4000 characters is cut, so the reason should begin with its main point.
    /// Afterwards, handles are dropped without waiting, and this process may join a new world.
    pub fn abort(&self, why: &str) -> Error {
        let runtime = &self.handle.shared.runtime;
        runtime.returned(runtime.fail(Failure::Aborted { rank: runtime.rank, why: why.to_owned() }))
    }

    /// The failure that has ended the world, if there is one; every call returns it.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        let runtime = &self.handle.shared.runtime;
        match runtime.check().map_err(|error| runtime.returned(error)) {
            Err(Error::Failed(failure)) => Some(failure),
            _ => None,
        }
    }

    /// The algorithm, the largest message and the most lanes that this handle uses for a collective of `count` elements (as
    /// [`Collective`] counts them).
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths overflow; [`Error::Failed`] if the group has failed.
    pub fn choice(&self, collective: Collective, count: usize, dtype: Dtype) -> Result<Choice> {
        self.handle.shared.runtime.check()?;
        let spec = CallSpec::new(collective, dtype, count);
        self.handle.shared.planner.choose(&spec, &self.handle.options)
    }

    /// The number of the group's operations, and the memory that the groups of this process use.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let (shared, id) = (&self.handle.shared, self.handle.shared.comm_id);
        let of_engine = shared.runtime.with(|engine| (engine.memory(), engine.reads_peers(id)));
        let (memory, peer_reads) = of_engine.unwrap_or_default();
        let chunk_bytes = shared.runtime.settings.chunk_bytes;
        Usage { operations: shared.operations(), memory, chunk_bytes, peer_reads }
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
        let selection =
            Selection::parse(algorithms).map_err(|problem| argument("with_algorithms", problem))?;
        Ok(Self::of(self.handle.with_plan(PlanOptions { selection, ..self.handle.options.plan })))
    }

    /// Another handle of the same group, whose calls move elements in this way instead of the one that the tables give. All ranks must
    /// make a call with the same values; a difference is a [`Failure::Mismatch`].
    ///
    /// # Errors
    /// [`Error::Argument`] if a length of messages or a number of lanes is 0, or exceeds [`Config::chunk`] or [`Config::lanes`]; if the
    /// bytes of a copy are neither 0 nor a power of two up to 1 MiB.
    pub fn with_pipeline(&self, pipeline: Pipeline) -> Result<Self> {
        let config = &self.handle.shared.runtime.config;
        let checked = match pipeline {
            Pipeline::Messages { chunk_bytes, lanes } => {
                let values = [("chunk_bytes", chunk_bytes, config.chunk), ("lanes", lanes, config.lanes)];
                let wrong = values.into_iter().find(|&(_, value, most)| value == 0 || value > most);
                wrong.map_or(Ok(()), |(name, value, most)| {
                    Err(format!("{name} is {value}; with this configuration it must be from 1 to {most}"))
                })
            }
            Pipeline::Slots { bytes } => select::shown::check_copies(bytes),
            Pipeline::Reads => Ok(()),
        };
        checked.map_err(|problem| argument("with_pipeline", problem))?;
        let pipeline = Some(pipeline);
        Ok(Self::of(self.handle.with_plan(PlanOptions { pipeline, ..self.handle.options.plan })))
    }

    /// Another handle of the same group, whose reductions are of this kind instead of [`Config::reduction`]. All ranks must make a call
    /// with the same kind.
    #[must_use]
    pub fn with_reduction(&self, reduction: Reduction) -> Self {
        Self::of(self.handle.with_plan(PlanOptions { reduction, ..self.handle.options.plan }))
    }

    /// Another handle of the same group, whose calls have this timeout instead of [`Config::timeout`]. The ranks' timeouts may
    /// differ: the first one that passes ends the world with a [`Failure::Deadline`] or [`Failure::Undelivered`], which says how long
    /// the call waited. In a call of several operations each operation has this timeout.
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
        let options = CallOptions { timeout: Some(timeout), ..self.handle.options };
        Ok(Self::of(self.handle.with_options(options)))
    }

    /// On the world, leaves it and all groups in good order; no calls are possible afterwards. Every rank must call it, as any collective.
    /// It returns when all ranks have called it, or as soon as a rank dies, fails or cannot be reached. It waits without limit for a rank
    /// that lives and has not called it, because that rank may have to write a checkpoint alone;
    /// [`Config::leave_timeout`](crate::Config::leave_timeout) sets a limit. Once all ranks have called it, the timeout counts. A rank
    /// cannot leave earlier, because closing an endpoint may discard messages that the network has not delivered, and because only ranks
    /// that are still members detect a mismatch. After 30 s, 60 s and so on it logs a warning with the positions of the other ranks.
    ///
    /// Dropping the last handle of the world and of its groups does the same, but cannot return an error. If no call has returned the
    /// failure, the drop logs it as an error, which is written to standard error unless the program has a subscriber of `tracing`, and
    /// [`late_failure`](crate::late_failure) returns it. If `unisono run` started the ranks, its status is 1.
    ///
    /// A process that ends before it has left, by [`std::process::exit`] or with the group in a `static`, is a rank that died: the
    /// remaining ranks fail, and the status of `unisono run` is 1. Another launcher does not know this, so if all ranks end in this way,
    /// the errors that leaving would have found are lost.
    ///
    /// On another group, drops this handle, waits for no rank, and returns `Ok`.
    ///
    /// # Errors
    /// On the world, [`Error::Failed`] if it has failed, if ranks leave while others call a collective or wait for a message from them, or
    /// if a message of any group was not received. All ranks get the same failure. A pending receive without a message is no failure: its
    /// [`Work`](crate::Work) ends with an error.
    pub fn leave(self) -> Result<()> {
        self.handle.shared.shut_down()
    }
}

impl<T: Element> Buffer<T> {
    /// Makes a buffer of existing memory, such as a part of a memfd that another library or process has made ([`Memory::of_memfd`]). It
    /// works like a buffer that [`ProcessGroup::buffer`] allocates: the ranks of the host map the same memfd and read it in place, but they
    /// write to it through this process. Its elements are the contents of the memory, and each process that has mapped the memfd sees
    /// results.
    ///
    /// ```
    /// # use std::os::{fd::OwnedFd, unix::fs::FileExt};
    /// # use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    /// # use unisono::{Buffer, Config, Memory, ProcessGroup, ReduceOp};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// let file: OwnedFd = memfd_create("gradients", MemfdFlags::ALLOW_SEALING)?;
    /// ftruncate(&file, 400_000)?;
    /// // SAFETY: as long as `gradients` is there, nobody else writes to the file, and others read it between calls.
    /// let memory = unsafe { Memory::of_memfd(&file, 0, 400_000)? };
    /// let mut gradients = Buffer::<f32>::of(&group, memory)?;
    /// gradients.fill(1.5);
    /// group.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// let mut first = [0; 4];
    /// std::fs::File::from(file).read_exact_at(&mut first, 0)?;
    /// assert_eq!(f32::from_ne_bytes(first), 1.5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Transport`](crate::Error::Transport) if the memory cannot be registered (see `ulimit -l`);
    /// [`Error::Argument`](crate::Error::Argument) if it is not aligned for these elements, or is no whole number of them;
    /// [`Error::Failed`](crate::Error::Failed) if the group has failed.
    pub fn of(group: &ProcessGroup, memory: Memory) -> Result<Self> {
        let (bytes, size) = (memory.len(), size_of::<T>());
        let base = memory.base();
        let unfit = |what: &str| {
            argument("Buffer::of", format!("{bytes} bytes at {base:p} are {what} of {size} bytes"))
        };
        if !bytes.is_multiple_of(size) {
            return Err(unfit("no whole number of elements"));
        }
        let region = group.handle.shared.with_engine(|engine| engine.transport().register(memory))??;
        Self::new(region, bytes / size, &group.handle.shared.runtime.registry)
            .ok_or_else(|| unfit("not aligned for elements"))
    }
}
