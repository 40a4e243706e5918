//! Selects tensors of a .safetensors file, and makes the header of the .safetensors file that has only these.

use std::collections::BTreeMap;

use safetensors::tensor::{Metadata, TensorInfo};
use serde::Serialize;

use super::source::{Extent, SentFile, read};
use crate::error::{FileResult, Problem};

/// The longest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;
/// The most names of tensors in an error.
const SHOWN: usize = 8;
/// The most characters of an error, which is sent to every rank: names may be as long as the header.
const TOLD: usize = 1000;

/// A header whose bytes are always the same: the order of the safetensors crate's own writer is that of a hash map.
#[derive(Serialize)]
struct Header<'m> {
    #[serde(rename = "__metadata__", skip_serializing_if = "Option::is_none")]
    about: Option<BTreeMap<&'m String, &'m String>>,
    #[serde(flatten)]
    tensors: BTreeMap<String, TensorInfo>,
}

impl SentFile {
    /// Selects the tensors whose names fit one of the patterns; only these are sent.
    pub(crate) fn only(mut self, patterns: &[String]) -> FileResult<Self> {
        let (metadata, data) = self.header()?;
        let mut names = metadata.offset_keys();
        // Tensors without elements may begin at the same offset as others; then names decide.
        names.sort_by_cached_key(|name| (metadata.info(name).map(|info| info.data_offsets), name.clone()));
        for pattern in patterns {
            if !names.iter().any(|name| fits(pattern, name)) {
                let shown: Vec<_> = names.iter().take(SHOWN).map(String::as_str).collect();
                let more = if names.len() > SHOWN { ", ..." } else { "" };
                return Err(bad(format!(
                    "no tensor is called {pattern:?}; of {} there are {}{more}",
                    names.len(),
                    shown.join(", ")
                )));
            }
        }
        let mut tensors = BTreeMap::new();
        let mut parts: Vec<Extent> = Vec::new();
        let mut end: usize = 0;
        for name in names.into_iter().filter(|name| patterns.iter().any(|pattern| fits(pattern, name))) {
            let Some(info) = metadata.info(&name) else { continue };
            let (from, to) = info.data_offsets;
            let len = to.saturating_sub(from);
            let data_offsets = (end, end.saturating_add(len));
            tensors.insert(name, TensorInfo { data_offsets, ..info.clone() });
            let (from, len) = (data + from as u64, len as u64);
            match parts.last_mut() {
                Some(last) if last.from + last.len == from => last.len += len,
                _ => parts.push(Extent { to: end as u64, from, len }),
            }
            end = data_offsets.1;
        }
        let about = metadata.metadata().as_ref().map(|about| about.iter().collect());
        let header = Header { about, tensors };
        let mut json = serde_json::to_vec(&header).map_err(|error| bad(error.to_string()))?;
        // The format's own writer pads the header in the same way, so that the data is aligned.
        json.resize(json.len().next_multiple_of(8), b' ');
        let head = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
        parts.iter_mut().for_each(|part| part.to += head.len() as u64);
        parts.retain(|part| part.len > 0);
        (self.head, self.parts) = (head, parts);
        Ok(self)
    }

    /// The header, and where the data begins.
    fn header(&self) -> FileResult<(Metadata, u64)> {
        let whole = self.about.len();
        let none = |what: String| bad(format!("is not a .safetensors file: {what}"));
        if whole < 8 {
            return Err(none(format!("it has {whole} bytes, and its header's length alone takes 8")));
        }
        let mut len = [0; 8];
        read(&self.file, 0, &mut len)?;
        let len = u64::from_le_bytes(len);
        if len > MAX_HEADER || len > whole - 8 {
            return Err(none(format!(
                "its header would have {len} bytes; there are {} after its length, and {MAX_HEADER} are allowed",
                whole - 8
            )));
        }
        let mut json = vec![0; usize::try_from(len).unwrap_or_default()];
        read(&self.file, 8, &mut json)?;
        let metadata: Metadata =
            serde_json::from_slice(&json).map_err(|error| none(format!("its header: {error}")))?;
        let data = 8 + len;
        let wanted = data.checked_add(metadata.data_len() as u64);
        if wanted != Some(whole) {
            let tensors = metadata.data_len();
            return Err(none(format!(
                "its tensors have {tensors} bytes, and {} follow the header",
                whole - data
            )));
        }
        Ok((metadata, data))
    }
}

fn bad(mut problem: String) -> Problem {
    if let Some((end, _)) = problem.char_indices().nth(TOLD) {
        problem.truncate(end);
        problem.push_str("...");
    }
    Problem::Tensors { problem }
}

/// True if a name fits a pattern, in which `*` stands for any characters and `?` for any one.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    // At each position, whether the pattern so far fits the name before it.
    let mut fit = vec![false; name.len() + 1];
    fit[0] = true;
    for one in pattern.chars() {
        let before = fit.clone();
        fit[0] = before[0] && one == '*';
        for (at, &other) in name.iter().enumerate() {
            fit[at + 1] = match one {
                '*' => before[at + 1] || fit[at],
                _ => before[at] && (one == '?' || one == other),
            };
        }
    }
    fit[name.len()]
}
