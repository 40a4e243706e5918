//! Parses the setting `UNISONO_ALGORITHM`, the algorithms that are allowed: `ring`, `^ring`,
//! `all_reduce:tree,ring;broadcast:^direct`.
//!
//! The syntax is that of NCCL's `NCCL_ALGO`: names are separated by commas, `^` means all except these, a collective and a colon
//! precede a list for that collective only, and semicolons separate lists.

use super::table::collective_of;
use crate::Collective;
use crate::algorithm::{ALGORITHMS, Algorithm};

/// The algorithms that are allowed for each collective; by default all.
///
/// ```
/// use unisono_schedule::{Collective, algorithm::find, select::Selection};
///
/// let selection = Selection::parse("all_reduce:tree,ring;^direct")?;
/// let direct = find("direct").ok_or("no such algorithm")?;
/// assert!(!selection.allows(Collective::AllReduce, direct));
/// assert!(!selection.allows(Collective::Broadcast, direct));
/// assert!(Selection::parse("magic").is_err_and(|error| error.starts_with("there is no algorithm \"magic\"")));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// For each collective, in the order of [`Collective::ALL`], a bit for each of [`ALGORITHMS`].
    allowed: [u32; Collective::ALL.len()],
}

/// The bit of each algorithm fits.
const _: () = assert!(ALGORITHMS.len() <= 32);

impl Default for Selection {
    fn default() -> Self {
        Self { allowed: [u32::MAX; Collective::ALL.len()] }
    }
}

impl Selection {
    /// Parses a selection. A list for one collective takes precedence over a list for all. A list for all does not apply to a
    /// collective for which it leaves no algorithm.
    ///
    /// # Errors
    /// A sentence that says what is wrong: an unknown name, a list that leaves no algorithm, or two lists for the same collective.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut selection = Self::default();
        let mut own = [false; Collective::ALL.len()];
        let mut for_all = false;
        for list in text.split(';') {
            let (collective, names) = match list.split_once(':') {
                Some((collective, names)) => (Some(collective.trim()), names.trim()),
                None => (None, list.trim()),
            };
            let bits = bits(names)?;
            let Some(name) = collective else {
                if std::mem::replace(&mut for_all, true) {
                    return Err(twice("all collectives"));
                }
                if Collective::ALL.iter().all(|&collective| bits & able(collective) == 0) {
                    return Err(format!("{names:?} leaves no algorithm for any collective"));
                }
                for (index, &collective) in Collective::ALL.iter().enumerate() {
                    let left = bits & able(collective);
                    if left != 0 && !own[index] {
                        selection.allowed[index] = left;
                    }
                }
                continue;
            };
            let collective = collective_of(name)?;
            let (index, able) = (collective as usize, able(collective));
            if bits & able == 0 {
                let able = names_of(able);
                return Err(format!("{names:?} leaves no algorithm for {name}, which can be done by {able}"));
            }
            if std::mem::replace(&mut own[index], true) {
                return Err(twice(name));
            }
            selection.allowed[index] = bits & able;
        }
        Ok(selection)
    }

    /// The algorithms that the user allows for this collective, a bit for each.
    #[must_use]
    pub fn of(&self, collective: Collective) -> u32 {
        self.allowed[collective as usize]
    }

    /// True if the user allows this algorithm for this collective.
    #[must_use]
    pub fn allows(&self, collective: Collective, algorithm: &Algorithm) -> bool {
        let place = ALGORITHMS.iter().position(|other| other.code == algorithm.code);
        place.is_some_and(|place| self.of(collective) >> place & 1 == 1)
    }
}

/// The bits of a list of names.
fn bits(names: &str) -> Result<u32, String> {
    let (excluded, names) = match names.strip_prefix('^') {
        Some(names) => (true, names),
        None => (false, names),
    };
    let mut bits = 0;
    for name in names.split(',').map(str::trim) {
        let place = ALGORITHMS.iter().position(|algorithm| algorithm.name == name);
        let place = place.ok_or_else(|| {
            format!("there is no algorithm {name:?}; there are {}", list_of(ALGORITHMS.iter()))
        })?;
        bits |= 1 << place;
    }
    Ok(if excluded { !bits } else { bits })
}

/// The bits of those that can do a collective.
fn able(collective: Collective) -> u32 {
    let able = ALGORITHMS.iter().enumerate().filter(|(_, algorithm)| algorithm.supports(collective));
    able.fold(0, |bits, (place, _)| bits | 1 << place)
}

fn names_of(bits: u32) -> String {
    list_of(ALGORITHMS.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1).map(|(_, it)| it))
}

fn list_of<'a>(algorithms: impl Iterator<Item = &'a Algorithm>) -> String {
    algorithms.map(|algorithm| algorithm.name).collect::<Vec<_>>().join(", ")
}

/// An error, because a second list would silently replace the first.
fn twice(what: &str) -> String {
    format!("there are two lists for {what}; wanted one, of names after commas such as \"^ring,tree\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::find;

    fn allowed(text: &str, collective: Collective) -> Vec<&'static str> {
        let selection = Selection::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let able = ALGORITHMS.iter().filter(|algorithm| algorithm.supports(collective));
        able.filter(|algorithm| selection.allows(collective, algorithm)).map(|it| it.name).collect()
    }

    #[test]
    fn lists_are_for_all_or_for_one() {
        let all: Vec<_> =
            ALGORITHMS.iter().filter(|it| it.supports(Collective::AllReduce)).map(|it| it.name).collect();
        assert_eq!(allowed("ring", Collective::AllReduce), ["ring"]);
        assert_eq!(allowed("two_shot, ring", Collective::AllReduce), ["ring", "two_shot"]);
        assert_eq!(allowed("all_reduce:ring", Collective::AllReduce), ["ring"]);
        assert_eq!(allowed("all_reduce:ring;broadcast:direct", Collective::Broadcast), ["direct"]);
        assert_eq!(allowed("broadcast:direct", Collective::AllReduce), all);
        let without: Vec<_> = all.iter().copied().filter(|&name| name != "ring").collect();
        assert_eq!(allowed("^ring", Collective::AllReduce), without);
        assert_eq!(allowed("all_reduce:^ring", Collective::AllReduce), without);
        // A list for one collective goes before a list for all, in either order.
        assert_eq!(allowed("all_reduce:direct;ring", Collective::AllReduce), ["direct"]);
        assert_eq!(allowed("ring;all_reduce:direct", Collective::AllReduce), ["direct"]);
        assert_eq!(allowed("ring;all_reduce:direct", Collective::AllGather), ["ring"]);
        // A ring cannot be a barrier; those that can still are.
        assert!(!allowed("ring", Collective::Barrier).is_empty());
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let every = format!("^{}", list_of(ALGORITHMS.iter()));
        for (text, words) in [
            ("magic", "no algorithm \"magic\"; there are direct, ring"),
            ("", "no algorithm \"\""),
            ("ring,,direct", "no algorithm \"\""),
            ("all_reduce:magic", "no algorithm \"magic\""),
            ("all_things:ring", "no collective \"all_things\"; there are all_reduce"),
            ("barrier:ring", "leaves no algorithm for barrier, which can be done by direct, dissemination"),
            ("barrier:^direct,dissemination,star,leader", "leaves no algorithm for barrier"),
            ("^ring;^tree", "two lists for all collectives; wanted one, of names after commas"),
            ("ring;all_reduce:tree;ring", "two lists for all collectives"),
            ("all_reduce:^ring;broadcast:ring;all_reduce:^tree", "two lists for all_reduce; wanted one"),
            (&every, "leaves no algorithm for any collective"),
        ] {
            let error = Selection::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn everything_is_allowed_at_first() {
        let ring = find("ring").unwrap();
        assert!(Selection::default().allows(Collective::AllReduce, ring));
    }
}
