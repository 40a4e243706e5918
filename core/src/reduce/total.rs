//! Reduces all contributions in one pass, in the given order, in the type in which they are computed, and rounds once.

use multiversion::multiversion;

use super::arithmetic::{Intermediate, Number, Operator};

/// The elements of a block: their sums stay in the first-level cache.
const BLOCK: usize = 1024;
/// The same of a short one, which takes no longer than it must.
const SHORT: usize = 32;

/// `into = ((x0 ⊕ x1) ⊕ x2) ...` element by element, divided by `ranks` if there are any; NaN is the canonical one.
/// All slices have the same length, and there is at least one.
pub(super) fn total<T: Number, O: Operator<T::Intermediate>>(
    contributions: &[&[T]],
    ranks: Option<usize>,
    into: &mut [T],
) {
    let Some(first) = contributions.first() else { return };
    let others = &contributions[1..];
    if into.len() <= SHORT {
        return block::<T, O, SHORT>(first, others, 0, ranks, into);
    }
    for (index, into) in into.chunks_mut(BLOCK).enumerate() {
        block::<T, O, BLOCK>(first, others, index * BLOCK, ranks, into);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+f16c"))]
fn block<T: Number, O: Operator<T::Intermediate>, const MOST: usize>(
    first: &[T],
    others: &[&[T]],
    from: usize,
    ranks: Option<usize>,
    into: &mut [T],
) {
    let end = from + into.len();
    let Some(first) = first.get(from..end) else { return };
    let Some(one) = first.first() else { return };
    let mut sums = [one.widen(); MOST];
    for (sum, x) in sums.iter_mut().zip(first) {
        *sum = x.widen();
    }
    for other in others {
        let Some(other) = other.get(from..end) else { return };
        for (sum, x) in sums.iter_mut().zip(other) {
            *sum = O::apply(*sum, x.widen());
        }
    }
    for (into, sum) in into.iter_mut().zip(sums) {
        let whole = match ranks {
            Some(ranks) => sum.divided(ranks),
            None => sum,
        };
        *into = T::narrow(whole.canonical());
    }
}
