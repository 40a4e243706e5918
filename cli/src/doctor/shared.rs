//! Checks unisono's shared memory: whether the system lets this process have it, and which ranks it reaches.

use rustix::process::{Resource, geteuid, getrlimit};
use serde::Serialize;
use unisono_transport::shm;

use super::{
    files::Files,
    report::{Section, or_unknown},
};
use crate::words::size64;

/// Its name in requests.
pub(super) const SHM: &str = "shm";

/// What decides whether ranks share memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct SharedMemory {
    /// `Ok` if an endpoint opens, otherwise why not. `None` if none was opened, because a provider is asked for.
    pub(super) opens: Option<Result<(), String>>,
    /// The limit on file sizes in bytes, which holds for this memory too.
    pub(super) file_size: Option<u64>,
    /// How the system accounts for memory: vm.overcommit_memory.
    pub(super) overcommit: Option<String>,
    /// The id of the running kernel.
    pub(super) kernel: Option<String>,
    /// The network namespace, in which endpoints have their names.
    pub(super) network: Option<String>,
    /// The user's id, and the user namespace in which that holds.
    pub(super) user: u32,
    pub(super) users: Option<String>,
}

impl SharedMemory {
    /// Opens an endpoint unless another `provider` is asked for.
    pub(super) fn gather(files: &Files, provider: Option<&str>) -> Self {
        let wanted = provider.is_none_or(|provider| provider == SHM);
        let opens = || shm::Endpoint::open().map(drop).map_err(|error| error.to_string());
        Self {
            opens: wanted.then(opens),
            file_size: getrlimit(Resource::Fsize).current,
            overcommit: files.text("/proc/sys/vm/overcommit_memory"),
            kernel: files.text("/proc/sys/kernel/random/boot_id"),
            network: files.link("/proc/self/ns/net"),
            user: geteuid().as_raw(),
            users: files.link("/proc/self/ns/user"),
        }
    }

    pub(super) fn judge(&self) -> Section {
        let mut section = Section::new("shared memory");
        match &self.opens {
            None => {
                section.note("not checked, because a provider is asked for, which ranks of one host use, too");
                return section;
            }
            Some(Ok(())) => section.ok("an endpoint opens; the self-test below tries it with two ranks"),
            Some(Err(reason)) => section.warn(
                format!(
                    "an endpoint does not open: {reason}. By default, ranks of this host use a provider then, which is slower"
                ),
                "raise the limit if the reason is one; otherwise let the container's profiles (seccomp, AppArmor) allow \
                 memfd_create and Unix sockets",
            ),
        }
        if let Some(limit) = self.file_size {
            section.warn(
                format!(
                    "the limit on file sizes is {}, and holds for memory that ranks share: messages into larger buffers are \
                     copied twice",
                    size64(limit)
                ),
                "`ulimit -f unlimited`",
            );
        }
        if self.overcommit.as_deref() == Some("2") {
            section.warn(
                "the system keeps strict account of memory (vm.overcommit_memory is 2): messages between ranks of this host are copied \
                 twice",
                "`sysctl vm.overcommit_memory=0`, unless another program needs it",
            );
        }
        let [kernel, network, users] = [&self.kernel, &self.network, &self.users].map(or_unknown);
        section.note(format!(
            "it reaches ranks of the same host (kernel {kernel}), network namespace ({network}) and user ({} in {users}); \
             containers share a network namespace by docker run --network=host",
            self.user
        ));
        section
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn an_endpoint_is_opened_unless_a_provider_is_asked_for() {
        let opens = |provider| SharedMemory::gather(&Files::below("/"), provider).opens;
        assert_eq!([opens(None), opens(Some(SHM)), opens(Some("tcp"))], [Some(Ok(())), Some(Ok(())), None]);
    }

    #[test]
    fn the_ranks_it_reaches_are_read_where_the_system_names_them() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::below(directory.path());
        let found = || {
            let SharedMemory { kernel, network, users, .. } = SharedMemory::gather(&files, Some("tcp"));
            [kernel, network, users]
        };
        assert_eq!(found(), [None, None, None]);
        fs::create_dir_all(directory.path().join("proc/self/ns")).unwrap();
        fs::create_dir_all(directory.path().join("proc/sys/kernel/random")).unwrap();
        fs::write(directory.path().join("proc/sys/kernel/random/boot_id"), "a64f\n").unwrap();
        symlink("net:[12]", directory.path().join("proc/self/ns/net")).unwrap();
        symlink("user:[34]", directory.path().join("proc/self/ns/user")).unwrap();
        assert_eq!(found(), ["a64f", "net:[12]", "user:[34]"].map(|value| Some(value.to_owned())));
    }
}
