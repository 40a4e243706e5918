//! Lists of lists, of which every rank has another number, or none: of texts, of structs with maps in them, of numbers,
//! and of tensors. Any type that serde knows will do, and no rank need know how much the others have.
//!
//! ```text
//! $ cargo build --examples && unisono run -n 4 target/debug/examples/lists
//! [0] rank 0 of 4 reads ["to be or not to be", "that is the question"]
//! [0] rank 0 of 4: more than once there are {"be": 2, "sleep": 2, "to": 5}
//! [0] rank 0 of 4: the words have [[[2, 2, 2, 3, 2, 2], [4, 2, 3, 8]], [], [[2, 3], [2, 5], [2, 4]], [[2, 5]]] characters
//! [0] rank 0 of 4: the tensors are of shapes [[[18], [20]], [], [[6], [8], [7]], [[8]]]
//! [1] rank 1 of 4 reads []
//! [1] rank 1 of 4: the words have [[[2, 2, 2, 3, 2, 2], [4, 2, 3, 8]], [], [[2, 3], [2, 5], [2, 4]], [[2, 5]]] characters
//! [1] rank 1 of 4: the tensors are of shapes [[[18], [20]], [], [[6], [8], [7]], [[8]]]
//! [2] rank 2 of 4 reads ["to die", "to sleep", "no more"]
//! [2] rank 2 of 4: the words have [[[2, 2, 2, 3, 2, 2], [4, 2, 3, 8]], [], [[2, 3], [2, 5], [2, 4]], [[2, 5]]] characters
//! [2] rank 2 of 4: the tensors are of shapes [[[18], [20]], [], [[6], [8], [7]], [[8]]]
//! [3] rank 3 of 4 reads ["to sleep"]
//! [3] rank 3 of 4: the words have [[[2, 2, 2, 3, 2, 2], [4, 2, 3, 8]], [], [[2, 3], [2, 5], [2, 4]], [[2, 5]]] characters
//! [3] rank 3 of 4: the tensors are of shapes [[[18], [20]], [], [[6], [8], [7]], [[8]]]
//! ```

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use unisono::{ProcessGroup, Tensor, TensorView};

const ROOT: usize = 0;
/// What each of four ranks is to read.
const TEXTS: [&[&str]; 4] =
    [&["to be or not to be", "that is the question"], &[], &["to die", "to sleep", "no more"], &["to sleep"]];

/// How often each word is in a text.
#[derive(Serialize, Deserialize)]
struct Counted {
    text: String,
    words: HashMap<String, u64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = ProcessGroup::from_env()?;
    let (rank, ranks) = (group.rank(), group.size());

    // Rank 0 has a list of texts for each rank, and every rank gets its own.
    let work = (rank == ROOT).then(|| (0..ranks).map(texts).collect());
    let mine: Vec<String> = group.scatter_object(work, ROOT)?;
    println!("rank {rank} of {ranks} reads {mine:?}");
    assert_eq!(mine, texts(rank));

    // Rank 0 gets a list from each rank, and adds up what is in them.
    let counted: Vec<Counted> = mine.iter().map(|text| count(text)).collect();
    if let Some(all) = group.gather_object(&counted, ROOT)? {
        let mut sums = BTreeMap::new();
        for (word, times) in all.iter().flatten().flat_map(|counted| &counted.words) {
            *sums.entry(word).or_insert(0) += times;
        }
        sums.retain(|_, times| *times > 1);
        println!("rank {rank} of {ranks}: more than once there are {sums:?}");
        let read: Vec<_> = all.into_iter().flatten().map(|counted| counted.text).collect();
        assert_eq!(read, (0..ranks).flat_map(texts).collect::<Vec<_>>());
    }

    // Every rank gets the lists of all, as lists of lists of lists.
    let all = group.all_gather_object(&lengths(&mine))?;
    println!("rank {rank} of {ranks}: the words have {all:?} characters");
    assert_eq!(all, (0..ranks).map(|rank| lengths(&texts(rank))).collect::<Vec<_>>());

    // So it is with tensors: here one of the bytes of each text.
    let bytes = mine.iter().map(|text| TensorView::new(text.as_bytes(), &[text.len()]));
    let all = group.all_gather_tensors(&bytes.collect::<Result<Vec<_>, _>>()?)?;
    let shapes: Vec<Vec<_>> = all.iter().map(|list| list.iter().map(Tensor::shape).collect()).collect();
    println!("rank {rank} of {ranks}: the tensors are of shapes {shapes:?}");
    for (from, list) in all.iter().enumerate() {
        assert!(list.iter().map(Tensor::bytes).eq(texts(from).iter().map(String::as_bytes)));
    }
    Ok(())
}

fn texts(rank: usize) -> Vec<String> {
    TEXTS[rank % 4].iter().map(|&text| text.to_owned()).collect()
}

/// How long the words of each text are.
fn lengths(texts: &[String]) -> Vec<Vec<usize>> {
    texts.iter().map(|text| text.split(' ').map(str::len).collect()).collect()
}

fn count(text: &str) -> Counted {
    let mut words = HashMap::new();
    for word in text.split(' ') {
        *words.entry(word.to_owned()).or_insert(0) += 1;
    }
    Counted { text: text.to_owned(), words }
}
