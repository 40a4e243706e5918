//! On which NUMA node pages of shared memory lie: that of the rank whose memory it is.
//!
//! The system takes a page where the thread runs that touches it first, or allocates it (fallocate). So rings and boards, which have all
//! their pages from the beginning, lie on the node of the endpoint that makes them. The pages of a region are taken when they are
//! touched, maybe by a peer on another node that puts there: so its memfd gets a policy, which holds for all who map it (mbind(2)).
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_long, c_uint, c_ulong, c_void},
    fs, ptr,
    sync::LazyLock,
};

use rustix::io::Errno;

use super::segment::Segment;

/// The most nodes that a mask names: as many as Linux has.
const NODES: usize = 1024;
/// The bits of a word of a mask.
const BITS: usize = c_ulong::BITS as usize;

/// A bit for each node. The system writes all of it, however few nodes there are.
type Nodes = [c_ulong; NODES / BITS];

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
    const NONE: Nodes = [0; NODES / BITS];
    let (mut mode, mut nodes): (c_int, Nodes) = (0, NONE);
    policy(&mut mode, &mut nodes)?;
    // No policy, or one that means the node of the thread that touches a page.
    if nodes == NONE {
        let node = here()?;
        *nodes.get_mut(node / BITS).ok_or(Errno::OVERFLOW)? = 1 << (node % BITS);
        mode = libc::MPOL_PREFERRED;
    }
    let (base, len): (*mut c_void, c_ulong) = (segment.base().cast(), segment.len() as c_ulong);
    let (mode, bits, flags): (c_ulong, c_ulong, c_ulong) = (mode as c_ulong, NODES as c_ulong, 0);
    // SAFETY: the segment's own mapping; changes no byte. The system reads `NODES` bits, which `Nodes` has.
    call(unsafe { libc::syscall(libc::SYS_mbind, base, len, mode, nodes.as_ptr(), bits, flags) })
}

/// This thread's policy of memory: its mode and its nodes.
fn policy(mode: &mut c_int, nodes: &mut Nodes) -> Result<(), Errno> {
    let (mode, nodes): (*mut c_int, *mut Nodes) = (mode, nodes);
    let (bits, address, flags): (c_ulong, *const c_void, c_ulong) = (NODES as c_ulong, ptr::null(), 0);
    // SAFETY: the system writes an int, and `NODES` bits, which `Nodes` has.
    call(unsafe { libc::syscall(libc::SYS_get_mempolicy, mode, nodes, bits, address, flags) })
}

/// The node of the processor that this thread runs on.
fn here() -> Result<usize, Errno> {
    let (mut cpu, mut node): (c_uint, c_uint) = (0, 0);
    let unused: *const c_void = ptr::null();
    // SAFETY: the system writes two unsigned ints.
    call(unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, unused) })?;
    Ok(node as usize)
}

/// The result of a system call.
fn call(result: c_long) -> Result<(), Errno> {
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
    use crate::guarded::Guarded;

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

    /// Also on a system with one node: it writes all bits that it was asked for.
    #[test]
    fn the_system_writes_a_mask_and_not_a_byte_more() {
        let (mut mode, mut nodes) = (Guarded::new(-1), Guarded::<Nodes>::new([c_ulong::MAX; _]));
        match policy(mode.value(), nodes.value()) {
            Err(Errno::PERM | Errno::NOSYS) => println!("SKIPPED: this process may not ask for its policy"),
            result => result.unwrap(),
        }
        assert!(mode.is_intact() && nodes.is_intact());
    }
}
