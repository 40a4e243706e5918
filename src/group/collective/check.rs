//! The checks of collectives to which all ranks give the same number of elements, and how they run. The checks work on numbers of elements,
//! so they are the same for every type.

use std::ops::Range;

use bytemuck::cast_slice_mut;
use unisono_engine::Borrowed;
use unisono_schedule::{Collective, Rank, Uneven};

use crate::{
    buffer::{Elements, ElementsMut, Owned},
    dtype::{Dtype, Element, Scalar as _},
    error::{Error, Result},
    group::{
        handle::Handle,
        plan::{CallSpec, argument},
        shared::CallKind,
    },
    reduce::ReduceOp,
    work::Work,
};

/// A collective as a typed call gives it to its operands.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "only the sealed traits of operands take it")]
pub struct CollectiveCall<'c> {
    pub collective: Collective,
    /// Used only if elements are reduced.
    pub op: ReduceOp,
    /// 0 if there is none.
    pub root: Rank,
    /// The lengths of blocks, if these may differ.
    pub counts: Option<Uneven<'c>>,
}

impl<'c> CollectiveCall<'c> {
    #[inline]
    pub(crate) const fn new(collective: Collective, op: ReduceOp, root: Rank) -> Self {
        Self { collective, op, root, counts: None }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.collective.name()
    }

    /// The call with this many elements of this type, in equal blocks.
    #[inline]
    pub(crate) fn spec(&self, dtype: Dtype, count: usize) -> CallSpec<'static> {
        let Self { collective, op, root, .. } = *self;
        CallSpec { root, op, ..CallSpec::new(collective, dtype, count) }
    }
}

/// The elements of a call whose arguments are valid: the count of its collective, and the ranges that it reads and writes.
pub(crate) struct Checked {
    pub count: usize,
    pub input: Range<usize>,
    pub output: Range<usize>,
}

impl Handle {
    /// Runs a collective on borrowed memory; a failure ends the group.
    #[inline]
    pub(crate) fn run(&self, spec: &CallSpec<'_>, borrowed: Borrowed<'_>) -> Result<()> {
        self.shared.run(CallKind::Single, spec, borrowed, &self.options).map(drop)
    }

    /// Begins a collective on memory that `held` owns; the work returns it.
    pub(crate) fn begin<B: Send + 'static>(
        &self,
        spec: &CallSpec<'_>,
        borrowed: Borrowed<'static>,
        held: B,
    ) -> Result<Work<B>> {
        let planned = self.shared.plan(spec, borrowed, &self.options)?;
        self.shared.begin_planned(spec.collective.name(), planned, held, &self.options)
    }

    /// Runs a collective in place, and returns the range of its output in `data`.
    pub(crate) fn in_place<T: Element>(
        &self,
        call: &CollectiveCall<'_>,
        data: &mut [T],
    ) -> Result<Range<usize>> {
        let Checked { count, input, output } = Checked::in_place(self, call, data.len())?;
        let len = data.len();
        let Some(borrowed) = Borrowed::within(data, input, output.clone()) else {
            return Err(outside(call.name(), len));
        };
        self.run(&call.spec(T::DTYPE, count), borrowed)?;
        Ok(output)
    }

    /// Runs a collective without blocks in place, on slices that are used one after the other as one.
    pub(crate) fn in_pieces<T: Element>(
        &self,
        call: CollectiveCall<'_>,
        slices: &mut [&mut [T]],
    ) -> Result<()> {
        if call.collective.has_blocks() {
            let problem = "an operand of several slices has no blocks: all_reduce and reduce take it";
            return Err(argument(call.name(), problem));
        }
        let len = slices.iter().try_fold(0, |sum: usize, slice| sum.checked_add(slice.len()));
        let len = len.ok_or_else(|| outside(call.name(), usize::MAX))?;
        let Checked { count, output, .. } = Checked::in_place(self, &call, len)?;
        let all = Borrowed::scattered(slices.iter_mut().map(|slice| cast_slice_mut(slice)));
        self.run(&call.spec(T::DTYPE, count), if output.is_empty() { all.only_read() } else { all })
    }

    /// Begins a collective in place; ranks also compare `contents`. `back` makes the work's result of the data and of the range of the
    /// output in it.
    pub(crate) fn begin_in_place<B: Owned, R: Send + 'static>(
        &self,
        call: CollectiveCall<'_>,
        mut data: B,
        contents: u32,
        back: impl FnOnce(B, Range<usize>) -> R,
    ) -> Result<Work<R>> {
        let elements = write(call.name(), &mut data)?;
        let len = elements.len();
        let Checked { count, input, output } = Checked::in_place(self, &call, len)?;
        let spec = CallSpec { contents, ..call.spec(B::Element::DTYPE, count) };
        let borrowed = Borrowed::within(elements, input, output.clone());
        let borrowed = borrowed.ok_or_else(|| outside(call.name(), len))?.kept();
        self.begin(&spec, borrowed, back(data, output))
    }

    /// Runs a collective that reads one slice and writes another.
    pub(crate) fn apart<T: Element>(
        &self,
        call: &CollectiveCall<'_>,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let checked = Checked::apart(self, call, (input.len(), output.len()))?;
        let borrowed = Borrowed::apart(&input[checked.input], &mut output[checked.output]);
        self.run(&call.spec(T::DTYPE, checked.count), borrowed)
    }
}

impl Checked {
    /// Checks a call in place, on `len` elements.
    pub(crate) fn in_place(group: &Handle, call: &CollectiveCall<'_>, len: usize) -> Result<Self> {
        let CollectiveCall { collective, root, .. } = *call;
        check_root(group, collective.name(), collective, root)?;
        let whole = 0..len;
        let elsewhere = collective.has_root() && group.rank() != root;
        let block = match collective.has_blocks() && !elsewhere {
            true => own_block(group, collective, len)?,
            false => whole.clone(),
        };
        let count = block.len();
        let (input, output) = in_place_sides(collective, elsewhere, whole, block);
        Ok(Self { count, input, output })
    }

    /// Checks a call that reads an input and writes an output of these numbers of elements.
    pub(crate) fn apart(
        group: &Handle,
        call: &CollectiveCall<'_>,
        (inputs, outputs): (usize, usize),
    ) -> Result<Self> {
        let CollectiveCall { collective, root, .. } = *call;
        check_root(group, collective.name(), collective, root)?;
        let at_root = group.rank() == root;
        // On ranks other than the root, one of the two is not used.
        let count = match collective {
            Collective::Gather | Collective::Reduce if !at_root => inputs,
            Collective::Scatter if !at_root => outputs,
            Collective::Gather | Collective::AllGather => one_block(group, collective, inputs, outputs)?,
            Collective::Scatter | Collective::ReduceScatter => one_block(group, collective, outputs, inputs)?,
            Collective::AllToAll => {
                same_length(collective, inputs, outputs)?;
                own_block(group, collective, inputs)?.len()
            }
            _ => same_length(collective, inputs, outputs)?,
        };
        let (reads, writes) = sides(collective, at_root);
        Ok(Self {
            count,
            input: 0..if reads { inputs } else { 0 },
            output: 0..if writes { outputs } else { 0 },
        })
    }
}

/// True for a rank's input, and for its output, if the rank uses it.
pub(crate) fn sides(collective: Collective, at_root: bool) -> (bool, bool) {
    let reads = !matches!(collective, Collective::Scatter) || at_root;
    let writes = !matches!(collective, Collective::Gather | Collective::Reduce) || at_root;
    (reads, writes)
}

/// The parts of an operand in place that are the input and the output: all of it, or this rank's block. `elsewhere`: the collective has a
/// root, and another rank is the root.
pub(crate) fn in_place_sides(
    collective: Collective,
    elsewhere: bool,
    whole: Range<usize>,
    block: Range<usize>,
) -> (Range<usize>, Range<usize>) {
    match collective {
        Collective::Reduce | Collective::Gather if elsewhere => (whole, 0..0),
        Collective::Scatter if elsewhere => (0..0, whole),
        Collective::AllGather | Collective::Gather => (block, whole),
        Collective::ReduceScatter | Collective::Scatter => (whole, block),
        _ => (whole.clone(), whole),
    }
}

/// The elements of an operand that a call reads.
#[inline]
pub(crate) fn read<'d, S: Elements + ?Sized>(call: &'static str, data: &'d S) -> Result<&'d [S::Element]> {
    data.elements().ok_or_else(|| scattered(call))
}

/// The elements of an operand that a call writes.
#[inline]
pub(crate) fn write<'d, S>(call: &'static str, data: &'d mut S) -> Result<&'d mut [S::Element]>
where
    S: ElementsMut + ?Sized,
{
    data.elements_mut().ok_or_else(|| scattered(call))
}

fn scattered(call: &'static str) -> Error {
    argument(
        call,
        "the elements of an array are not contiguous in the order of their indices: copy them first",
    )
}

pub(crate) fn check_root(
    group: &Handle,
    call: &'static str,
    collective: Collective,
    root: Rank,
) -> Result<()> {
    if root < group.size() || !collective.has_root() {
        return Ok(());
    }
    Err(argument(call, format!("the root is rank {root}; there are ranks 0 to {}", group.size() - 1)))
}

/// The length of a block, if the operand of all blocks has one for each rank.
fn one_block(group: &Handle, collective: Collective, block: usize, whole: usize) -> Result<usize> {
    let wanted = block.checked_mul(group.size());
    if wanted == Some(whole) {
        return Ok(block);
    }
    let wanted = wanted.map_or_else(|| "more than can be addressed".to_owned(), |wanted| wanted.to_string());
    let sides = format!("one side has {whole} elements and the other {block}");
    let problem = format!("{sides}; with {} ranks the first must have {wanted}", group.size());
    Err(argument(collective.name(), problem))
}

/// This rank's block among equal ones of `len` elements in all.
pub(crate) fn own_block(group: &Handle, collective: Collective, len: usize) -> Result<Range<usize>> {
    if !len.is_multiple_of(group.size()) {
        let problem = format!("{len} elements cannot be cut into {} equal blocks", group.size());
        return Err(argument(collective.name(), problem));
    }
    let block = len / group.size();
    Ok(group.rank() * block..(group.rank() + 1) * block)
}

/// The error of blocks that are not within the data. The checks of the lengths rule it out.
pub(crate) fn outside(call: &'static str, len: usize) -> Error {
    argument(call, format!("the blocks are not within the {len} elements given"))
}

/// The length of the input and the output, if both have the same.
fn same_length(collective: Collective, input: usize, output: usize) -> Result<usize> {
    if input == output {
        return Ok(input);
    }
    let problem =
        format!("the input has {input} elements and the output {output}; they must have equally many");
    Err(argument(collective.name(), problem))
}
