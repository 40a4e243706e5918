//! Objects and tensors between processes: of one message and of many, and of types that a rank does not expect.

use std::collections::BTreeMap;

use unisono::{
    Config, Error, ProcessGroup, Tensor, TensorView, dtype::Dtype, object::ObjectError, tensor::Parts,
};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, config},
    world::{End, TestJob},
};

/// The cases.
pub(crate) const CASES: Table = &[
    ("objects and tensors, 1 rank", |provider| objects(provider, 1)),
    ("objects and tensors, 3 ranks", |provider| objects(provider, 3)),
];

pub(crate) const ROLES: &[Role] = &[("objects", play)];

fn objects(provider: &str, ranks: usize) -> Outcome {
    let mut world = TestJob::new(provider, ranks, 2)?;
    world.start_all("objects", &[])?;
    End::all_well(&world.end_all()?)?;
    Ok(Verdict::Passed)
}

type Object = BTreeMap<String, Vec<Option<u16>>>;

/// An object of the given size, different on every rank.
fn object(rank: usize, len: u16) -> Object {
    let rank = u16::try_from(rank).unwrap_or_default();
    BTreeMap::from([("values".to_owned(), (0..len).map(|at| (at % 3 > 0).then_some(at ^ rank)).collect())])
}

fn play(_: &str) -> rank::Outcome {
    for number in 0..2 {
        let mut config = config(number)?;
        if number == 0 {
            config = Config { chunk: 1024, lanes: 3, object_limit: 100_000, ..config };
        }
        let group = rank::join_with(config)?;
        values(&group)?;
        tensors(&group)?;
        later(&group, number)?;
        if number == 0 && group.size() > 1 {
            wrong(&group)?;
        }
    }
    Ok(())
}

fn values(group: &ProcessGroup) -> rank::Outcome {
    let (me, ranks) = (group.rank(), group.size());
    for len in [0, 10, 20_000] {
        let root = usize::from(len) % ranks;
        let all: Vec<Object> = (0..ranks).map(|rank| object(rank, len)).collect();
        let got = group.broadcast_object((me == root).then(|| all[root].clone()), root)?;
        ensure!(got == all[root], "a broadcast object of {len} came otherwise");
        ensure!(group.all_gather_object(&all[me])? == all, "objects of {len} came otherwise");
        let got = group.gather_object(&all[me], root)?;
        ensure!(got == (me == root).then(|| all.clone()), "gathered objects of {len} came otherwise");
        let got = group.scatter_object((me == root).then(|| all.clone()), root)?;
        ensure!(got == all[me], "a scattered object of {len} came otherwise");
    }
    Ok(())
}

/// All calls concurrently, while some ranks make the blocking forms of the same calls; some works are dropped.
fn later(group: &ProcessGroup, number: usize) -> rank::Outcome {
    let (me, ranks) = (group.rank(), group.size());
    let (root, next, before) = (number % ranks, (me + 1) % ranks, (me + ranks - 1) % ranks);
    let large: Vec<f32> = (0_u16..40_000).map(f32::from).collect();
    let large = TensorView::new(&large, &[200, 200])?.pack()?;
    let list = |rank: usize| -> Result<Vec<Tensor>, Box<dyn std::error::Error>> {
        let small = TensorView::new(&[i64::try_from(rank)?], &[])?.pack()?;
        Ok(vec![small.clone(), large.clone(), small])
    };
    let (mine, theirs) = (list(me)?, list(before)?);
    let lists = (0..ranks).map(list).collect::<Result<Vec<_>, _>>()?;
    let objects: Vec<Object> = (0..ranks).map(|rank| object(rank, 9000)).collect();

    let come = group.begin().recv_tensors((before, 1))?;
    let come_object = group.begin().recv_object::<Object>((before, 2))?;
    let sent = group.begin().send_tensors(mine.clone(), (next, 1))?;
    drop(group.begin().send_object(&objects[me], (next, 2))?);
    let all = group.begin().all_gather_object(&objects[me])?;
    drop(group.begin().gather_object(&objects[me], root)?);
    let scattered = group.begin().scatter_object((me == root).then(|| objects.clone()), root)?;
    let broadcast = group.begin().broadcast_tensors((me == root).then(|| mine.clone()), root)?;
    let gathered = match me == root {
        true => group.begin().gather_tensors(mine.clone(), root)?.wait()?.1,
        false => {
            let views: Vec<_> = mine.iter().map(Tensor::view).collect();
            group.gather_tensors(&views, root)?
        }
    };
    let parts = Parts::Split(0);
    let part = group.begin().scatter_tensor((me == root).then(|| large.clone()), parts, root)?.wait()?.1;
    let whole = group.begin().all_gather_tensor(part, parts)?;

    ensure!(gathered == (me == root).then(|| lists.clone()), "lists gathered by some ranks came otherwise");
    ensure!(whole.wait()?.1 == large, "parts make something else later");
    ensure!(all.wait()? == objects, "objects came otherwise later");
    ensure!(scattered.wait()? == objects[me], "a scattered object came otherwise later");
    ensure!(broadcast.wait()? == lists[root], "broadcast tensors came otherwise later");
    ensure!(come.wait()? == (theirs, before), "tensors that were sent came otherwise later");
    ensure!(come_object.wait()? == (objects[before].clone(), before), "an object came otherwise later");
    ensure!(sent.wait()? == mine, "tensors that were sent did not come back");
    Ok(())
}

/// If a rank cannot send or decode an object, it and the ranks that should have received it get an error; then all go on.
fn wrong(group: &ProcessGroup) -> rank::Outcome {
    let me = group.rank();
    let large = vec![1_u8; if me == 1 { 200_000 } else { 1 }];
    match group.all_gather_object(&large) {
        Err(Error::Object { rank: 1, problem: ObjectError::TooLarge { limit: 100_000, .. }, .. }) => {}
        other => ensure!(false, "too much: {other:?}"),
    }
    let text = if me == 1 { group.broadcast_object::<String>(None, 0).is_err() } else { true };
    if me != 1 {
        group.broadcast_object((me == 0).then_some(7), 0)?;
    }
    ensure!(text, "a number was taken for text");
    ensure!(group.all_gather_object(&me)?.len() == group.size(), "not all go on");
    Ok(())
}

fn tensors(group: &ProcessGroup) -> rank::Outcome {
    let (me, ranks) = (group.rank(), group.size());
    let root = ranks - 1;
    // A large contiguous tensor is sent from its memory and received into its memory; a transposed one has to be packed.
    let large: Vec<f32> = (0_u16..40_000).map(f32::from).collect();
    let large = TensorView::new(&large, &[200, 200])?;
    let small = Tensor::zeros(Dtype::I64, &[3, 0])?;
    let given = [large.clone(), small.view(), large.transpose(0, 1)?, TensorView::new(&[7_u8], &[])?];
    let wanted: Vec<Tensor> = given.iter().map(TensorView::pack).collect::<Result<_, _>>()?;
    let got = group.broadcast_tensors((me == root).then_some(&given), root)?;
    ensure!(got.is_none_or(|got| got == wanted), "broadcast tensors came otherwise");
    let got = group.all_gather_tensors(&given[..me + 1])?;
    let lists = got.iter().enumerate().all(|(rank, list)| wanted[..rank + 1] == list[..]);
    ensure!(lists && got.len() == ranks, "lists of tensors came otherwise");
    for parts in
        [Parts::Split(0), Parts::Split(1), Parts::Chunk(1), Parts::Blocks { rows: ranks, columns: 1 }]
    {
        let part = group.scatter_tensor((me == root).then(|| large.clone()), parts, root)?;
        let whole = group.all_gather_tensor(part.view(), parts)?;
        ensure!(whole == wanted[0], "the parts by {parts:?} make something else");
        let whole = group.gather_tensor(part.view(), parts, 0)?;
        ensure!(whole.is_none_or(|whole| whole == wanted[0]), "the root makes something else of {parts:?}");
    }
    Ok(())
}
