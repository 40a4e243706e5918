//! Settings in which one rank of the campaign differs from the others.

use std::{fs, time::Duration};

use tempfile::NamedTempFile;
use unisono::{Config, Reduction};

use crate::world::Result;

/// A setting.
pub(super) struct Setting {
    set: fn(&mut Config),
    /// True if it must be the same on all ranks.
    pub(super) alike: bool,
    /// The contents of this rank's tuning file.
    tuning: Option<&'static str>,
}

pub(super) const ALL: &[Setting] = &[
    alike(|config| config.chunk = 4096),
    alike(|config| config.lanes = 1),
    alike(|config| config.algorithm = Some("ring".into())),
    alike(|config| config.object_limit = 1 << 20),
    alike(|config| config.reduction = Reduction::Reproducible),
    tuned("unisono tuning 1\nall_reduce ranks 2 bytes any ring chunk 4K lanes 1\n"),
    tuned(
        "unisono tuning 1\nall_reduce ranks 2 bytes any shown 4K\nreduce_scatter ranks any bytes any shown 1M\n",
    ),
    tuned("unisono tuning 1\nbarrier ranks 99 bytes any dissemination chunk 64M lanes 4\n"),
    own(|config| config.spin = Some(Duration::ZERO)),
    own(|config| config.timeout = Duration::from_secs(50)),
    own(|config| config.join_timeout = Duration::from_secs(50)),
];

const fn alike(set: fn(&mut Config)) -> Setting {
    Setting { set, alike: true, tuning: None }
}

const fn own(set: fn(&mut Config)) -> Setting {
    Setting { set, alike: false, tuning: None }
}

const fn tuned(tuning: &'static str) -> Setting {
    Setting { set: |_| {}, alike: true, tuning: Some(tuning) }
}

impl Setting {
    /// Applies it. The file that is returned must exist until the rank has joined.
    pub(super) fn apply(&self, config: &mut Config) -> Result<Option<NamedTempFile>> {
        (self.set)(config);
        let Some(text) = self.tuning else { return Ok(None) };
        let file = NamedTempFile::new()?;
        fs::write(file.path(), text)?;
        config.tuning = Some(file.path().to_owned());
        Ok(Some(file))
    }
}
