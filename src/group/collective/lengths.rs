//! Calls whose ranks must learn lengths first: of uneven blocks, objects and tensors.
//!
//! A rank knows the lengths of what it gives. It learns those of the others by an exchange of lengths, which ranks compare as a
//! part of the same call. So a call is two operations or more, and from the second on every rank knows all lengths.

use std::ops::{Deref, Range};

use unisono_schedule::{Collective, Rank, Uneven};

use crate::{
    buffer::Borrowed,
    dtype::{Dtype, Element},
    error::{Error, Failure, Result},
    group::{
        ProcessGroup,
        collective::check::outside,
        plan::spec::{CallId, CallSpec},
        sequence::Sequence,
    },
    reduce::Kernel,
};

/// A call whose lengths have to be learned; its arguments are valid.
pub(crate) struct UnevenCall {
    pub group: ProcessGroup,
    /// What ranks compare of the call.
    pub id: CallId,
    /// The method called, for errors.
    pub name: &'static str,
}

/// Such a call while it runs.
pub(crate) struct UnevenSteps<'c, 's> {
    call: &'c UnevenCall,
    pub sequence: Sequence<'s>,
}

impl Deref for UnevenSteps<'_, '_> {
    type Target = UnevenCall;

    fn deref(&self) -> &UnevenCall {
        self.call
    }
}

impl ProcessGroup {
    /// A call whose lengths have to be learned. Fails if there is no such root, or the operation does not fit the type.
    pub(crate) fn uneven_call(&self, name: &'static str, id: CallId) -> Result<UnevenCall> {
        let CallId { dtype, op, root, .. } = id;
        let argument = |problem: String| Error::Argument { call: name, problem };
        if root >= self.size() {
            return Err(argument(format!(
                "the root is rank {root}; there are ranks 0 to {}",
                self.size() - 1
            )));
        }
        Kernel::new(dtype, op).map_err(|error| argument(error.to_string()))?;
        Ok(UnevenCall { group: self.under_way(), id, name })
    }
}

impl UnevenCall {
    /// The call, whose operations this sequence runs.
    pub(crate) fn on<'s>(&self, sequence: Sequence<'s>) -> UnevenSteps<'_, 's> {
        UnevenSteps { call: self, sequence }
    }

    /// This rank's block among blocks of these lengths, which are one for each rank and together `len` elements.
    pub(crate) fn own(&self, lengths: &[usize], len: usize) -> Result<Range<usize>> {
        let argument = |problem: String| Err(Error::Argument { call: self.name, problem });
        let ranks = self.group.size();
        if lengths.len() != ranks {
            return argument(format!("{} lengths were given; there are {ranks} ranks", lengths.len()));
        }
        match sum(lengths) {
            None => argument("the lengths add up to more than can be addressed".to_owned()),
            Some(sum) if sum != len => {
                argument(format!("the lengths add up to {sum}, and there are {len} elements"))
            }
            Some(_) => {
                let start = lengths.iter().take(self.group.rank()).sum();
                Ok(start..start + lengths.get(self.group.rank()).copied().unwrap_or_default())
            }
        }
    }

    pub(crate) fn within<'d, T: Element>(
        &self,
        data: &'d mut [T],
        input: Range<usize>,
        output: Range<usize>,
    ) -> Result<Borrowed<'d>> {
        let len = data.len();
        Borrowed::within(data, input, output).ok_or_else(|| outside(self.name, len))
    }

    /// The failure of two ranks that disagree in operation `op`, with what each says.
    fn mismatch(&self, op: u64, one: (Rank, String), other: (Rank, String)) -> Error {
        let mut sides = [one, other].map(|(rank, says)| (self.group.global(rank), says));
        sides.sort();
        let [left, right] = sides;
        let (group, call) = (self.group.shared.group_name(), self.name.to_owned());
        Error::Failed(Failure::Mismatch { group, op, call, left, right })
    }

    /// Checks that the lengths that this rank expects are those that it has learned.
    fn agree(&self, op: u64, known: &[usize], learned: &[usize]) -> Result<()> {
        let differs = known.iter().zip(learned).position(|(known, learned)| known != learned);
        let Some(other) = differs else { return Ok(()) };
        let (expects, has) = (known[other], learned[other]);
        Err(self.mismatch(
            op,
            (self.group.rank(), format!("expects {expects} elements of rank {}", self.group.global(other))),
            (other, format!("has {has}")),
        ))
    }

    /// Zeros for blocks of these lengths. If there is no memory for them, the group fails, because the other ranks go on.
    pub(crate) fn room<T: Element>(&self, lengths: &[usize]) -> Result<Vec<T>> {
        let sum = sum(lengths);
        let room = sum.and_then(|sum| bytemuck::allocation::try_zeroed_vec(sum).ok());
        room.ok_or_else(|| {
            let bytes = sum.and_then(|sum| sum.checked_mul(size_of::<T>()));
            let what = bytes
                .map_or_else(|| "more bytes than can be addressed".to_owned(), |it| format!("{it} bytes"));
            let why = format!("{}: no memory for the {what} that come here", self.name);
            Error::Failed(Failure::Aborted { rank: self.group.global_rank(), why })
        })
    }

    /// In a group of one rank, an output that does not fit the input is an invalid argument.
    fn fits_alone(&self, own: usize, whole: usize) -> Result<()> {
        if self.group.size() > 1 || own == whole {
            return Ok(());
        }
        let problem = format!("the input has {whole} elements, and the output {own}");
        Err(Error::Argument { call: self.name, problem })
    }

    /// Checks that every rank's input is as long as all outputs together.
    fn fits_all(&self, op: u64, [lengths, wholes]: &[Vec<usize>; 2]) -> Result<()> {
        let sum = sum(lengths);
        // All ranks find the same one.
        let misfit = wholes.iter().enumerate().find(|(_, whole)| Some(**whole) != sum);
        let Some((rank, has)) = misfit else { return Ok(()) };
        let together = sum.map_or_else(|| "more than can be addressed".to_owned(), |sum| sum.to_string());
        let other = usize::from(rank == 0);
        let part = lengths.get(other).copied().unwrap_or_default();
        Err(self.mismatch(
            op,
            (rank, format!("has an input of {has} elements")),
            (other, format!("has an output of {part}, of {together} in all")),
        ))
    }
}

impl UnevenSteps<'_, '_> {
    /// Exchanges numbers by a collective of `count` elements: gives `given`, and returns the `len` numbers that this rank gets.
    pub(crate) async fn exchange(
        &mut self,
        collective: Collective,
        count: usize,
        given: &[u64],
        len: usize,
    ) -> Result<Vec<usize>> {
        let mut received = vec![0; len];
        let root = if collective.has_root() { self.id.root } else { 0 };
        let spec = CallSpec { root, part_of: Some(self.id), ..CallSpec::new(collective, count) };
        self.sequence.run(Dtype::U64, &spec, Borrowed::apart(given, &mut received)).await?;
        Ok(received.into_iter().map(length).collect())
    }

    /// Gathers `N` numbers of every rank: the first of all ranks, by rank, then the second, and so on.
    pub(crate) async fn everyone<const N: usize>(&mut self, mine: [usize; N]) -> Result<[Vec<usize>; N]> {
        let mine = mine.map(|number| number as u64);
        let all = self.exchange(Collective::AllGather, N, &mine, N * self.group.size()).await?;
        Ok(by_rank(&all))
    }

    /// The lengths of the root's blocks (on other ranks only that of the own block, 0 for the rest), and the longest.
    async fn blocks_of_root(&mut self, lengths: &[usize]) -> Result<(Vec<usize>, usize)> {
        let given = if self.at_root() { with_longest(lengths) } else { Vec::new() };
        let received = self.exchange(Collective::Scatter, 2, &given, 2).await?;
        let (rank, [own, longest]) = (self.group.rank(), numbers(&received));
        let blocks = match self.at_root() {
            true => lengths.to_vec(),
            false => (0..self.group.size()).map(|other| if other == rank { own } else { 0 }).collect(),
        };
        Ok((blocks, longest))
    }

    /// The length of each rank's block for this rank, and the longest block of all.
    async fn of_each(&mut self, lengths: &[usize]) -> Result<(Vec<usize>, usize)> {
        let (given, len) = (with_longest(lengths), 2 * self.group.size());
        let received = self.exchange(Collective::AllToAll, 2, &given, len).await?;
        let [gets, longests] = by_rank(&received);
        Ok((gets, longest(&longests)))
    }

    /// Gathers or exchanges blocks. Returns the blocks that this rank gets, concatenated, and the length of each. `lengths` are
    /// those of the blocks of `input` in an all_to_all.
    pub(crate) async fn apart<T: Element>(
        &mut self,
        input: &[T],
        lengths: &[usize],
    ) -> Result<(Vec<T>, Vec<usize>)> {
        match self.id.collective {
            Collective::AllToAll => self.all_to_all(input, lengths).await,
            _ => self.gather_all(input).await,
        }
    }

    /// Runs a call in place. `lengths` are those that this rank knows; for `reduce_scatter` its block's. Returns the range
    /// of this rank's block in a scattered result, otherwise all of `data`.
    pub(crate) async fn in_place<T: Element>(
        &mut self,
        data: &mut [T],
        lengths: &[usize],
    ) -> Result<Range<usize>> {
        match (self.id.collective, lengths) {
            (Collective::Scatter, _) => return self.scatter_in_place(data, lengths).await,
            (Collective::ReduceScatter, &[own]) => return self.reduce_in_place(data, own).await,
            (Collective::AllToAll, _) => self.all_to_all_in_place(data, lengths).await?,
            _ => self.gather_in_place(data, lengths).await?,
        }
        Ok(0..data.len())
    }

    /// Gathers blocks, on the root or on all ranks, whose lengths all ranks know.
    pub(crate) async fn gather(&mut self, lengths: &[usize], borrowed: Borrowed<'_>) -> Result<()> {
        let longest = longest(lengths);
        self.finish(Uneven { input: &[], output: lengths }, longest, borrowed).await
    }

    /// Gathers blocks whose lengths only their owners know.
    async fn gather_all<T: Element>(&mut self, input: &[T]) -> Result<(Vec<T>, Vec<usize>)> {
        let [lengths] = self.everyone([input.len()]).await?;
        let mut output = self.room::<T>(if self.gets() { &lengths } else { &[] })?;
        self.gather(&lengths, Borrowed::apart(input, &mut output)).await?;
        Ok((output, lengths))
    }

    /// Gathers blocks in place. A rank that gets them knows all lengths, and has its own block where it belongs.
    async fn gather_in_place<T: Element>(&mut self, data: &mut [T], lengths: &[usize]) -> Result<()> {
        let own = if self.gets() { self.own(lengths, data.len())? } else { 0..data.len() };
        let [learned] = self.everyone([own.len()]).await?;
        if self.gets() {
            self.agree(self.sequence.op(), lengths, &learned)?;
        }
        let whole = if self.gets() { 0..data.len() } else { 0..0 };
        self.gather(&learned, self.within(data, own, whole)?).await
    }

    /// Scatters the root's blocks. The root knows all lengths, the other ranks their own, and all the longest.
    pub(crate) async fn scatter(
        &mut self,
        blocks: &[usize],
        longest: usize,
        borrowed: Borrowed<'_>,
    ) -> Result<()> {
        self.finish(Uneven { input: blocks, output: &[] }, longest, borrowed).await
    }

    /// Scatters blocks whose lengths only the root knows.
    pub(crate) async fn scatter_all<T: Element>(&mut self, input: &[T], lengths: &[usize]) -> Result<Vec<T>> {
        let input = if self.at_root() { input } else { &[] };
        if self.at_root() {
            self.own(lengths, input.len())?;
        }
        let (blocks, longest) = self.blocks_of_root(lengths).await?;
        let own = blocks.get(self.group.rank()).copied().unwrap_or_default();
        let mut output = self.room::<T>(&[own])?;
        self.scatter(&blocks, longest, Borrowed::apart(input, &mut output)).await?;
        Ok(output)
    }

    /// Scatters blocks in place: the root's own block stays where it is, and the other ranks' `data` is filled. Returns the range
    /// of this rank's block.
    async fn scatter_in_place<T: Element>(
        &mut self,
        data: &mut [T],
        lengths: &[usize],
    ) -> Result<Range<usize>> {
        let own = if self.at_root() { self.own(lengths, data.len())? } else { 0..data.len() };
        let (blocks, longest) = self.blocks_of_root(lengths).await?;
        let given = blocks.get(self.group.rank()).copied().unwrap_or_default();
        if given != own.len() {
            let (has, gets) = (own.len(), given);
            return Err(self.mismatch(
                self.sequence.op(),
                (self.group.rank(), format!("has room for {has} elements")),
                (self.id.root, format!("has {gets} for it")),
            ));
        }
        let whole = if self.at_root() { 0..data.len() } else { 0..0 };
        self.scatter(&blocks, longest, self.within(data, whole, own.clone())?).await?;
        Ok(own)
    }

    async fn all_to_all<T: Element>(
        &mut self,
        input: &[T],
        lengths: &[usize],
    ) -> Result<(Vec<T>, Vec<usize>)> {
        self.own(lengths, input.len())?;
        let (gets, longest) = self.of_each(lengths).await?;
        let mut output = self.room::<T>(&gets)?;
        let uneven = Uneven { input: lengths, output: &gets };
        self.finish(uneven, longest, Borrowed::apart(input, &mut output)).await?;
        Ok((output, gets))
    }

    /// The same in place: the blocks that this rank gets replace those that it gives.
    async fn all_to_all_in_place<T: Element>(&mut self, data: &mut [T], lengths: &[usize]) -> Result<()> {
        self.own(lengths, data.len())?;
        let (gets, longest) = self.of_each(lengths).await?;
        self.agree(self.sequence.op(), lengths, &gets)?;
        let uneven = Uneven { input: lengths, output: &gets };
        let whole = 0..data.len();
        self.finish(uneven, longest, self.within(data, whole.clone(), whole)?).await
    }

    pub(crate) async fn reduce_all<T: Element>(&mut self, input: &[T], output: &mut [T]) -> Result<()> {
        let lengths = self.learn_fitting(output.len(), input.len()).await?;
        self.reduce_scatter(&lengths, Borrowed::apart(input, output)).await
    }

    /// Reduces `data` in place: this rank's block, of `own` elements, gets the result. Returns its range.
    async fn reduce_in_place<T: Element>(&mut self, data: &mut [T], own: usize) -> Result<Range<usize>> {
        let lengths = self.learn_fitting(own, data.len()).await?;
        let start = lengths.iter().take(self.group.rank()).sum();
        let (whole, block) = (0..data.len(), start..start + own);
        self.reduce_scatter(&lengths, self.within(data, whole, block.clone())?).await?;
        Ok(block)
    }

    async fn reduce_scatter(&mut self, lengths: &[usize], borrowed: Borrowed<'_>) -> Result<()> {
        let uneven = Uneven { input: lengths, output: &[] };
        self.finish(uneven, longest(lengths), borrowed).await
    }

    /// Learns the lengths of all ranks' blocks, and checks that they fit all ranks' inputs.
    async fn learn_fitting(&mut self, own: usize, whole: usize) -> Result<Vec<usize>> {
        self.fits_alone(own, whole)?;
        let learned = self.everyone([own, whole]).await?;
        self.fits_all(self.sequence.op(), &learned)?;
        let [lengths, _] = learned;
        Ok(lengths)
    }

    /// Runs the collective of the call, once all lengths are known.
    async fn finish(&mut self, uneven: Uneven<'_>, longest: usize, borrowed: Borrowed<'_>) -> Result<()> {
        let CallId { collective, dtype, op, root, cargo } = self.id;
        let spec = CallSpec { uneven: Some(uneven), root, op, cargo, ..CallSpec::new(collective, longest) };
        self.sequence.run(dtype, &spec, borrowed).await
    }
}

/// The numbers of all ranks, `N` of each: the first of all ranks, then the second, and so on.
fn by_rank<const N: usize>(all: &[usize]) -> [Vec<usize>; N] {
    std::array::from_fn(|which| all.iter().copied().skip(which).step_by(N).collect())
}

/// The first `N` numbers; 0 for those that are missing.
pub(crate) fn numbers<const N: usize>(all: &[usize]) -> [usize; N] {
    std::array::from_fn(|which| all.get(which).copied().unwrap_or_default())
}

/// Each length, followed by the longest of all.
fn with_longest(lengths: &[usize]) -> Vec<u64> {
    let longest = longest(lengths);
    lengths.iter().flat_map(|&length| [length as u64, longest as u64]).collect()
}

/// A length from another rank; `usize::MAX` if it does not fit.
fn length(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The sum; `None` if it does not fit in a `usize`.
pub(crate) fn sum(lengths: &[usize]) -> Option<usize> {
    lengths.iter().try_fold(0, |sum: usize, &length| sum.checked_add(length))
}

/// The longest; 0 if there are none.
pub(crate) fn longest(lengths: &[usize]) -> usize {
    lengths.iter().copied().max().unwrap_or_default()
}
