//! Where the thread is to run that goes on with operations while nobody waits for them.

use std::fmt;

/// The highest number that a processor may have here.
const MOST: usize = 1023;

/// Processors for the threads that go on with asynchronous calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadCores {
    /// A core of those that this process may run on: the last for the machine's first rank, the one before it for the
    /// second, and so on, and over again where there are fewer. So ranks that are all bound alike keep apart, and
    /// away from the cores on which programs start. Needs the feature `hwloc`.
    Auto,
    /// One processor for each of the machine's ranks, by the numbers that the system (and `taskset`) has for them.
    Each(Vec<usize>),
}

impl ThreadCores {
    /// Reads `auto`, or numbers and ranges after commas: `3`, `2,3`, `0,4-7`.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let number = |text: &str| match text.trim().parse::<usize>() {
            Ok(number) if number <= MOST => Ok(number),
            Ok(_) => Err(format!("processors are counted from 0 to {MOST}")),
            Err(_) => Err("wanted auto, or processors such as 3 or 0,4-7".to_owned()),
        };
        let mut all = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("{first}-{last} ends before it begins"));
            }
            all.extend(first..=last);
        }
        Ok(Self::Each(all))
    }
}

impl fmt::Display for ThreadCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => write!(f, "auto"),
            Self::Each(all) => {
                write!(f, "{}", all.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(ThreadCores::parse("auto"), Ok(ThreadCores::Auto));
        for (text, wanted) in [("3", "3"), ("2, 3", "2,3"), ("0,4-7,1", "0,4,5,6,7,1"), ("1023", "1023")] {
            assert_eq!(ThreadCores::parse(text).unwrap().to_string(), wanted);
        }
        for text in ["", "Auto", "1,", "-1", "1-", "3-2", "1024", "99999999999999999999", "0x3", "1-2-3"] {
            assert!(ThreadCores::parse(text).is_err(), "{text:?}");
        }
    }
}
