//! Calls whose ranks must learn lengths first: calls of uneven blocks, objects and tensors.
//!
//! A rank knows the lengths of the blocks that it gives. It learns those of the others by an exchange of lengths, which ranks compare as a
//! part of the same call. So a call is two operations or more, and from the second on every rank knows all lengths.

use std::{
    fmt::Display,
    ops::{Deref, Range},
};

use unisono_engine::{Borrowed, Cargo};
use unisono_schedule::{Collective, Rank, Uneven};

use crate::{
    dtype::{Dtype, Element},
    error::Result,
    group::{
        collective::check_root,
        handle::Handle,
        plan::{CallId, CallSpec, argument},
        sequence::Sequence,
    },
};

/// The word of a rank that gives no length, because it could not make what it was to give.
pub(crate) const UNSENT: usize = usize::MAX;

/// A call whose lengths the ranks have to learn; its arguments are valid.
#[expect(unnameable_types, reason = "only the sealed trait of tensors' modes takes it")]
pub struct UnevenCall {
    pub(crate) group: Handle,
    /// The part of the call that ranks compare.
    pub(crate) id: CallId,
    /// The method called, for errors.
    pub(crate) name: &'static str,
}

/// Such a call while it runs.
pub(crate) struct UnevenSteps<'c> {
    call: &'c UnevenCall,
    pub sequence: Sequence,
}

impl Deref for UnevenSteps<'_> {
    type Target = UnevenCall;

    fn deref(&self) -> &UnevenCall {
        self.call
    }
}

impl Handle {
    /// A call whose lengths the ranks have to learn. Fails if there is no such root.
    pub(crate) fn uneven_call(&self, name: &'static str, id: CallId) -> Result<UnevenCall> {
        check_root(self, name, id.collective, id.root)?;
        Ok(UnevenCall { group: self.under_way(), id, name })
    }

    /// A call of blocks of elements, which is named after its collective.
    pub(crate) fn uneven<T: Element>(&self, collective: Collective, root: Rank) -> Result<UnevenCall> {
        let name = match collective {
            Collective::AllGather => "all_gather_v",
            Collective::Gather => "gather_v",
            Collective::Scatter => "scatter_v",
            _ => "all_to_all_v",
        };
        self.uneven_call(name, CallId { collective, dtype: T::DTYPE, root, cargo: Cargo::Elements })
    }
}

impl UnevenCall {
    /// The call, whose operations this sequence runs.
    pub(crate) fn on(&self, sequence: Sequence) -> UnevenSteps<'_> {
        UnevenSteps { call: self, sequence }
    }

    /// Zeros for blocks of these lengths. If there is no memory for them, the group fails, because the other ranks continue.
    pub(crate) fn room<T: Element>(&self, lengths: &[usize]) -> Result<Vec<T>> {
        let sum = sum(lengths);
        let room = sum.and_then(|sum| bytemuck::allocation::try_zeroed_vec(sum).ok());
        room.ok_or_else(|| {
            let bytes = sum.and_then(|sum| sum.checked_mul(size_of::<T>()));
            let what = bytes
                .map_or_else(|| "more bytes than can be addressed".to_owned(), |it| format!("{it} bytes"));
            self.group.aborted(self.name, format_args!("no memory for the {what} that come here"))
        })
    }
}

impl UnevenSteps<'_> {
    /// Exchanges `N` numbers for each rank by a collective: gives `given`, and returns those of the `len` ranks from which this rank gets
    /// some. A number that does not fit is `usize::MAX`.
    async fn exchange<const N: usize>(
        &mut self,
        collective: Collective,
        given: &[[u64; N]],
        len: usize,
    ) -> Result<Vec<[usize; N]>> {
        let mut received = vec![[0; N]; len];
        let root = if collective.has_root() { self.id.root } else { 0 };
        let spec = CallSpec { root, part_of: Some(self.id), ..CallSpec::new(collective, Dtype::U64, N) };
        let borrowed = Borrowed::apart(given.as_flattened(), received.as_flattened_mut());
        self.sequence.run(&spec, borrowed).await?;
        let length = |number| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(received.into_iter().map(|numbers| numbers.map(length)).collect())
    }

    /// Gathers a number of every rank, by rank.
    pub(crate) async fn everyone(&mut self, mine: usize) -> Result<Vec<usize>> {
        let all = self.exchange(Collective::AllGather, &[[mine as u64]], self.group.size()).await?;
        Ok(all.into_iter().flatten().collect())
    }

    /// The lengths of the root's blocks (on other ranks the length of the own block, and 0 for the others), and the longest: [`UNSENT`] if
    /// the root gives none.
    pub(crate) async fn blocks_of_root(&mut self, lengths: Option<&[usize]>) -> Result<(Vec<usize>, usize)> {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let lengths = lengths.filter(|_| self.at_root());
        let mut blocks = lengths.map_or_else(|| vec![0; ranks], <[usize]>::to_vec);
        let longest = lengths.map_or(UNSENT, longest);
        let given = if self.at_root() { with_longest(&blocks, longest) } else { Vec::new() };
        let received = self.exchange(Collective::Scatter, &given, 1).await?;
        let [own, longest] = received.first().copied().unwrap_or_default();
        blocks[rank] = own;
        Ok((blocks, longest))
    }

    /// Gathers, scatters or exchanges blocks. Returns the blocks that this rank gets, concatenated, and the length of each unless they are
    /// the root's. `lengths` are those of the blocks of `input`, if it has several.
    pub(crate) async fn apart<T: Element>(
        &mut self,
        input: &[T],
        lengths: &[usize],
    ) -> Result<(Vec<T>, Vec<usize>)> {
        match self.id.collective {
            Collective::AllToAll => self.all_to_all(input, lengths).await,
            Collective::Scatter => Ok((self.scatter_all(input, lengths).await?, Vec::new())),
            _ => self.gather_all(input).await,
        }
    }

    /// Gathers blocks, on the root or on all ranks, whose lengths all ranks know.
    pub(crate) async fn gather(&mut self, lengths: &[usize], borrowed: Borrowed<'_>) -> Result<()> {
        let longest = longest(lengths);
        self.finish(Uneven { input: &[], output: lengths }, longest, borrowed).await
    }

    /// Gathers blocks whose lengths only their owners know.
    async fn gather_all<T: Element>(&mut self, input: &[T]) -> Result<(Vec<T>, Vec<usize>)> {
        let lengths = self.everyone(input.len()).await?;
        let mut output = self.room::<T>(if self.gets() { &lengths } else { &[] })?;
        self.gather(&lengths, Borrowed::apart(input, &mut output)).await?;
        Ok((output, lengths))
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
    async fn scatter_all<T: Element>(&mut self, input: &[T], lengths: &[usize]) -> Result<Vec<T>> {
        let input = if self.at_root() { input } else { &[] };
        if self.at_root() {
            own_part(&self.group, self.name, lengths, input.len())?;
        }
        let (blocks, longest) = self.blocks_of_root(Some(lengths)).await?;
        self.scatter_new(input, &blocks, longest).await
    }

    /// Scatters the blocks into new memory.
    pub(crate) async fn scatter_new<T: Element>(
        &mut self,
        input: &[T],
        blocks: &[usize],
        longest: usize,
    ) -> Result<Vec<T>> {
        let mut output = self.room::<T>(&[blocks[self.group.rank()]])?;
        self.scatter(blocks, longest, Borrowed::apart(input, &mut output)).await?;
        Ok(output)
    }

    async fn all_to_all<T: Element>(
        &mut self,
        input: &[T],
        lengths: &[usize],
    ) -> Result<(Vec<T>, Vec<usize>)> {
        own_part(&self.group, self.name, lengths, input.len())?;
        let given = with_longest(lengths, longest(lengths));
        // The length of the block that each rank has for this rank, and the longest block of each.
        let received = self.exchange(Collective::AllToAll, &given, self.group.size()).await?;
        let (gets, longests): (Vec<_>, Vec<_>) = received.into_iter().map(<(_, _)>::from).unzip();
        let mut output = self.room::<T>(&gets)?;
        let uneven = Uneven { input: lengths, output: &gets };
        self.finish(uneven, longest(&longests), Borrowed::apart(input, &mut output)).await?;
        Ok((output, gets))
    }

    /// Runs the collective of the call, once all lengths are known.
    async fn finish(&mut self, uneven: Uneven<'_>, longest: usize, borrowed: Borrowed<'_>) -> Result<()> {
        let CallId { collective, dtype, root, cargo } = self.id;
        let spec = CallSpec::new(collective, dtype, longest);
        let spec = CallSpec { uneven: Some(uneven), root, cargo, ..spec };
        self.sequence.run(&spec, borrowed).await
    }
}

/// Checks lengths, which must be one for each rank and together `len` elements. `of` are the words after "lengths", and before the number
/// of elements.
pub(crate) fn check_lengths(
    group: &Handle,
    call: &'static str,
    (of, there): (&dyn Display, &str),
    lengths: &[usize],
    len: usize,
) -> Result<()> {
    let ranks = group.size();
    Err(argument(
        call,
        match sum(lengths) {
            _ if lengths.len() != ranks => {
                format!("{} lengths{of} were given; there are {ranks} ranks", lengths.len())
            }
            Some(sum) if sum == len => return Ok(()),
            Some(sum) => format!("the lengths{of} add up to {sum}, and {there} {len} elements"),
            None => format!("the lengths{of} add up to more than can be addressed"),
        },
    ))
}

/// This rank's block among blocks of these lengths, which are one for each rank and together `len` elements.
pub(crate) fn own_part(
    group: &Handle,
    call: &'static str,
    lengths: &[usize],
    len: usize,
) -> Result<Range<usize>> {
    check_lengths(group, call, (&"", "there are"), lengths, len)?;
    let start = lengths.iter().take(group.rank()).sum();
    Ok(start..start + lengths.get(group.rank()).copied().unwrap_or_default())
}

/// Each length, followed by the longest of all.
fn with_longest(lengths: &[usize], longest: usize) -> Vec<[u64; 2]> {
    lengths.iter().map(|&length| [length as u64, longest as u64]).collect()
}

/// The sum; `None` if it does not fit in a `usize`.
pub(crate) fn sum(lengths: &[usize]) -> Option<usize> {
    lengths.iter().try_fold(0, |sum: usize, &length| sum.checked_add(length))
}

/// The longest; 0 if there are none.
pub(crate) fn longest(lengths: &[usize]) -> usize {
    lengths.iter().copied().max().unwrap_or_default()
}
