//! On which NUMA node pages of shared memory lie: that of the rank whose memory it is.
//!
//! The system takes a page where the thread runs that touches it first, or allocates it (fallocate). So rings and boards, which have all
//! their pages from the beginning, lie on the node of the endpoint that makes them. The pages of a region are taken when they are
//! touched, maybe by a peer on another node that puts there: so its memfd gets a policy, which holds for all who map it (mbind(2)).
#![allow(unsafe_code)]

use std::{ffi::c_ulong, fs, ptr, sync::LazyLock};

use rustix::io::Errno;

use super::segment::Segment;

/// The most nodes that a mask names: as many as Linux has.
const NODES: usize = 1024;
/// The bits of a word of a mask.
const BITS: usize = c_ulong::BITS as usize;

/// The pages of a memory that are not there yet will be on this thread's node, or where its policy says (numactl), as far as there is
/// room. Where the system has one node, or does not let this process choose (a container without CAP_SYS_NICE), they lie where
/// they are touched.
pub(super) fn keep_here(segment: &Segment) {
    static ONE_NODE: LazyLock<bool> = LazyLock::new(|| {
        fs::read_to_string("/sys/devices/system/node/online").is_ok_and(|nodes| !nodes.contains([',', '-']))
    });
    if *ONE_NODE {
        return;
    }
    if let Err(error) = bind(segment) {
        tracing::debug!(%error, "memory that is shared lies on the node of whoever touches it first");
    }
}

fn bind(segment: &Segment) -> Result<(), Errno> {
    let (mut mode, mut nodes) = (0, [0; NODES / BITS]);
    // SAFETY: the system writes the mode, and a mask of so many bits.
    call(unsafe {
        let no_address = ptr::null::<u8>();
        libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, nodes.as_mut_ptr(), NODES, no_address, 0)
    })?;
    // No policy, or one that means whoever touches a page.
    if nodes == [0; NODES / BITS] {
        let (mut cpu, mut node) = (0_u32, 0_u32);
        // SAFETY: the system writes the two numbers.
        call(unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, ptr::null::<u8>()) })?;
        let word = nodes.get_mut(node as usize / BITS).ok_or(Errno::OVERFLOW)?;
        *word = 1 << (node as usize % BITS);
        mode = libc::MPOL_PREFERRED;
    }
    // SAFETY: the segment's own mapping; changes no byte. The system reads a mask of so many bits.
    call(unsafe {
        libc::syscall(libc::SYS_mbind, segment.base(), segment.len(), mode, nodes.as_ptr(), NODES, 0)
    })
}

/// The result of a system call.
fn call(result: i64) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::{
        super::segment::{self, Access},
        *,
    };

    /// What /proc/self/numa_maps says of the mapping at this address.
    fn told(segment: &Segment) -> Option<String> {
        let maps = fs::read_to_string("/proc/self/numa_maps").ok()?;
        let address = format!("{:08x} ", segment.base().addr());
        maps.lines().find(|line| line.starts_with(&address)).map(str::to_owned)
    }

    /// Whether there are other nodes, peers' threads run here: that the policy is the file's is what can be seen.
    #[test]
    fn pages_that_a_peer_touches_first_obey_their_owner() {
        let (file, len) = segment::create_for_region(4 << 12).unwrap();
        let ours = Segment::own(&file, len).unwrap();
        let theirs = Segment::of_peer(&file, 0, len, Access::ReadWrite).unwrap();
        if let Err(error) = bind(&ours) {
            println!("skipped, this process may not choose nodes: {error}");
            return;
        }
        theirs.words()[0].store(1, Ordering::Relaxed);
        let Some(line) = told(&theirs) else {
            println!("skipped, the system does not tell where pages are");
            return;
        };
        let node = line.split_once(" prefer:").map(|(_, rest)| rest.split(' ').next().unwrap_or_default());
        let node = node.unwrap_or_else(|| panic!("no node is preferred: {line}"));
        assert!(line.contains(&format!(" N{node}=1")), "the page is elsewhere: {line}");
    }
}
