//! Sets of processors, and the lists by which the system writes them.

use std::{collections::BTreeSet, fmt, io};

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::MOST;

/// A set of processors (hardware threads), by the system's numbers. Sets are ordered by their first processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Processors(BTreeSet<usize>);

impl Processors {
    /// Those on which this process may run.
    ///
    /// # Errors
    /// The system's: `EINVAL` if it has more than 1024 processors.
    pub fn allowed() -> io::Result<Self> {
        let set = sched_getaffinity(None)?;
        Ok((0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect())
    }

    /// Reads numbers and ranges separated by commas, such as `0-3,8`; an empty text is the empty set. `None` if it is no such list, or
    /// has a number beyond 65535.
    #[must_use]
    pub fn parse(list: &str) -> Option<Self> {
        let mut all = BTreeSet::new();
        for part in list.trim().split(',').filter(|_| !list.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
            if first > last || last >= MOST {
                return None;
            }
            all.extend(first..=last);
        }
        Some(Self(all))
    }

    /// How many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if this one is among them.
    #[must_use]
    pub fn contains(&self, processor: usize) -> bool {
        self.0.contains(&processor)
    }

    /// True if all of `others` are among them.
    #[must_use]
    pub fn include(&self, others: &Self) -> bool {
        others.0.is_subset(&self.0)
    }

    /// The processors that are in both sets.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        Self(&self.0 & &others.0)
    }

    /// Their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    /// The ranges of consecutive numbers, each with its first and its last.
    pub fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut rest = self.iter().peekable();
        std::iter::from_fn(move || {
            let first = rest.next()?;
            let mut last = first;
            while let Some(next) = rest.next_if(|&next| next == last + 1) {
                last = next;
            }
            Some((first, last))
        })
    }
}

impl FromIterator<usize> for Processors {
    fn from_iter<T: IntoIterator<Item = usize>>(processors: T) -> Self {
        Self(processors.into_iter().collect())
    }
}

/// The set as the system and `taskset` write it: `0-3,8`.
impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.ranges().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for Processors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Processors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = String::deserialize(deserializer)?;
        Self::parse(&list).ok_or_else(|| D::Error::custom(format!("{list:?} is not a list of processors")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_is_read_as_it_is_written(numbers in prop::collection::btree_set(0_usize..200, 0..50)) {
            let set: Processors = numbers.iter().copied().collect();
            prop_assert_eq!(Processors::parse(&set.to_string()), Some(set.clone()));
            prop_assert!(set.iter().eq(numbers));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,-]{0,12}|.{0,12}") {
            let _ = Processors::parse(&text);
        }
    }

    #[test]
    fn lists_of_the_system_are_read() {
        let numbers = |list| Processors::parse(list).map(|set| set.iter().collect::<Vec<_>>());
        assert_eq!(numbers("0-2,8\n"), Some(vec![0, 1, 2, 8]));
        assert_eq!(numbers("\n"), Some(Vec::new()), "of a NUMA node that has only memory");
        for list in ["3-1", "0-", ",", "1,,2", "x", "0-18446744073709551615", "65536"] {
            assert_eq!(numbers(list), None, "{list}");
        }
    }

    #[test]
    fn this_process_runs_somewhere() {
        assert!(!Processors::allowed().unwrap().is_empty());
    }
}
