//! Completion queues whose descriptor stays readable forever (`net`): the descriptor that it watches is used instead.

use std::os::fd::RawFd;

use super::super::kernel_file;

/// The epoll instance that another one watches: the provider's sockets, without the queue's signal beside
/// them. The system lists what an epoll watches in its `fdinfo`.
pub(in crate::ofi) fn inner_epoll(outer: RawFd) -> Option<RawFd> {
    let list = kernel_file::read(format!("/proc/self/fdinfo/{outer}")).ok()?;
    let watched =
        list.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok());
    watched.into_iter().find(|fd: &RawFd| {
        std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|link| link.as_os_str() == "anon_inode:[eventpoll]")
    })
}
