//! A queue of which the earliest entry with a key is found without a look at the entries before it ([`Queue`]).

use std::collections::{BTreeSet, VecDeque};

/// Up to this number of entries, they are searched one by one, which costs less than an index; more of them have an index.
const FEW: usize = 32;

#[cfg(test)]
thread_local! {
    /// How often this thread has looked at a message, send or receive, except those that it has found by their keys.
    pub(crate) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts a look at a message, send or receive, for tests of how much work there is when many wait.
pub(crate) fn look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

/// Entries in the order in which they came. Each has one key, or two.
#[derive(Debug)]
pub(crate) struct Queue<K, T> {
    /// The entries in ascending order of their numbers. With an index, an entry that was taken leaves its place empty.
    entries: VecDeque<Entry<K, T>>,
    /// The number of entries that were not taken.
    len: usize,
    /// The number of the next entry.
    next: u64,
    /// The keys of all entries with their numbers, while there are more than a few.
    index: Option<BTreeSet<(K, u64)>>,
}

#[derive(Debug)]
struct Entry<K, T> {
    number: u64,
    keys: [Option<K>; 2],
    value: Option<T>,
}

impl<K, T> Default for Queue<K, T> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), len: 0, next: 0, index: None }
    }
}

impl<K: Copy + Ord, T> Queue<K, T> {
    /// Adds an entry. Returns its number.
    pub(crate) fn push(&mut self, keys: [Option<K>; 2], value: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.entries.push_back(Entry { number, keys, value: Some(value) });
        self.len += 1;
        match &mut self.index {
            Some(index) => index.extend(keys.into_iter().flatten().map(|key| (key, number))),
            None if self.len > FEW => self.make_index(),
            None => {}
        }
        number
    }

    fn make_index(&mut self) {
        let entries = self.entries.iter();
        let keys = entries.flat_map(|entry| entry.keys.iter().flatten().map(|&key| (key, entry.number)));
        self.index = Some(keys.collect());
    }

    /// The number of the earliest entry that has one of these keys.
    pub(crate) fn first(&self, keys: [Option<K>; 2]) -> Option<u64> {
        let Some(index) = &self.index else {
            let has = |entry: &Entry<K, T>| entry.keys.iter().flatten().any(|&key| keys.contains(&Some(key)));
            return self.entries.iter().find(|entry| has(entry)).map(|entry| entry.number);
        };
        let first = |key| index.range((key, 0)..=(key, u64::MAX)).next().map(|&(_, number)| number);
        keys.into_iter().flatten().filter_map(first).min()
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }

    /// The entry with this number, if it was not taken.
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.entries.get(self.place(number)?)?.value.as_ref()
    }

    /// As [`get`](Self::get).
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        self.entries.get_mut(place)?.value.as_mut()
    }

    /// Takes the entry with this number.
    pub(crate) fn take(&mut self, number: u64) -> Option<T> {
        let place = self.place(number)?;
        let Some(index) = &mut self.index else {
            self.len -= 1;
            return self.entries.remove(place)?.value;
        };
        let entry = self.entries.get_mut(place)?;
        let value = entry.value.take()?;
        for key in entry.keys.into_iter().flatten() {
            index.remove(&(key, number));
        }
        self.len -= 1;
        self.tidy();
        Some(value)
    }

    /// Removes places of entries that were taken: from the front, and all of them once they are the most. So each entry moves
    /// a bounded number of times.
    fn tidy(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.value.is_none()) {
            self.entries.pop_front();
        }
        if self.entries.len() > 2 * self.len + FEW {
            self.entries.retain(|entry| entry.value.is_some());
        }
        // There are far fewer entries than when the index was made, so a queue of about that length does not make it again and again.
        if self.len <= FEW / 4 {
            self.entries.retain(|entry| entry.value.is_some());
            self.index = None;
        }
    }

    /// The entries in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let entries = self.entries.iter().inspect(|_| look());
        entries.filter_map(|entry| Some((entry.number, entry.value.as_ref()?)))
    }

    /// All entries in their order.
    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.entries.into_iter().filter_map(|entry| entry.value)
    }

    /// Takes the earliest entry if this is true of it.
    pub(crate) fn take_first_if(&mut self, so: impl Fn(&T) -> bool) -> Option<T> {
        let (number, _) = self.iter().next().filter(|(_, value)| so(value))?;
        self.take(number)
    }

    /// Takes the entries for which this is true.
    pub(crate) fn take_if(&mut self, so: impl Fn(&T) -> bool) -> Vec<T> {
        let numbers: Vec<u64> =
            self.iter().filter(|(_, value)| so(value)).map(|(number, _)| number).collect();
        numbers.into_iter().filter_map(|number| self.take(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, cmp::Ordering};

    use super::*;

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// A key that counts how often keys were compared.
    #[derive(Clone, Copy, Debug)]
    struct Counted(u64);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Counted {}

    /// The order in which the entries are taken.
    fn orders(len: u64) -> [(&'static str, Vec<u64>); 3] {
        // 7919 is a prime, and no length is a multiple of it.
        let scattered = (0..len).map(|i| i * 7919 % len).collect();
        [("first", (0..len).collect()), ("last", (0..len).rev().collect()), ("scattered", scattered)]
    }

    #[test]
    fn finding_one_of_many_takes_few_comparisons() {
        for len in [10, 1000, 30_000] {
            for (name, order) in orders(len) {
                let mut queue = Queue::default();
                COMPARED.set(0);
                for i in 0..len {
                    queue.push([Some(Counted(i)), None], i);
                }
                for &i in &order {
                    let number = queue.first([Some(Counted(i)), Some(Counted(u64::MAX))]).unwrap();
                    assert_eq!(queue.take(number), Some(i));
                    assert_eq!(queue.first([Some(Counted(i)), None]), None);
                }
                assert_eq!((queue.len, queue.entries.len()), (0, 0));
                let each = COMPARED.get() as f64 / len as f64;
                // A search one by one takes 15,000 for the longest.
                assert!(each < 200.0, "{name} of {len}: {each} comparisons for an entry");
            }
        }
    }

    /// An early entry that stays does not keep the places of all later ones.
    #[test]
    fn places_of_taken_entries_are_given_back() {
        let mut queue = Queue::default();
        for i in 0..100_u64 {
            queue.push([Some(i), None], i);
        }
        for i in 100..50_000 {
            let number = queue.push([Some(i), None], i);
            assert_eq!(queue.take(number), Some(i));
        }
        assert!(
            queue.entries.len() <= 2 * 101 + FEW,
            "{} places for {} entries",
            queue.entries.len(),
            queue.len
        );
        assert_eq!(queue.iter().map(|(_, &value)| value).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    }

    /// Entries with the same keys, and those found by either key, are taken in the order in which they came.
    #[test]
    fn the_earliest_comes_first_with_and_without_an_index() {
        for len in [5, 500] {
            let mut queue = Queue::default();
            let numbers: Vec<u64> = (0..len).map(|i| queue.push([Some(i % 3), Some(100)], i)).collect();
            assert_eq!(queue.take_if(|&value| value == 4), [4]);
            assert_eq!((queue.take(numbers[4]), queue.get_mut(numbers[4])), (None, None));
            let left: Vec<u64> = (0..len).filter(|&value| value != 4).collect();
            for &value in &left {
                // The one with the key 100 is the earliest of all.
                let number = queue.first([Some(100), Some(value % 3)]).unwrap();
                assert_eq!(queue.first([Some(value % 3), None]), Some(number));
                assert_eq!(queue.get_mut(number), Some(&mut { value }));
                assert_eq!(queue.take(number), Some(value));
            }
            assert_eq!(queue.len, 0);
        }
    }
}
