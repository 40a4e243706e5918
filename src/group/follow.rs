//! Calls of several operations that are begun and waited for later: each operation says, when it has ended, what
//! follows, and no other of the group comes between. So ranks that wait and ranks that do not agree on the order.

use super::{
    ProcessGroup,
    calls::premultiply,
    uneven::{Call, Exchange, longest},
};
use crate::{
    buffer::{Lent, Owned},
    dtype::Dtype,
    engine::{Held, Operation, Step},
    error::{Failure, Result},
    reduce::ReduceOp,
    schedule::{Collective, Rank, Schedule, Uneven},
    work::Work,
};

/// An operation that follows another, and what it gives back at its end.
type Last<R> = (Operation, Box<dyn Schedule>, R);

impl ProcessGroup {
    /// Begins an [`all_gather_v`](Self::all_gather_v); `input` comes back too, first.
    ///
    /// # Errors
    /// As [`all_gather_v`](Self::all_gather_v), here or from the wait.
    #[expect(clippy::type_complexity, reason = "what goes in, and what comes of it")]
    pub fn all_gather_v_async<B: Owned>(
        &self,
        mut input: B,
    ) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let call = self.call::<B::Element>(Collective::AllGather, "all_gather_v", ReduceOp::Sum, 0)?;
        let told = call.tell_all([input.elements().len()]);
        call.begin(told, move |call, told, _| {
            let [lengths] = told.by_rank();
            let mut output = call.zeros(&lengths)?;
            let lent = Lent::kept(&mut input, &mut output);
            let uneven = Uneven { input: &[], output: &lengths };
            let (operation, schedule) = call.follow(uneven, longest(&lengths), &lent)?;
            Ok((operation, schedule, (input, output, lengths)))
        })
    }

    /// Begins a [`gather_v`](Self::gather_v); `input` comes back too, first.
    ///
    /// # Errors
    /// As [`gather_v`](Self::gather_v), here or from the wait.
    #[expect(clippy::type_complexity, reason = "what goes in, and what comes of it")]
    pub fn gather_v_async<B: Owned>(
        &self,
        mut input: B,
        root: Rank,
    ) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let call = self.call::<B::Element>(Collective::Gather, "gather_v", ReduceOp::Sum, root)?;
        let told = call.tell_all([input.elements().len()]);
        call.begin(told, move |call, told, _| {
            let [lengths] = told.by_rank();
            let mut output = call.zeros(if call.at_root() { &lengths } else { &[] })?;
            let lent = Lent::kept(&mut input, &mut output);
            let uneven = Uneven { input: &[], output: &lengths };
            let (operation, schedule) = call.follow(uneven, longest(&lengths), &lent)?;
            Ok((operation, schedule, (input, output, lengths)))
        })
    }

    /// Begins a [`scatter_v`](Self::scatter_v); `input`, which may be empty elsewhere than at the root, comes back, and
    /// this rank's block.
    ///
    /// # Errors
    /// As [`scatter_v`](Self::scatter_v), here or from the wait.
    pub fn scatter_v_async<B: Owned>(
        &self,
        mut input: B,
        lengths: &[usize],
        root: Rank,
    ) -> Result<Work<(B, Vec<B::Element>)>> {
        let call = self.call::<B::Element>(Collective::Scatter, "scatter_v", ReduceOp::Sum, root)?;
        if call.at_root() {
            call.own(lengths, input.elements().len())?;
        }
        let (told, lengths) = (call.tell_blocks(lengths), lengths.to_vec());
        call.begin(told, move |call, told, _| {
            let (blocks, longest) = call.told_blocks(told, &lengths);
            let mut output =
                call.zeros(blocks.get(call.group.rank()..=call.group.rank()).unwrap_or_default())?;
            let lent = match call.at_root() {
                true => Lent::kept(&mut input, &mut output),
                false => Lent::kept(&mut Vec::<B::Element>::new(), &mut output),
            };
            let uneven = Uneven { input: &blocks, output: &[] };
            let (operation, schedule) = call.follow(uneven, longest, &lent)?;
            Ok((operation, schedule, (input, output)))
        })
    }

    /// Begins a [`reduce_scatter_v`](Self::reduce_scatter_v); both come back.
    ///
    /// # Errors
    /// As [`reduce_scatter_v`](Self::reduce_scatter_v), here or from the wait.
    pub fn reduce_scatter_v_async<I, O>(
        &self,
        mut input: I,
        mut output: O,
        op: ReduceOp,
    ) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let call = self.call::<I::Element>(Collective::ReduceScatter, "reduce_scatter_v", op, 0)?;
        let (own, whole) = (output.elements().len(), input.elements().len());
        call.fits_alone(own, whole)?;
        premultiply(Collective::ReduceScatter, input.elements(), op)?;
        let told = call.tell_all([own, whole]);
        call.begin(told, move |call, told, number| {
            let learned = told.by_rank();
            call.fits_all(number, &learned)?;
            let [lengths, _] = learned;
            let lent = Lent::kept(&mut input, &mut output);
            let uneven = Uneven { input: &lengths, output: &[] };
            let (operation, schedule) = call.follow(uneven, longest(&lengths), &lent)?;
            Ok((operation, schedule, (input, output)))
        })
    }

    /// Begins an [`all_to_all_v`](Self::all_to_all_v); `input` comes back too, first.
    ///
    /// # Errors
    /// As [`all_to_all_v`](Self::all_to_all_v), here or from the wait.
    #[expect(clippy::type_complexity, reason = "what goes in, and what comes of it")]
    pub fn all_to_all_v_async<B: Owned>(
        &self,
        mut input: B,
        lengths: &[usize],
    ) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let call = self.call::<B::Element>(Collective::AllToAll, "all_to_all_v", ReduceOp::Sum, 0)?;
        call.own(lengths, input.elements().len())?;
        let (told, lengths) = (call.tell_each(lengths), lengths.to_vec());
        call.begin(told, move |call, told, _| {
            let (gets, longest) = told.of_each();
            let mut output = call.zeros(&gets)?;
            let lent = Lent::kept(&mut input, &mut output);
            let uneven = Uneven { input: &lengths, output: &gets };
            let (operation, schedule) = call.follow(uneven, longest, &lent)?;
            Ok((operation, schedule, (input, output, gets)))
        })
    }
}

impl Call {
    /// Begins the exchange of lengths, and what `then` makes of what was learned in the operation of that number.
    fn begin<R: Send + 'static>(
        self,
        mut told: Exchange,
        then: impl FnOnce(&Self, &Exchange, u64) -> std::result::Result<Last<R>, Failure> + Send + 'static,
    ) -> Result<Work<R>> {
        let request = self.request(&told);
        let lent = Lent::kept(&mut told.said, &mut told.heard);
        let group = self.group.under_way();
        let then = Held::Then(Box::new(move |number| {
            let (operation, schedule, back) = then(&self, &told, number)?;
            Ok(Step::More(operation, schedule, Held::Back(Some(Box::new(back)))))
        }));
        let ticket = group.shared.begin(Dtype::U64, &request, &lent, then, &group.wishes)?;
        Ok(Work::new(ticket, group.driver()))
    }

    /// What the call is for, once all lengths are known.
    fn follow(
        &self,
        uneven: Uneven<'_>,
        longest: usize,
        lent: &Lent<'static>,
    ) -> std::result::Result<(Operation, Box<dyn Schedule>), Failure> {
        let request = self.last(uneven, longest);
        let shared = &self.group.shared;
        let followed = shared.follow(self.prepared.dtype, &request, lent, &self.group.wishes);
        followed.map_err(|error| shared.midway(error))
    }
}
