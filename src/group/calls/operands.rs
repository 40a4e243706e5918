//! The operands of calls of elements: what is in place or apart, borrowed or kept, follows from their types.
//!
//! | operands | blocking | asynchronous |
//! |---|---|---|
//! | in place | `&mut data` | `data` |
//! | apart | `(&input, &mut output)` | `(input, output)` |
//! | several slices, used as one | `&mut [&mut one, &mut other]` | |
//! | blocks of these lengths | [`uneven(…, &counts)`](uneven()) | the same |

use std::ops::Range;

use unisono_engine::{Borrowed, Form};
use unisono_schedule::{Rank, Uneven};

use super::mode::{Asynchronous, Blocking, Mode};
use crate::{
    buffer::{Elements, ElementsMut, Owned},
    dtype::{Dtype, Element, Scalar as _},
    error::Result,
    group::{
        ProcessGroup,
        collective::{Checked, CollectiveCall, in_place_sides, outside, own_part, read, write},
        erased::Request,
        handle::Handle,
        message::{Receiver, Sender, sender},
        sequence::Sequence,
    },
    work::Work,
};

/// The operands of a collective of blocks: what [`Operands`] are, or [`uneven`] blocks. Sealed, as all traits of operands: no other crate
/// can name the call that its methods take.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no operand of this call of a `ProcessGroup<{M}>`",
    label = "no operand",
    note = "a blocking call takes `&mut data` in place, or `(&input, &mut output)`",
    note = "a call that `group.begin()` makes takes `data` or `(input, output)` by value, each a `Vec`, a `Box<[T]>` or a `Buffer`"
)]
pub trait Blocks<M: Mode>: Sized {
    /// What the call returns: nothing if it blocks, otherwise a [`Work`] that returns the operands.
    type Returns;
    /// What a call returns by which this rank gets one block. Where the operand is in place, that includes the block: the slice, or the
    /// operand and the range of the block in it.
    type Block;

    #[doc(hidden)]
    fn call(self, group: &ProcessGroup<M>, call: CollectiveCall<'_>) -> Result<Self::Returns>;

    #[doc(hidden)]
    fn block(self, group: &ProcessGroup<M>, call: CollectiveCall<'_>) -> Result<Self::Block>;
}

/// The operands of a collective of elements: `&mut data` in place, or `(&input, &mut output)`; by value if the call is asynchronous.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no operand of this call of a `ProcessGroup<{M}>`",
    label = "no operand",
    note = "a blocking call takes `&mut data` in place, or `(&input, &mut output)`",
    note = "a call that `group.begin()` makes takes `data` or `(input, output)` by value, each a `Vec`, a `Box<[T]>` or a `Buffer`"
)]
pub trait Operands<M: Mode>: Blocks<M> {}

/// One operand, which the call reads or writes in place: `&mut data`, or `data` if the call is asynchronous.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no operand of this call of a `ProcessGroup<{M}>`",
    label = "no operand",
    note = "a blocking call takes `&mut data`",
    note = "a call that `group.begin()` makes takes `data` by value: a `Vec`, a `Box<[T]>` or a `Buffer`"
)]
pub trait InPlace<M: Mode>: Operands<M> {
    /// What a receive returns: the sender, or a [`Work`] that returns the memory and the sender.
    type Received;

    #[doc(hidden)]
    fn recv(self, group: &ProcessGroup<M>, from: Sender) -> Result<Self::Received>;
}

/// Two operands, of which a call reads one and writes the other: `(&input, &mut output)`; by value if the call is asynchronous.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no operand of this call of a `ProcessGroup<{M}>`",
    label = "no pair of operands",
    note = "a blocking call takes `(&data, &mut into)`",
    note = "a call that `group.begin()` makes takes `(data, into)` by value, each a `Vec`, a `Box<[T]>` or a `Buffer`"
)]
pub trait Apart<M: Mode>: Operands<M> {
    /// What a call returns that sends one and receives the other: the sender, or a [`Work`] that returns both operands and the sender.
    type Received;

    #[doc(hidden)]
    fn send_recv(self, group: &ProcessGroup<M>, to: Receiver, from: Sender) -> Result<Self::Received>;
}

/// The elements of all ranks, in the order of ranks, and how many each rank gave.
pub type Gathered<T> = (Vec<T>, Vec<usize>);

/// Elements that a call reads and does not change: `&data`, or `data` if the call is asynchronous.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no input of this call of a `ProcessGroup<{M}>`",
    label = "no input",
    note = "a blocking call takes `&data`",
    note = "a call that `group.begin()` makes takes `data` by value: a `Vec`, a `Box<[T]>` or a `Buffer`"
)]
pub trait Input<M: Mode>: Sized {
    /// The type of the elements.
    type Element: Element;
    /// What a send returns: nothing if it blocks, otherwise a [`Work`] that returns the elements.
    type Sent;
    /// What a call returns whose result is an `R`: the result, or a [`Work`] that returns the elements and the result.
    type With<R>;

    #[doc(hidden)]
    fn send(self, group: &ProcessGroup<M>, to: Receiver) -> Result<Self::Sent>;

    /// Gathers, scatters or exchanges blocks of unknown lengths; `counts` are those of the blocks of the input, if it has several. `open`
    /// makes the result.
    #[doc(hidden)]
    fn exchange<R: Send + 'static>(
        self,
        group: &ProcessGroup<M>,
        call: CollectiveCall<'_>,
        counts: &[usize],
        open: fn(Gathered<Self::Element>) -> R,
    ) -> Result<Self::With<R>>;
}

impl<S: ElementsMut + ?Sized> InPlace<Blocking> for &mut S {
    type Received = Rank;

    fn recv(self, group: &ProcessGroup, from: Sender) -> Result<Rank> {
        let borrowed = Borrowed::apart(&[], write("recv", self)?);
        let what = group.handle.inbound(S::Element::DTYPE, &borrowed.output, from)?;
        Ok(sender(&group.handle.wait(what)?.received))
    }
}
impl<S: ElementsMut + ?Sized> Operands<Blocking> for &mut S {}
impl<'a, S: ElementsMut + ?Sized> Blocks<Blocking> for &'a mut S {
    type Returns = ();
    type Block = &'a mut [S::Element];

    #[inline]
    fn call(self, group: &ProcessGroup, call: CollectiveCall<'_>) -> Result<()> {
        in_place(group, call, write(call.name(), self)?).map(drop)
    }

    fn block(self, group: &ProcessGroup, call: CollectiveCall<'_>) -> Result<Self::Block> {
        let data = write(call.name(), self)?;
        let block = in_place(group, call, data)?;
        Ok(data.get_mut(block).unwrap_or_default())
    }
}

impl<I, O> Operands<Blocking> for (&I, &mut O)
where
    I: Elements + ?Sized,
    O: ElementsMut<Element = I::Element> + ?Sized,
{
}
impl<I, O> Blocks<Blocking> for (&I, &mut O)
where
    I: Elements + ?Sized,
    O: ElementsMut<Element = I::Element> + ?Sized,
{
    type Returns = ();
    type Block = ();

    #[inline]
    fn call(self, group: &ProcessGroup, call: CollectiveCall<'_>) -> Result<()> {
        let (input, output) = (read(call.name(), self.0)?, write(call.name(), self.1)?);
        if call.counts.is_none() {
            return group.handle.apart(&call, input, output);
        }
        let memory = Borrowed::apart(input, output);
        group.handle.collective(&request(call, I::Element::DTYPE), &memory.input, &memory.output)
    }

    fn block(self, group: &ProcessGroup, call: CollectiveCall<'_>) -> Result<()> {
        self.call(group, call)
    }
}

impl<S: Elements + ?Sized> Input<Blocking> for &S {
    type Element = S::Element;
    type Sent = ();
    type With<R> = R;

    fn send(self, group: &ProcessGroup, to: Receiver) -> Result<()> {
        let borrowed = Borrowed::apart(read("send", self)?, &mut []);
        let what = group.handle.outbound(S::Element::DTYPE, &borrowed.input, to, Form::Plain)?;
        group.handle.wait(what).map(drop)
    }

    fn exchange<R: Send + 'static>(
        self,
        group: &ProcessGroup,
        call: CollectiveCall<'_>,
        counts: &[usize],
        open: fn(Gathered<S::Element>) -> R,
    ) -> Result<R> {
        let call = group.handle.uneven::<S::Element>(call.collective, call.root)?;
        let input = read(call.name, self)?;
        group.handle.now(async |sequence| call.on(sequence).apart(input, counts).await).map(open)
    }
}

impl<B: Owned> Input<Asynchronous> for B {
    type Element = B::Element;
    type Sent = Work<B>;
    type With<R> = Work<(B, R)>;

    fn send(self, group: &ProcessGroup<Asynchronous>, to: Receiver) -> Result<Work<B>> {
        group.handle.begin_send(self, to)
    }

    fn exchange<R: Send + 'static>(
        self,
        group: &ProcessGroup<Asynchronous>,
        call: CollectiveCall<'_>,
        counts: &[usize],
        open: fn(Gathered<B::Element>) -> R,
    ) -> Result<Work<(B, R)>> {
        let call = group.handle.uneven::<B::Element>(call.collective, call.root)?;
        let (name, counts) = (call.name, counts.to_vec());
        let steps = |sequence| async move {
            let result = call.on(sequence).apart(read(call.name, &self)?, &counts).await?;
            Ok((self, open(result)))
        };
        group.handle.later(name, steps, Ok)
    }
}

impl<I, O> Apart<Blocking> for (&I, &mut O)
where
    I: Elements + ?Sized,
    O: ElementsMut<Element = I::Element> + ?Sized,
{
    type Received = Rank;

    fn send_recv(self, group: &ProcessGroup, to: Receiver, from: Sender) -> Result<Rank> {
        let borrowed = Borrowed::apart(read("send_recv", self.0)?, write("send_recv", self.1)?);
        let both = group.handle.both(I::Element::DTYPE, &borrowed, to, from)?;
        Ok(sender(&group.handle.wait(both)?.received))
    }
}

impl<I: Owned, O: Owned<Element = I::Element>> Apart<Asynchronous> for (I, O) {
    type Received = Work<((I, O), Rank)>;

    fn send_recv(
        self,
        group: &ProcessGroup<Asynchronous>,
        to: Receiver,
        from: Sender,
    ) -> Result<Work<((I, O), Rank)>> {
        let (data, mut into) = self;
        let steps = |sequence: Sequence| async move {
            let borrowed = Borrowed::apart(read("send_recv", &data)?, write("send_recv", &mut into)?);
            let both = sequence.group.both(I::Element::DTYPE, &borrowed, to, from)?;
            let from = sender(&sequence.messages(both).await?);
            Ok(((data, into), from))
        };
        group.handle.later("send_recv", steps, Ok)
    }
}

impl<B: Owned> InPlace<Asynchronous> for B {
    type Received = Work<(B, Rank)>;

    fn recv(mut self, group: &ProcessGroup<Asynchronous>, from: Sender) -> Result<Work<(B, Rank)>> {
        let what = group.handle.receives(&mut self, from)?;
        group.handle.begin_message(what, (self, None), &group.handle.options)
    }
}
impl<B: Owned> Operands<Asynchronous> for B {}
impl<B: Owned> Blocks<Asynchronous> for B {
    type Returns = Work<B>;
    type Block = Work<(B, Range<usize>)>;

    fn call(self, group: &ProcessGroup<Asynchronous>, call: CollectiveCall<'_>) -> Result<Work<B>> {
        begin_in_place(group, call, self, |data, _| data)
    }

    fn block(self, group: &ProcessGroup<Asynchronous>, call: CollectiveCall<'_>) -> Result<Self::Block> {
        begin_in_place(group, call, self, |data, block| (data, block))
    }
}

impl<I: Owned, O: Owned<Element = I::Element>> Operands<Asynchronous> for (I, O) {}
impl<I: Owned, O: Owned<Element = I::Element>> Blocks<Asynchronous> for (I, O) {
    type Returns = Work<(I, O)>;
    type Block = Work<(I, O)>;

    fn call(self, group: &ProcessGroup<Asynchronous>, call: CollectiveCall<'_>) -> Result<Work<(I, O)>> {
        let (name, handle, (input, mut output)) = (call.name(), &group.handle, self);
        let (from, into) = (read(name, &input)?, write(name, &mut output)?);
        let (dtype, lengths) = (I::Element::DTYPE, (from.len(), into.len()));
        let borrowed = Borrowed::apart(from, into).kept();
        if call.counts.is_some() {
            return handle.begin_collective(&request(call, dtype), &borrowed, (input, output));
        }
        let Checked { count, .. } = Checked::apart(handle, &call, lengths)?;
        handle.begin(&call.spec(dtype, count), borrowed, (input, output))
    }

    fn block(self, group: &ProcessGroup<Asynchronous>, call: CollectiveCall<'_>) -> Result<Work<(I, O)>> {
        self.call(group, call)
    }
}

/// Operands whose blocks differ in length, which the ranks that get or give several blocks know: made by [`uneven`].
#[derive(Debug)]
pub struct UnevenBlocks<'c, D> {
    data: D,
    counts: Uneven<'c>,
}

/// Operands of a collective whose blocks have these numbers of elements, one for each rank. `data` is in place or apart, borrowed or by
/// value, as for equal blocks. A rank that has only its own block, as another rank than the root in a gather, may give no counts.
///
/// ```
/// # use unisono::{Config, ProcessGroup, uneven};
/// # use unisono_transport::inproc::Hub;
/// # fn main() -> unisono::Result<()> {
/// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
/// // Rank r gives r + 1 elements; each rank's own are where they belong.
/// let counts: Vec<usize> = (1..=group.size()).collect();
/// let mut data = vec![group.rank() as i32; counts.iter().sum()];
/// group.all_gather(uneven(&mut data, &counts))?;
/// assert_eq!(data.first(), Some(&0));
/// # Ok(()) }
/// ```
///
/// Where no rank knows the lengths of the others' blocks, [`all_gather_v`](ProcessGroup::all_gather_v) and its like exchange them.
pub fn uneven<D>(data: D, counts: &[usize]) -> UnevenBlocks<'_, D> {
    UnevenBlocks { data, counts: Uneven { input: counts, output: counts } }
}

impl<'c, D> UnevenBlocks<'c, D> {
    /// The same, where the blocks that this rank gets in an all_to_all have these numbers of elements; those that it gives have the
    /// numbers that [`uneven`] was given.
    #[must_use]
    pub fn gets(self, counts: &'c [usize]) -> Self {
        Self { counts: Uneven { output: counts, ..self.counts }, ..self }
    }
}

impl<M: Mode, D: Blocks<M>> Blocks<M> for UnevenBlocks<'_, D> {
    type Returns = D::Returns;
    type Block = D::Block;

    fn call(self, group: &ProcessGroup<M>, call: CollectiveCall<'_>) -> Result<Self::Returns> {
        self.data.call(group, CollectiveCall { counts: Some(self.counts), ..call })
    }

    fn block(self, group: &ProcessGroup<M>, call: CollectiveCall<'_>) -> Result<Self::Block> {
        self.data.block(group, CollectiveCall { counts: Some(self.counts), ..call })
    }
}

/// A call of uneven blocks of elements of this type.
fn request(call: CollectiveCall<'_>, dtype: Dtype) -> Request<'_> {
    let CollectiveCall { collective, op, root, counts } = call;
    Request { op, root, lengths: counts, ..Request::new(collective, dtype) }
}

/// Runs a collective in place, and returns the range of its output in `data`.
#[inline]
fn in_place<T: Element>(
    group: &ProcessGroup,
    call: CollectiveCall<'_>,
    data: &mut [T],
) -> Result<Range<usize>> {
    match call.counts {
        None => group.handle.in_place(&call, data),
        Some(counts) => in_uneven_blocks(group, call, counts, data),
    }
}

/// The same for a collective of uneven blocks.
#[cold]
fn in_uneven_blocks<T: Element>(
    group: &ProcessGroup,
    call: CollectiveCall<'_>,
    counts: Uneven<'_>,
    data: &mut [T],
) -> Result<Range<usize>> {
    let (memory, block) = in_one(&group.handle, call, counts, data)?;
    group.handle.collective(&request(call, T::DTYPE), &memory.input, &memory.output).map(|()| block)
}

/// Begins a collective in place. `back` makes the work's result of the data and of the range of the output in it.
fn begin_in_place<B: Owned, R: Send + 'static>(
    group: &ProcessGroup<Asynchronous>,
    call: CollectiveCall<'_>,
    mut data: B,
    back: impl FnOnce(B, Range<usize>) -> R,
) -> Result<Work<R>> {
    let Some(counts) = call.counts else { return group.handle.begin_in_place(call, data, 0, back) };
    let (memory, block) = in_one(&group.handle, call, counts, write(call.name(), &mut data)?)?;
    let memory = memory.kept();
    group.handle.begin_collective(&request(call, B::Element::DTYPE), &memory, back(data, block))
}

/// Operands of uneven blocks in one piece of memory, and the range of the output.
fn in_one<'d, T: Element>(
    handle: &Handle,
    call: CollectiveCall<'_>,
    counts: Uneven<'_>,
    data: &'d mut [T],
) -> Result<(Borrowed<'d>, Range<usize>)> {
    let CollectiveCall { collective, root, .. } = call;
    let (name, len, whole) = (call.name(), data.len(), 0..data.len());
    let elsewhere = collective.has_root() && handle.rank() != root;
    let block = match elsewhere {
        true => whole.clone(),
        false => own_part(handle, name, counts.input, len)?,
    };
    let (input, output) = in_place_sides(collective, elsewhere, whole, block);
    let memory = Borrowed::within(data, input, output.clone()).ok_or_else(|| outside(name, len))?;
    Ok((memory, output))
}

macro_rules! slices {
    ($(($($generics:tt)*) $list:ty),* $(,)?) => {$(
        impl<$($generics)*> Operands<Blocking> for &mut $list {}
        impl<$($generics)*> Blocks<Blocking> for &mut $list {
            type Returns = ();
            type Block = ();

            fn call(self, group: &ProcessGroup, call: CollectiveCall<'_>) -> Result<()> {
                group.handle.in_pieces(call, self)
            }

            fn block(self, group: &ProcessGroup, call: CollectiveCall<'_>) -> Result<()> {
                group.handle.in_pieces(call, self)
            }
        }
    )*};
}

slices!(
    (T: Element) [&mut [T]],
    (T: Element, const N: usize) [&mut [T]; N],
    (T: Element) Vec<&mut [T]>,
);
