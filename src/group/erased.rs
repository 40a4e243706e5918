//! The erased entry: collectives and messages whose element type is a value and whose operands are memory that was allocated outside
//! of this library. Bindings to other languages call it; it runs the same checks and the same code as the typed methods.

use std::{
    borrow::Cow,
    cell::Cell,
    fmt,
    panic::resume_unwind,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use unisono_engine::{Aside, Borrowed, Form, Operand, Operation, Overlap, RequestKind};
use unisono_schedule::{Collective, Rank, Uneven};

use crate::{
    buffer::Foreign,
    dtype::{Alias, Dtype},
    error::Result,
    group::{
        ProcessGroup,
        collective::{Checked, CollectiveCall, check_lengths, check_root, longest, sides},
        handle::Handle,
        message::{Receiver, Sender, Source, sender},
        plan::{CallOptions, CallSpec, argument},
        shared::CallKind,
        typed::list,
    },
    reduce::ReduceOp,
    work::Work,
};

/// A collective, for [`Erased::collective`].
///
/// ```
/// # use unisono::{ReduceOp, Request, dtype::Dtype, schedule::Collective};
/// let request = Request { op: ReduceOp::Max, root: 1, ..Request::new(Collective::Reduce, Dtype::BF16) };
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The collective.
    pub collective: Collective,
    /// The type of the elements. Elements that are only moved may have any type of the right size, for instance [`Dtype::U8`].
    pub dtype: Dtype,
    /// The caller's name for the type, if elements of another type stand for it: ranks compare it, and errors name it.
    pub alias: Alias,
    /// The operation, if the collective reduces.
    pub op: ReduceOp,
    /// The root, if the collective has one: a rank of the group.
    pub root: Rank,
    /// The lengths of the blocks in elements, if they may differ; `None` for blocks of equal length. All ranks give lengths, or none
    /// does. See [`Erased::collective`].
    pub lengths: Option<Uneven<'a>>,
    /// True if the operands are those of many tensors, so that blocks may lie in several pieces; alike on all ranks.
    pub coalesced: bool,
    /// The timeout of this call; `None` for that of the handle.
    pub timeout: Option<Duration>,
}

impl Request<'_> {
    /// A collective of equal blocks with a sum, root 0 and the timeout of the handle.
    #[must_use]
    pub const fn new(collective: Collective, dtype: Dtype) -> Self {
        let (alias, op, root) = (Alias::NONE, ReduceOp::Sum, 0);
        Self { collective, dtype, alias, op, root, lengths: None, coalesced: false, timeout: None }
    }
}

/// The direction of a message, and the other rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A send to this rank of the group.
    Send(Rank),
    /// A receive.
    Recv(Source),
}

/// A message, for [`Erased::message`].
#[derive(Clone, Copy, Debug)]
pub struct MessageRequest {
    /// Its direction, and the other rank.
    pub direction: Direction,
    /// The type of the elements, the same on both ranks.
    pub dtype: Dtype,
    /// The same as in [`Request`].
    pub alias: Alias,
    /// The same as in [`ProcessGroup::send`].
    pub tag: u32,
    /// The timeout of this call; `None` for that of the handle.
    pub timeout: Option<Duration>,
}

impl MessageRequest {
    /// A send with the timeout of the handle.
    #[must_use]
    pub const fn send(dtype: Dtype, to: Rank, tag: u32) -> Self {
        Self { direction: Direction::Send(to), dtype, alias: Alias::NONE, tag, timeout: None }
    }

    /// A receive with the timeout of the handle.
    #[must_use]
    pub const fn recv(dtype: Dtype, from: Source, tag: u32) -> Self {
        Self { direction: Direction::Recv(from), dtype, alias: Alias::NONE, tag, timeout: None }
    }
}

/// The input and the output of a collective, with their owners.
type Operands = (Foreign, Foreign);

/// The calls of bindings to other languages, which know the type of elements at run time and have their memory elsewhere:
/// [`ProcessGroup::erased`](crate::ProcessGroup::erased).
#[derive(Clone, Copy)]
pub struct Erased<'g>(pub(super) &'g Handle);

impl fmt::Debug for Erased<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Erased").field(&self.0.shared.name).finish()
    }
}

impl Erased<'_> {
    /// Runs a collective on memory that was allocated outside of this library, and returns when this rank's part is done.
    ///
    /// # Operands
    /// With `n` ranks, in elements; an operand that is not used may be [`Foreign::none`]:
    ///
    /// | collective | input | output |
    /// |---|---|---|
    /// | `AllReduce` | `count` | `count` |
    /// | `Reduce` | `count` | `count` at the root; not used elsewhere |
    /// | `Broadcast` | not used | `count`: read at the root, written elsewhere |
    /// | `AllGather` | one block | `n` blocks |
    /// | `Gather` | one block | `n` blocks at the root; not used elsewhere |
    /// | `ReduceScatter` | `n` blocks | one block |
    /// | `Scatter` | `n` blocks at the root; not used elsewhere | one block |
    /// | `AllToAll` | `n` blocks | `n` blocks |
    /// | `Barrier` | none | none |
    ///
    /// # In place
    /// Input and output may be the same memory; where one of them is one block of `n`, it may be this rank's block of the other. If
    /// they overlap in another way, the input is copied first. A [`ReduceOp::PreMulSum`] in place also scales the rest of the input.
    ///
    /// # Several pieces
    /// An operand of `n` blocks may lie in several pieces, as long as no block lies in more than one: for instance a list of tensors, one
    /// for each rank. With [`Request::coalesced`] all operands may lie in any pieces; then, if blocks are equal, ranks compare the lengths
    /// of the pieces of the operand that is one block (or `count` elements). The elements are not packed first: messages are put from the
    /// pieces and land in them.
    ///
    /// # Lengths of blocks
    /// [`Request::lengths`] are the lengths of blocks that may differ, by rank. Sender and receiver both know them, so no rank has to ask:
    ///
    /// - `AllGather`: [`Uneven::output`] has all `n`, the same on all ranks;
    /// - `ReduceScatter`: [`Uneven::input`] has all `n`, the same on all ranks;
    /// - `Gather`: [`Uneven::output`] has all `n` at the root, and is not used elsewhere;
    /// - `Scatter`: [`Uneven::input`] has all `n` at the root, and is not used elsewhere;
    /// - `AllToAll`: [`Uneven::input`] has the lengths of the blocks that this rank sends to each, [`Uneven::output`] of those that it gets
    ///   from each.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such root, the operation does not fit the type, memory is not aligned for the type, or the
    /// lengths do not fit each other; [`Error::Failed`](crate::Error::Failed) if the ranks disagree (other call, lengths, type or operation), the timeout
    /// passes, or the group has failed.
    pub fn collective(&self, request: &Request<'_>, input: &Foreign, output: &Foreign) -> Result<()> {
        self.0.collective(request, input.operand(), output.operand())
    }

    /// Begins a [`collective`](Self::collective). [`Work::wait`] returns both operands with their owners.
    ///
    /// # Errors
    /// As [`collective`](Self::collective), here or from the wait.
    pub fn begin_collective(
        &self,
        request: &Request<'_>,
        input: Foreign,
        output: Foreign,
    ) -> Result<Work<Operands>> {
        let (plan, options) = self.0.erased_plan(request, input.operand(), output.operand())?;
        self.0.shared.begin_planned(request.collective.name(), plan, (input, output), &options)
    }

    /// Runs a [`collective`](Self::collective), and asks `go_on` every `every` whether to wait longer, for callers that must handle other
    /// things meanwhile, such as signals. Returns both operands with their owners, or the [`Work`] if it has not ended.
    ///
    /// # Errors
    /// As [`collective`](Self::collective).
    pub fn collective_while(
        &self,
        request: &Request<'_>,
        input: Foreign,
        output: Foreign,
        every: Duration,
        go_on: impl FnMut() -> bool,
    ) -> Result<std::result::Result<Operands, Work<Operands>>> {
        let (plan, options) = self.0.erased_plan(request, input.operand(), output.operand())?;
        let call = request.collective.name();
        self.0.shared.run_while(call, plan, (input, output), &options, (every, go_on))
    }

    /// Sends or receives a message from or into memory that was allocated outside of this library, in one piece. Returns the other
    /// rank. The other rank may use [`send`](ProcessGroup::send) or [`recv`](ProcessGroup::recv) as well.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such rank, or if the memory is not one piece or not aligned for the type; otherwise as
    /// [`send`](ProcessGroup::send) and [`recv`](ProcessGroup::recv).
    pub fn message(&self, request: &MessageRequest, data: &Foreign) -> Result<Rank> {
        let (what, options) = self.0.erased_message(request, data)?;
        let done = self.0.wait_with(what, &options)?;
        Ok(request.receiver().unwrap_or_else(|| sender(&done.received)))
    }

    /// Begins a [`message`](Self::message). [`Work::wait`] returns the memory with its owner, and the other rank.
    ///
    /// # Errors
    /// As [`message`](Self::message), here or from the wait.
    pub fn begin_message(&self, request: &MessageRequest, data: Foreign) -> Result<Work<(Foreign, Rank)>> {
        let (what, options) = self.0.erased_message(request, &data)?;
        self.0.begin_message(what, (data, request.receiver()), &options)
    }

    /// Begins several messages; if one of them is invalid, none begins. Returns a [`Work`] for each, in the given order. The messages do
    /// not wait for each other, in whatever order the ranks give them. If one message is sent from memory into which another of these
    /// messages is received, it is copied first: it arrives as it was when the call began.
    ///
    /// # Errors
    /// As [`message`](Self::message), here or from the waits; [`Error::Argument`](crate::Error::Argument) also if two are received into the same memory.
    pub fn begin_messages(
        &self,
        batch: impl IntoIterator<Item = (MessageRequest, Foreign)>,
    ) -> Result<Vec<Work<(Foreign, Rank)>>> {
        let mut batch: Vec<_> = batch.into_iter().collect();
        // Checked before anything is copied.
        for (request, data) in &batch {
            self.0.erased_message(request, data)?;
        }
        let received = batch.iter().filter(|(request, _)| request.receiver().is_none());
        let received = Operand::joined(received.map(|(_, data)| data.operand()));
        if received.overlaps_itself() {
            return Err(argument("recv", "two messages are received into the same memory"));
        }
        for (request, data) in &mut batch {
            if request.receiver().is_some() && data.operand().touches(&received) {
                let copied = std::mem::take(data).copied();
                *data = copied.map_err(|error| argument("send", error.to_string()))?;
            }
        }
        let ready = batch.into_iter().map(|(request, data)| {
            let (what, options) = self.0.erased_message(&request, &data)?;
            Ok((what, (data, request.receiver()), options))
        });
        let ready: Vec<_> = ready.collect::<Result<_>>()?;
        ready.into_iter().map(|(what, kept, options)| self.0.begin_message(what, kept, &options)).collect()
    }

    /// Runs `calls` with another handle of this group on a separate thread, and asks `go_on` every `every` whether to wait longer. Returns
    /// the result of `calls`, or `None` if this thread stops waiting: the other thread then continues, until its calls end or this rank
    /// leaves the world. Meanwhile this thread counts as one that waits, so that deadlocks are found.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if no thread can be started.
    pub fn elsewhere_while<T: Send + 'static>(
        &self,
        call: &'static str,
        calls: impl FnOnce(&ProcessGroup) -> T + Send + 'static,
        every: Duration,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<T>> {
        let group = ProcessGroup::of(self.0.clone());
        let (sender, receiver) = channel();
        let run = move || {
            let ended = calls(&group);
            // The handle is dropped before the caller continues: the caller may leave, which needs the last handle.
            drop(group);
            // The send fails if the caller has stopped waiting.
            let _unheard = sender.send(ended);
        };
        let thread = thread::Builder::new().name("unisono-call".to_owned()).spawn(run);
        let thread = thread.map_err(|error| argument(call, format!("no thread can be started: {error}")))?;
        let _waiting = self.0.shared.runtime.callers.wait();
        loop {
            match receiver.recv_timeout(every) {
                Ok(ended) => return Ok(Some(ended)),
                Err(RecvTimeoutError::Timeout) if go_on() => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                // The thread sent nothing, so it has panicked.
                Err(RecvTimeoutError::Disconnected) => {
                    return thread.join().map(|()| None).or_else(|panic| resume_unwind(panic));
                }
            }
        }
    }
}

impl Handle {
    /// Runs a collective on memory that was allocated outside of this library.
    pub(super) fn collective(&self, request: &Request<'_>, input: &Operand, output: &Operand) -> Result<()> {
        let ready = Ready::new(self, request, (input, output))?;
        let (spec, borrowed) = (ready.spec(), ready.borrowed());
        self.shared.run(CallKind::Single, &spec, borrowed, &ready.options).map(drop)
    }

    /// Begins a collective on memory that `held` owns; the work returns it.
    pub(super) fn begin_collective<B: Send + 'static>(
        &self,
        request: &Request<'_>,
        memory: &Borrowed<'_>,
        held: B,
    ) -> Result<Work<B>> {
        let (plan, options) = self.erased_plan(request, &memory.input, &memory.output)?;
        self.shared.begin_planned(request.collective.name(), plan, held, &options)
    }

    /// A collective that is ready to begin, and its options.
    fn erased_plan(
        &self,
        request: &Request<'_>,
        input: &Operand,
        output: &Operand,
    ) -> Result<((Operation, Aside), CallOptions)> {
        let ready = Ready::new(self, request, (input, output))?;
        let planned = self.shared.plan(&ready.spec(), ready.borrowed().kept(), &ready.options)?;
        Ok((planned, ready.options))
    }

    fn erased_message(&self, request: &MessageRequest, data: &Foreign) -> Result<(RequestKind, CallOptions)> {
        let MessageRequest { direction, dtype, alias, tag, timeout } = *request;
        let call = match direction {
            Direction::Send(_) => "send",
            Direction::Recv(_) => "recv",
        };
        let memory = data.operand();
        if memory.pieces.is_some() {
            return Err(argument(call, "the memory of a message is one piece; this has several"));
        }
        if let Some(misfit) = memory.misfit(dtype) {
            return Err(argument(call, format!("the message has {misfit}")));
        }
        let options = self.options_for(call, timeout)?;
        let what = match direction {
            Direction::Send(rank) => self.outbound(dtype, memory, Receiver { rank, tag }, Form::Plain)?,
            Direction::Recv(source) => self.inbound(dtype, memory, Sender { source, tag })?,
        };
        Ok((what.named(alias), options))
    }
}

impl MessageRequest {
    /// The receiver of a send.
    fn receiver(&self) -> Option<Rank> {
        match self.direction {
            Direction::Send(to) => Some(to),
            Direction::Recv(_) => None,
        }
    }
}

/// A collective whose arguments are valid.
struct Ready<'a> {
    spec: CallSpec<'static>,
    /// The operands, if this rank uses them.
    input: Option<&'a Operand>,
    output: Option<&'a Operand>,
    /// The offsets of the operands in place, in bytes: the input in the output, and the output in the input.
    at: (usize, usize),
    uneven: Option<Known<'a>>,
    options: CallOptions,
}

/// Lengths of blocks, as a [`Job`](unisono_schedule::Job) has them.
struct Known<'a> {
    input: Cow<'a, [usize]>,
    output: Cow<'a, [usize]>,
}

impl<'a> Ready<'a> {
    fn new(
        group: &Handle,
        request: &Request<'a>,
        (input, output): (&'a Operand, &'a Operand),
    ) -> Result<Self> {
        let Request { collective, dtype, alias, op, root, lengths, coalesced, timeout } = *request;
        let call = collective.name();
        let options = group.options_for(call, timeout)?;
        check_root(group, call, collective, root)?;
        let (rank, at_root) = (group.rank(), group.rank() == root);
        let (reads, writes) = sides(collective, at_root);
        let input = if collective == Collective::Broadcast { output } else { input };
        for (used, operand, side) in [(reads, input, "input"), (writes, output, "output")] {
            if let Some(misfit) = operand.misfit(dtype).filter(|_| used) {
                return Err(argument(call, format!("the {side} has {misfit}")));
            }
        }
        if writes && output.overlaps_itself() {
            return Err(argument(call, "pieces of the output overlap each other"));
        }
        let (inputs, outputs) = (input.len() / dtype.size(), output.len() / dtype.size());
        let known = |lengths| Known::new(group, request, lengths, (inputs, outputs));
        let uneven = lengths.map(known).transpose()?;
        let spec = match &uneven {
            None => {
                let call = CollectiveCall::new(collective, op, root);
                call.spec(dtype, Checked::apart(group, &call, (inputs, outputs))?.count)
            }
            Some(known) => known.spec(request),
        };
        let spec = CallSpec { coalesced, alias, ..spec };
        // The number of elements before this rank's block.
        let before = |lengths: &[usize]| lengths.iter().take(rank).sum::<usize>();
        let (cut, joined) = in_blocks(collective);
        let (scatters, gathers) = (cut && !joined, joined && !cut);
        let offset = match &uneven {
            None => rank * spec.count,
            Some(known) => before(if gathers { &known.output } else { &known.input }),
        };
        let at = |is: bool| if is { offset * dtype.size() } else { 0 };
        let ready = Self {
            spec,
            input: reads.then_some(input),
            output: writes.then_some(output),
            at: (at(gathers), at(scatters)),
            uneven,
            options,
        };
        match coalesced {
            true => Ok(ready.compared(dtype)),
            false => ready.in_whole_blocks(dtype, group.size()).map(|()| ready),
        }
    }

    fn spec(&self) -> CallSpec<'_> {
        let uneven = self.uneven.as_ref();
        CallSpec { uneven: uneven.map(|it| Uneven { input: &it.input, output: &it.output }), ..self.spec }
    }

    /// The operands. In place, the uneven blocks that a rank gets can replace those that it gives only if their lengths are the same.
    fn borrowed(&self) -> Borrowed<'a> {
        let mut borrowed = Borrowed::foreign(self.input, self.output, self.at);
        let moved = self.spec.collective == Collective::AllToAll
            && self.uneven.as_ref().is_some_and(|known| known.input != known.output);
        if moved && borrowed.overlap == Overlap::InPlace {
            borrowed.overlap = Overlap::Crossed;
        }
        borrowed
    }

    /// The same, with a hash of the lengths of the pieces, which ranks compare.
    fn compared(mut self, dtype: Dtype) -> Self {
        // Blocks of several lengths have pieces of several lengths.
        if self.uneven.is_some() {
            return self;
        }
        let one = match self.spec.collective {
            Collective::AllToAll | Collective::Barrier => None,
            Collective::Broadcast | Collective::ReduceScatter | Collective::Scatter => self.output,
            _ => self.input,
        };
        let pieces = one.into_iter().flat_map(Operand::stretches);
        let lengths: Vec<_> = pieces.map(|piece| piece.len / dtype.size()).collect();
        self.spec.contents = list(lengths.iter().map(|len| (dtype, std::slice::from_ref(len))));
        self
    }

    /// An error unless each block lies in one piece.
    fn in_whole_blocks(&self, dtype: Dtype, ranks: usize) -> Result<()> {
        let (cut, joined) = in_blocks(self.spec.collective);
        let known = self.uneven.as_ref();
        let sides = [
            ("input", cut, self.input, known.map(|it| &it.input)),
            ("output", joined, self.output, known.map(|it| &it.output)),
        ];
        for (side, has_blocks, operand, lengths) in sides {
            let Some(operand) = operand.filter(|it| it.pieces.is_some()) else { continue };
            let length = |rank: Rank| match lengths {
                None => self.spec.count,
                Some(lengths) => lengths.get(rank).copied().unwrap_or_default(),
            };
            let (near, mut at) = (Cell::new(0), 0);
            let whole = (0..ranks).all(|rank| {
                let (from, len) = (at, length(rank) * dtype.size());
                at += len;
                operand.is_together(from, len, &near)
            });
            if !(has_blocks && whole) {
                let problem = "lies in several pieces; that is possible in a coalesced call only";
                return Err(argument(
                    self.spec.collective.name(),
                    format!("a block of the {side} {problem}"),
                ));
            }
        }
        Ok(())
    }
}

/// True for the input, and for the output, if it is cut into a block for each rank.
fn in_blocks(collective: Collective) -> (bool, bool) {
    match collective {
        Collective::ReduceScatter | Collective::Scatter => (true, false),
        Collective::AllGather | Collective::Gather => (false, true),
        Collective::AllToAll => (true, true),
        _ => (false, false),
    }
}

impl<'a> Known<'a> {
    /// Checks lengths of blocks against the numbers of elements of the operands.
    fn new(
        group: &Handle,
        request: &Request<'a>,
        lengths: Uneven<'a>,
        (inputs, outputs): (usize, usize),
    ) -> Result<Self> {
        let (collective, call) = (request.collective, request.collective.name());
        let (rank, ranks, at_root) = (group.rank(), group.size(), group.rank() == request.root);
        let whole = |side: &str, lengths: &[usize], len: usize| {
            check_lengths(group, call, (&format_args!(" of the {side}'s blocks"), "it has"), lengths, len)
        };
        let own = |side: &str, lengths: &[usize], len: usize| {
            let wanted = lengths.get(rank).copied().unwrap_or_default();
            if wanted == len {
                return Ok(());
            }
            Err(argument(call, format!("the {side} has {len} elements; this rank's block has {wanted}")))
        };
        let only_own = |len| (0..ranks).map(|other| if other == rank { len } else { 0 }).collect();
        let (none, Uneven { input, output }) = (Cow::Borrowed(&[][..]), lengths);
        Ok(match collective {
            Collective::Gather if !at_root => Self { input: none, output: only_own(inputs) },
            Collective::Scatter if !at_root => Self { input: only_own(outputs), output: none },
            Collective::AllGather | Collective::Gather => {
                whole("output", output, outputs)?;
                own("input", output, inputs)?;
                Self { input: none, output: output.into() }
            }
            Collective::ReduceScatter | Collective::Scatter => {
                whole("input", input, inputs)?;
                own("output", input, outputs)?;
                Self { input: input.into(), output: none }
            }
            Collective::AllToAll => {
                whole("input", input, inputs)?;
                whole("output", output, outputs)?;
                if input.get(rank) != output.get(rank) {
                    let problem =
                        "this rank's block for itself has another length in the input than in the output";
                    return Err(argument(call, problem));
                }
                Self { input: input.into(), output: output.into() }
            }
            _ => return Err(argument(call, "it has no blocks whose lengths could differ")),
        })
    }

    /// The call. Ranks that know all lengths compare a hash of them; otherwise each two ranks compare the lengths of their blocks for each
    /// other.
    fn spec(&self, request: &Request<'_>) -> CallSpec<'static> {
        let Request { collective, dtype, op, root, .. } = *request;
        let pairwise = !matches!(collective, Collective::AllGather | Collective::ReduceScatter);
        let all = self.input.iter().chain(&*self.output);
        let contents = if pairwise { 1 } else { list(all.map(|len| (Dtype::U8, std::slice::from_ref(len)))) };
        let count = longest(&self.input).max(longest(&self.output));
        CallSpec { root, op, pairwise, contents, ..CallSpec::new(collective, dtype, count) }
    }
}
