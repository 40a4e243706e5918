//! Gradient buckets, which are reduced while later gradients are computed.

use std::ops::Range;

use unisono_schedule::Collective;

use crate::{
    dtype::{Dtype, Element},
    error::Result,
    group::{ProcessGroup, collective::CollectiveCall, plan::argument, typed::list},
    reduce::{Kernel, ReduceOp, Reduction},
    tensor::Tensor,
    work::Work,
};

/// Reduces the gradients of a network's parameters over all ranks, in buckets. The all_reduce of a bucket begins as soon as all
/// its gradients are ready, while the program computes the others.
///
/// The method is that of PyTorch's `DistributedDataParallel` (Li et al., "PyTorch Distributed: Experiences on Accelerating
/// Data Parallel Training", VLDB 2020). Parameters are put into buckets from the last to the first, the order in which a
/// backward pass reaches them. A bucket is reduced after the buckets before it, so that all ranks reduce in the same order even
/// if their gradients become ready in different orders.
///
/// ```
/// # use unisono::{Config, GradientBuckets, ProcessGroup, ReduceOp};
/// # use unisono_transport::inproc::Hub;
/// # fn main() -> unisono::Result<()> {
/// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
/// // A layer of 6 weights and 2 biases, and one of 4 and 1.
/// let mut buckets = GradientBuckets::<f32>::new(&group, &[6, 2, 4, 1], ReduceOp::Avg, 25 << 20)?;
/// for step in 0..3 {
///     for parameter in (0..4).rev() {
///         let gradient = vec![step as f32; buckets.len_of(parameter)];
///         buckets.ready(parameter, &gradient)?;
///     }
///     buckets.finish()?;
///     assert_eq!(buckets.gradient(1), [step as f32; 2]);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct GradientBuckets<'g, T: Element> {
    group: &'g ProcessGroup,
    op: ReduceOp,
    /// The place of each parameter's gradient: the bucket, and the range within it.
    places: Vec<(usize, Range<usize>)>,
    ready: Vec<bool>,
    buckets: Vec<Bucket<T>>,
    /// The number of buckets whose all_reduce has begun.
    begun: usize,
}

#[derive(Debug)]
struct Bucket<T> {
    /// Empty while the all_reduce runs.
    data: Vec<T>,
    /// The number of gradients, and the number of those that are not ready.
    gradients: usize,
    missing: usize,
    /// A hash of the gradients' lengths, which ranks compare.
    list: u32,
    work: Option<Work<Vec<T>>>,
}

impl<'g, T: Element> GradientBuckets<'g, T> {
    /// Makes buckets for parameters with these numbers of elements, in the order of the forward pass. A bucket has at most
    /// `bucket_bytes` bytes (PyTorch's default is 25 MiB), or one gradient that is larger. All ranks must give the same
    /// arguments.
    ///
    /// [`ReduceOp::Avg`] of `f16` is computed as [`ReduceOp::PreMulSum`] with the factor 1 / number of ranks, unless the
    /// reduction is [reproducible](Reduction::Reproducible), so that the sum does not overflow if the average does not.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the operation is not defined for the type; [`Error::Thread`](crate::Error::Thread) if the progress thread cannot be
    /// started; [`Error::Tensor`](crate::Error::Tensor) if memory is short.
    pub fn new(
        group: &'g ProcessGroup,
        lengths: &[usize],
        op: ReduceOp,
        bucket_bytes: usize,
    ) -> Result<Self> {
        Kernel::new(T::DTYPE, op).map_err(|error| argument("GradientBuckets::new", error.to_string()))?;
        // The check is here because the bucket's gradients would be lost if an all_reduce could not begin later.
        group.handle.shared.runtime.prepare()?;
        let op = match (op, group.handle.options.plan.reduction) {
            (ReduceOp::Avg, Reduction::Fastest) if T::DTYPE == Dtype::F16 => {
                ReduceOp::PreMulSum(1.0 / group.size() as f64)
            }
            _ => op,
        };
        let most = bucket_bytes / size_of::<T>();
        let mut places = vec![(0, 0..0); lengths.len()];
        // Elements and gradients of each bucket.
        let mut sizes: Vec<(usize, usize)> = Vec::new();
        for (place, &len) in places.iter_mut().zip(lengths).rev() {
            match sizes.last_mut() {
                Some((elements, gradients)) if elements.saturating_add(len) <= most => {
                    place.1 = *elements..*elements + len;
                    *elements += len;
                    *gradients += 1;
                }
                _ => {
                    place.1 = 0..len;
                    sizes.push((len, 1));
                }
            }
            place.0 = sizes.len() - 1;
        }
        let mut skipped = 0;
        let buckets = sizes.into_iter().map(|(elements, gradients)| {
            let data = Tensor::zeros(T::DTYPE, &[elements])?.into_vec()?;
            let of_bucket = lengths.iter().rev().skip(skipped).take(gradients);
            let list = list(of_bucket.map(|len| (T::DTYPE, std::slice::from_ref(len))));
            skipped += gradients;
            Ok(Bucket { data, gradients, missing: gradients, list, work: None })
        });
        let buckets = buckets.collect::<Result<Vec<_>>>()?;
        Ok(Self { group, op, ready: vec![false; places.len()], places, buckets, begun: 0 })
    }

    /// The number of elements of a parameter; 0 if there is no such parameter.
    #[must_use]
    pub fn len_of(&self, parameter: usize) -> usize {
        self.places.get(parameter).map_or(0, |(_, place)| place.len())
    }

    /// Gives this rank's gradient of a parameter, which is copied into its bucket. Begins the all_reduce of every bucket that
    /// is then complete.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such parameter, if its gradient was already given in this step, or if it has another
    /// length; [`Error::Failed`](crate::Error::Failed) if the group has failed.
    pub fn ready(&mut self, parameter: usize, gradient: &[T]) -> Result<()> {
        let wrong = |problem: String| Err(argument("GradientBuckets::ready", problem));
        let count = self.places.len();
        let (Some((bucket, place)), Some(ready)) =
            (self.places.get(parameter), self.ready.get_mut(parameter))
        else {
            return wrong(format!("there is no parameter {parameter}; there are {count}"));
        };
        if gradient.len() != place.len() {
            let (given, wanted) = (gradient.len(), place.len());
            return wrong(format!("parameter {parameter} has {wanted} elements, and the gradient {given}"));
        }
        if std::mem::replace(ready, true) {
            return wrong(format!(
                "the gradient of parameter {parameter} was already given in this step; call finish() at its end"
            ));
        }
        if let Some(bucket) = self.buckets.get_mut(*bucket) {
            if let Some(own) = bucket.data.get_mut(place.clone()) {
                own.copy_from_slice(gradient);
            }
            bucket.missing -= 1;
        }
        while let Some(bucket) = self.buckets.get_mut(self.begun).filter(|bucket| bucket.missing == 0) {
            let data = std::mem::take(&mut bucket.data);
            let call = CollectiveCall::new(Collective::AllReduce, self.op, 0);
            let work = self.group.handle.begin_in_place(call, data, bucket.list, |data, _| data)?;
            bucket.work = Some(work);
            self.begun += 1;
        }
        Ok(())
    }

    /// Waits until all gradients are reduced. Then [`gradient`](Self::gradient) returns them, and the next step may begin.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if a gradient has not been given, or if [`ready`](Self::ready) could not begin an all_reduce;
    /// [`Error::Failed`](crate::Error::Failed) if the ranks disagree on the call, or the group has failed.
    pub fn finish(&mut self) -> Result<()> {
        if let Some(parameter) = self.ready.iter().position(|ready| !ready) {
            let problem = format!(
                "the gradient of parameter {parameter} has not been given; call ready() for every parameter, if need be \
                 with zeros"
            );
            return Err(argument("GradientBuckets::finish", problem));
        }
        if self.begun < self.buckets.len() {
            self.group.handle.shared.runtime.check()?;
            let problem = "the all_reduce of a bucket could not begin (see the error of ready()): its gradients are lost, and the other \
                 ranks wait for it";
            return Err(argument("GradientBuckets::finish", problem));
        }
        for bucket in &mut self.buckets {
            if let Some(work) = bucket.work.take() {
                bucket.data = work.wait()?;
            }
            bucket.missing = bucket.gradients;
        }
        self.ready.fill(false);
        self.begun = 0;
        Ok(())
    }

    /// The reduced gradient of a parameter, from [`finish`](Self::finish) until the next call of [`ready`](Self::ready). Empty if
    /// there is no such parameter.
    #[must_use]
    pub fn gradient(&self, parameter: usize) -> &[T] {
        let place = self.places.get(parameter);
        place
            .and_then(|(bucket, place)| self.buckets.get(*bucket)?.data.get(place.clone()))
            .unwrap_or_default()
    }
}
