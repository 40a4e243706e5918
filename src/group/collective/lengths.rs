//! Calls whose ranks must learn lengths first: of uneven blocks, objects and tensors.
//!
//! A rank knows how much it gives. It learns how much the others give by an exchange of lengths, which ranks compare as a part
//! of the same call. So a call is two operations or more, and from the second on every rank knows all lengths.

use std::ops::Range;

use unisono_schedule::{Collective, Rank, Uneven};

use crate::{
    buffer::Borrowed,
    dtype::{Dtype, Element},
    error::{Error, Failure, Result},
    group::{
        ProcessGroup,
        collective::equal::{outside, premultiply},
        plan::spec::{CallId, CallSpec},
        sequence::Sequence,
    },
    reduce::Kernel,
};

/// A call, as far as learning the lengths needs to know it.
pub(crate) struct UnevenCall {
    pub group: ProcessGroup,
    /// What is done with the elements.
    pub id: CallId,
    /// Its name, for errors.
    pub name: &'static str,
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

    fn within<'d, T: Element>(
        &self,
        data: &'d mut [T],
        input: Range<usize>,
        output: Range<usize>,
    ) -> Result<Borrowed<'d>> {
        let len = data.len();
        Borrowed::within(data, input, output).ok_or_else(|| outside(self.name, len))
    }

    /// What two ranks disagree on in the operation of that number.
    fn mismatch(&self, op: u64, one: (Rank, String), other: (Rank, String)) -> Error {
        let mut sides = [one, other].map(|(rank, says)| (self.group.global(rank), says));
        sides.sort();
        let [left, right] = sides;
        let (group, call) = (self.group.shared.group_name(), self.name.to_owned());
        Error::Failed(Failure::Mismatch { group, op, call, left, right })
    }

    /// Lengths that a rank knew must be those that it has learned.
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

    /// Runs an exchange of lengths: `said` is what this rank has to say, and gives so many numbers that it hears.
    pub(crate) async fn exchange(
        &self,
        sequence: &mut Sequence<'_>,
        collective: Collective,
        count: usize,
        said: &[u64],
        hears: usize,
    ) -> Result<Vec<usize>> {
        let mut heard = vec![0; hears];
        let root = if collective.has_root() { self.id.root } else { 0 };
        let spec = CallSpec { root, part_of: Some(self.id), ..CallSpec::new(collective, count) };
        sequence.run(&self.group, Dtype::U64, &spec, Borrowed::apart(said, &mut heard)).await?;
        Ok(heard.into_iter().map(length).collect())
    }

    /// Everyone's numbers, by rank.
    pub(crate) async fn everyone<const N: usize>(
        &self,
        sequence: &mut Sequence<'_>,
        mine: [usize; N],
    ) -> Result<[Vec<usize>; N]> {
        let mine = mine.map(|number| number as u64);
        let all = self.exchange(sequence, Collective::AllGather, N, &mine, N * self.group.size()).await?;
        Ok(by_rank(&all))
    }

    /// The lengths of the root's blocks, as far as this rank needs them, and of the longest.
    async fn blocks_of_root(
        &self,
        sequence: &mut Sequence<'_>,
        lengths: &[usize],
    ) -> Result<(Vec<usize>, usize)> {
        let said = if self.at_root() { with_longest(lengths) } else { Vec::new() };
        let told = self.exchange(sequence, Collective::Scatter, 2, &said, 2).await?;
        let (rank, [own, longest]) = (self.group.rank(), numbers(&told));
        let blocks = match self.at_root() {
            true => lengths.to_vec(),
            false => (0..self.group.size()).map(|other| if other == rank { own } else { 0 }).collect(),
        };
        Ok((blocks, longest))
    }

    /// How much each rank has for this one, and the longest block that any has for any.
    async fn of_each(&self, sequence: &mut Sequence<'_>, lengths: &[usize]) -> Result<(Vec<usize>, usize)> {
        let (said, hears) = (with_longest(lengths), 2 * self.group.size());
        let told = self.exchange(sequence, Collective::AllToAll, 2, &said, hears).await?;
        let [gets, longests] = by_rank(&told);
        Ok((gets, longest(&longests)))
    }

    /// A call that gathers or exchanges blocks: what comes, and how much from each rank. `lengths` are those of the blocks of `input`.
    pub(crate) async fn apart<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        input: &[T],
        lengths: &[usize],
    ) -> Result<(Vec<T>, Vec<usize>)> {
        match self.id.collective {
            Collective::AllToAll => self.all_to_all(sequence, input, lengths).await,
            _ => self.gather_all(sequence, input).await,
        }
    }

    /// A call in place, where `lengths` are those that this rank knows: for `reduce_scatter` that of its own block. Gives this
    /// rank's block of a scattered result, else all of `data`.
    pub(crate) async fn in_place<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        data: &mut [T],
        lengths: &[usize],
    ) -> Result<Range<usize>> {
        match (self.id.collective, lengths) {
            (Collective::Scatter, _) => return self.scatter_in_place(sequence, data, lengths).await,
            (Collective::ReduceScatter, &[own]) => return self.reduce_in_place(sequence, data, own).await,
            (Collective::AllToAll, _) => self.all_to_all_in_place(sequence, data, lengths).await?,
            _ => self.gather_in_place(sequence, data, lengths).await?,
        }
        Ok(0..data.len())
    }

    /// Zeros for blocks of these lengths. All is over if there is no memory for them, since the others go on.
    pub(crate) fn room<T: Element>(&self, lengths: &[usize]) -> Result<Vec<T>> {
        let sum = sum(lengths);
        let bytes = sum
            .and_then(|sum| sum.checked_mul(size_of::<T>()))
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        let room = bytes.and(sum).and_then(|sum| bytemuck::allocation::try_zeroed_vec(sum).ok());
        room.ok_or_else(|| {
            let what = bytes
                .map_or_else(|| "more bytes than can be addressed".to_owned(), |it| format!("{it} bytes"));
            let why = format!("{}: no memory for the {what} that come here", self.name);
            Error::Failed(Failure::Aborted { rank: self.group.global_rank(), why })
        })
    }

    /// `gather` and `all_gather` of blocks whose lengths all know.
    pub(crate) async fn gather(
        &self,
        sequence: &mut Sequence<'_>,
        lengths: &[usize],
        borrowed: Borrowed<'_>,
    ) -> Result<()> {
        let longest = longest(lengths);
        self.finish(sequence, Uneven { input: &[], output: lengths }, longest, borrowed).await
    }

    /// The same of blocks whose lengths only their owners know.
    async fn gather_all<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        input: &[T],
    ) -> Result<(Vec<T>, Vec<usize>)> {
        let [lengths] = self.everyone(sequence, [input.len()]).await?;
        let mut output = self.room::<T>(if self.gets() { &lengths } else { &[] })?;
        self.gather(sequence, &lengths, Borrowed::apart(input, &mut output)).await?;
        Ok((output, lengths))
    }

    /// The same of blocks each of which lies in its place already where they are gathered; there their lengths are known.
    async fn gather_in_place<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        data: &mut [T],
        lengths: &[usize],
    ) -> Result<()> {
        let own = if self.gets() { self.own(lengths, data.len())? } else { 0..data.len() };
        let [learned] = self.everyone(sequence, [own.len()]).await?;
        if self.gets() {
            self.agree(sequence.op(), lengths, &learned)?;
        }
        let whole = if self.gets() { 0..data.len() } else { 0..0 };
        self.gather(sequence, &learned, self.within(data, own, whole)?).await
    }

    pub(crate) async fn scatter(
        &self,
        sequence: &mut Sequence<'_>,
        blocks: &[usize],
        longest: usize,
        borrowed: Borrowed<'_>,
    ) -> Result<()> {
        self.finish(sequence, Uneven { input: blocks, output: &[] }, longest, borrowed).await
    }

    /// The same of blocks whose lengths only the root knows.
    pub(crate) async fn scatter_all<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        input: &[T],
        lengths: &[usize],
    ) -> Result<Vec<T>> {
        let input = if self.at_root() { input } else { &[] };
        if self.at_root() {
            self.own(lengths, input.len())?;
        }
        let (blocks, longest) = self.blocks_of_root(sequence, lengths).await?;
        let own = blocks.get(self.group.rank()).copied().unwrap_or_default();
        let mut output = self.room::<T>(&[own])?;
        self.scatter(sequence, &blocks, longest, Borrowed::apart(input, &mut output)).await?;
        Ok(output)
    }

    /// The same where the root's own block stays where it lies, and the others have room for theirs. Gives this rank's.
    async fn scatter_in_place<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        data: &mut [T],
        lengths: &[usize],
    ) -> Result<Range<usize>> {
        let own = if self.at_root() { self.own(lengths, data.len())? } else { 0..data.len() };
        let (blocks, longest) = self.blocks_of_root(sequence, lengths).await?;
        let given = blocks.get(self.group.rank()).copied().unwrap_or_default();
        if given != own.len() {
            let (has, gets) = (own.len(), given);
            return Err(self.mismatch(
                sequence.op(),
                (self.group.rank(), format!("has room for {has} elements")),
                (self.id.root, format!("has {gets} for it")),
            ));
        }
        let whole = if self.at_root() { 0..data.len() } else { 0..0 };
        self.scatter(sequence, &blocks, longest, self.within(data, whole, own.clone())?).await?;
        Ok(own)
    }

    async fn all_to_all<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        input: &[T],
        lengths: &[usize],
    ) -> Result<(Vec<T>, Vec<usize>)> {
        self.own(lengths, input.len())?;
        let (gets, longest) = self.of_each(sequence, lengths).await?;
        let mut output = self.room::<T>(&gets)?;
        let uneven = Uneven { input: lengths, output: &gets };
        self.finish(sequence, uneven, longest, Borrowed::apart(input, &mut output)).await?;
        Ok((output, gets))
    }

    /// The same where what comes takes the place of what goes.
    async fn all_to_all_in_place<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        data: &mut [T],
        lengths: &[usize],
    ) -> Result<()> {
        self.own(lengths, data.len())?;
        let (gets, longest) = self.of_each(sequence, lengths).await?;
        self.agree(sequence.op(), lengths, &gets)?;
        let uneven = Uneven { input: lengths, output: &gets };
        let whole = 0..data.len();
        self.finish(sequence, uneven, longest, self.within(data, whole.clone(), whole)?).await
    }

    /// Reduces `input`, which was multiplied if it is to be.
    pub(crate) async fn reduce_all<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let lengths = self.learn_fitting(sequence, output.len(), input.len()).await?;
        self.reduce_scatter(sequence, &lengths, Borrowed::apart(input, output)).await
    }

    /// Reduces `data`, leaving this rank's block of so many elements where it lies; tells where that is.
    async fn reduce_in_place<T: Element>(
        &self,
        sequence: &mut Sequence<'_>,
        data: &mut [T],
        own: usize,
    ) -> Result<Range<usize>> {
        premultiply(self.id.collective, data, self.id.op)?;
        let lengths = self.learn_fitting(sequence, own, data.len()).await?;
        let start = lengths.iter().take(self.group.rank()).sum();
        let (whole, block) = (0..data.len(), start..start + own);
        self.reduce_scatter(sequence, &lengths, self.within(data, whole, block.clone())?).await?;
        Ok(block)
    }

    async fn reduce_scatter(
        &self,
        sequence: &mut Sequence<'_>,
        lengths: &[usize],
        borrowed: Borrowed<'_>,
    ) -> Result<()> {
        let uneven = Uneven { input: lengths, output: &[] };
        self.finish(sequence, uneven, longest(lengths), borrowed).await
    }

    /// Learns the lengths of everyone's blocks, and makes sure that they fit everyone's input.
    async fn learn_fitting(
        &self,
        sequence: &mut Sequence<'_>,
        own: usize,
        whole: usize,
    ) -> Result<Vec<usize>> {
        self.fits_alone(own, whole)?;
        let learned = self.everyone(sequence, [own, whole]).await?;
        self.fits_all(sequence.op(), &learned)?;
        let [lengths, _] = learned;
        Ok(lengths)
    }

    /// Of one rank alone it is the caller who knows both.
    fn fits_alone(&self, own: usize, whole: usize) -> Result<()> {
        if self.group.size() > 1 || own == whole {
            return Ok(());
        }
        let problem = format!("the input has {whole} elements, and the output {own}");
        Err(Error::Argument { call: self.name, problem })
    }

    /// Everyone's input must be as long as all outputs.
    fn fits_all(&self, op: u64, [lengths, wholes]: &[Vec<usize>; 2]) -> Result<()> {
        let sum = sum(lengths);
        // All see the same rank first.
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

    /// Does what the call is for, once all lengths are known.
    async fn finish(
        &self,
        sequence: &mut Sequence<'_>,
        uneven: Uneven<'_>,
        longest: usize,
        borrowed: Borrowed<'_>,
    ) -> Result<()> {
        let CallId { collective, dtype, op, root, cargo } = self.id;
        let spec = CallSpec { uneven: Some(uneven), root, op, cargo, ..CallSpec::new(collective, longest) };
        sequence.run(&self.group, dtype, &spec, borrowed).await
    }
}

/// The numbers of all ranks, each of which has told so many: the first of each, the second of each, and so on.
fn by_rank<const N: usize>(told: &[usize]) -> [Vec<usize>; N] {
    std::array::from_fn(|which| told.iter().copied().skip(which).step_by(N).collect())
}

/// The first of them.
pub(crate) fn numbers<const N: usize>(told: &[usize]) -> [usize; N] {
    std::array::from_fn(|which| told.get(which).copied().unwrap_or_default())
}

/// Lengths, and with each the longest of them.
fn with_longest(lengths: &[usize]) -> Vec<u64> {
    let longest = longest(lengths);
    lengths.iter().flat_map(|&length| [length as u64, longest as u64]).collect()
}

/// A length that another rank tells.
fn length(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// All of them together; `None` if that does not fit in a `usize`.
fn sum(lengths: &[usize]) -> Option<usize> {
    lengths.iter().try_fold(0, |sum: usize, &length| sum.checked_add(length))
}

/// The longest of them; 0 of none.
pub(crate) fn longest(lengths: &[usize]) -> usize {
    lengths.iter().copied().max().unwrap_or_default()
}
