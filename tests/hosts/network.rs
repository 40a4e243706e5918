//! Hosts made of namespaces: each has its own interfaces, processes, name, /dev/shm and /etc/hosts.
//!
//! Every host is a process in new namespaces, the first of its PID namespace, that waits for the end of its standard input. So
//! whatever ends the suite (a panic, SIGINT, SIGKILL) ends the hosts and all their processes, and the kernel then removes their
//! interfaces: nothing has a name outside, nothing is left behind, and two suites do not interfere.

use std::{
    error::Error,
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use crate::world::{Result, TestJob};

/// The namespaces of a host, as `unshare` and `nsenter` name them.
const NAMESPACES: [&str; 5] = ["--net", "--mount", "--uts", "--ipc", "--pid"];

/// Hosts, and one switch for each name of an interface: all interfaces called `eth0` are on one network.
pub(crate) struct Hosts {
    /// Declared before the switch, so that it is dropped first.
    hosts: Vec<Host>,
    switch: Host,
}

/// A host by its name, with its interfaces: their names and their addresses with the prefix, of IPv4 or IPv6.
pub(crate) type Described<'d> = (&'d str, &'d [(&'d str, &'d [&'d str])]);

struct Host {
    name: String,
    holder: Child,
    /// The first process of its PID namespace, as seen from outside.
    pid: u32,
}

impl Hosts {
    /// Ok if hosts can be made here, or the reason why not.
    pub(crate) fn possible() -> std::result::Result<(), String> {
        if !rustix::process::getuid().is_root() {
            return Err("only root can make network namespaces".into());
        }
        let attempt = || -> Result<()> {
            let host = Host::new("attempt")?;
            host.sh("ip link add one type veth peer name two && ip link add three type bridge")?;
            host.sh("ip rule add pref 9 ipproto tcp dport 1-9 blackhole").map(drop)
        };
        attempt().map_err(|error| format!("no network namespaces with veth, bridges and rules: {error}"))
    }

    /// Makes hosts.
    pub(crate) fn new(described: &[Described<'_>]) -> Result<Self> {
        let switch = Host::new("switch")?;
        let mut all = Self { hosts: Vec::new(), switch };
        let mut networks: Vec<&str> = Vec::new();
        for (name, interfaces) in described {
            let host = Host::new(name)?;
            for (interface, addresses) in *interfaces {
                if !networks.contains(interface) {
                    networks.push(interface);
                    all.switch
                        .sh(&format!("ip link add {interface} type bridge && ip link set {interface} up"))?;
                }
                let (end, pid) = (port(name, interface), host.pid);
                // This runs outside of the PID namespaces, because the number is the one outside.
                let script = format!("ip link add {end} type veth peer name {interface} netns {pid}");
                run(
                    Command::new("nsenter").args(["--net", "--target", &all.switch.pid.to_string()]),
                    &script,
                )?;
                all.switch.sh(&format!("ip link set {end} master {interface} && ip link set {end} up"))?;
                host.sh(&format!("ip link set {interface} up"))?;
                for address in *addresses {
                    let nodad = if address.contains(':') { "nodad" } else { "" };
                    host.sh(&format!("ip addr add {address} dev {interface} {nodad}"))?;
                }
            }
            all.hosts.push(host);
        }
        Ok(all)
    }

    /// Makes this many hosts on one network: `host0` with 10.77.0.1 and fd77::1, `host1` with 10.77.0.2 and fd77::2…
    pub(crate) fn on_one_network(count: usize) -> Result<Self> {
        let addresses: Vec<[String; 2]> =
            (1..=count).map(|n| [format!("10.77.0.{n}/24"), format!("fd77::{n}/64")]).collect();
        let addresses: Vec<[&str; 2]> =
            addresses.iter().map(|of| of.each_ref().map(String::as_str)).collect();
        let interfaces: Vec<[(&str, &[&str]); 1]> = addresses.iter().map(|of| [("eth0", &of[..])]).collect();
        let names: Vec<String> = (0..count).map(|n| format!("host{n}")).collect();
        let described: Vec<Described<'_>> =
            names.iter().zip(&interfaces).map(|(name, of)| (name.as_str(), &of[..])).collect();
        Self::new(&described)
    }

    /// Starts a rank of a world on a host, in its role, with these variables besides those of every rank.
    pub(crate) fn run(
        &self,
        world: &mut TestJob,
        host: &str,
        rank: usize,
        role: &str,
        more: &[(&str, &str)],
    ) -> Result<()> {
        let mut command = self.host(host)?.enter();
        command.arg(std::env::current_exe()?);
        world.start_by(command, rank, role, more)
    }

    /// Runs a script on a host and returns its output; a status other than 0 is an error.
    pub(crate) fn sh(&self, host: &str, script: &str) -> Result<String> {
        self.host(host)?.sh(script)
    }

    /// Takes a host's interface off its network: what is sent there or comes from there is lost silently.
    pub(crate) fn cut(&self, host: &str, interface: &str) -> Result<()> {
        self.switch.sh(&format!("ip link set {} nomaster", port(host, interface))).map(drop)
    }

    /// Puts a host's interface back on its network.
    pub(crate) fn mend(&self, host: &str, interface: &str) -> Result<()> {
        self.switch.sh(&format!("ip link set {} master {interface}", port(host, interface))).map(drop)
    }

    /// Limits a host's port in each direction (Mbit/s), and has its kernel report that speed, as it would for a NIC.
    pub(crate) fn limit(&self, host: &str, interface: &str, megabits: u32) -> Result<()> {
        // The burst is as large as what a NIC sends at once, and the queue has half a megabyte.
        let bucket = format!("root tbf rate {megabits}mbit burst 128kb limit 512kb");
        self.sh(host, &format!("tc qdisc replace dev {interface} {bucket}"))?;
        let (file, message) =
            (format!("/dev/shm/{interface}.speed"), format!("/sys/class/net/{interface}/speed"));
        self.sh(host, &format!("echo {megabits} > {file}\nmount --bind {file} {message}"))?;
        self.switch.sh(&format!("tc qdisc replace dev {} {bucket}", port(host, interface))).map(drop)
    }

    /// Disconnects a host: its interface loses its carrier, and its routes are removed.
    pub(crate) fn unplug(&self, host: &str, interface: &str) -> Result<()> {
        self.switch.sh(&format!("ip link set {} down", port(host, interface))).map(drop)
    }

    /// Sets the MTU of a host. Disables segmentation offload, because there is no NIC that would split segments.
    pub(crate) fn mtu(&self, host: &str, interface: &str, bytes: usize) -> Result<()> {
        self.sh(host, &format!("ip link set {interface} gso_max_segs 1 mtu {bytes}")).map(drop)
    }

    /// Sets the largest packet that a network carries from one switch port to another; larger ones are dropped silently.
    pub(crate) fn network_mtu(&self, interface: &str, bytes: usize) -> Result<()> {
        for host in &self.hosts {
            let port = port(&host.name, interface);
            // A port that its host does not have is no error.
            self.switch.sh(&format!("[ ! -e /sys/class/net/{port} ] || ip link set {port} mtu {bytes}"))?;
        }
        Ok(())
    }

    /// Adds a firewall that passes TCP to and from one port only, on this interface; it drops the rest silently.
    pub(crate) fn admit_only(&self, host: &str, interface: &str, port: u16) -> Result<()> {
        let mut script = String::new();
        for family in ["-4", "-6"] {
            let rule = format!("ip {family} rule add");
            let by = format!("iif {interface} ipproto tcp");
            script += &format!(
                "{rule} pref 20 lookup local\nip {family} rule del pref 0\n\
                 {rule} pref 10 {by} dport {port} lookup local\n{rule} pref 11 {by} sport {port} lookup local\n\
                 {rule} pref 12 {by} blackhole\n"
            );
        }
        self.sh(host, &script).map(drop)
    }

    /// Gives a host an /etc/hosts.
    pub(crate) fn etc_hosts(&self, host: &str, text: &str) -> Result<()> {
        let script = format!(
            "mount -t tmpfs tmpfs /mnt\nprintf '%s' '{text}' > /mnt/hosts\nmount --bind /mnt/hosts /etc/hosts"
        );
        self.sh(host, &script).map(drop)
    }

    /// True if a TCP segment to an address is answered, if only by a refusal.
    pub(crate) fn answers(&self, from: &str, address: &str, port: u16) -> Result<bool> {
        let attempt =
            format!("timeout 2 bash -c '</dev/tcp/{address}/{port}' 2>&1 || [ $? != 124 ] && echo yes");
        Ok(self.sh(from, &format!("{attempt} || echo no"))?.contains("yes"))
    }

    /// The command of a program on a host.
    pub(crate) fn command(&self, host: &str, program: &str) -> Result<Command> {
        let mut command = self.host(host)?.enter();
        command.arg(program);
        Ok(command)
    }

    /// The network namespace of a host.
    pub(crate) fn network_namespace(&self, host: &str) -> Result<PathBuf> {
        Ok(format!("/proc/{}/ns/net", self.host(host)?.pid).into())
    }

    fn host(&self, name: &str) -> Result<&Host> {
        self.hosts.iter().find(|host| host.name == name).ok_or_else(|| format!("no host {name}").into())
    }
}

/// The name of the switch's end of a host's interface, of at most 15 bytes, the kernel's limit.
fn port(host: &str, interface: &str) -> String {
    format!("{host}-{interface}")
}

impl Host {
    fn new(name: &str) -> Result<Self> {
        let script = format!(
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mount -t sysfs sysfs /sys && hostname {name} && ip link set lo up && echo ready && exec cat"
        );
        let mut holder = Command::new("unshare")
            .args(NAMESPACES)
            .args(["--fork", "--kill-child", "--mount-proc", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare does not start: {error}"))?;
        let mut ready = String::new();
        if let Some(output) = holder.stdout.take() {
            BufReader::new(output).read_line(&mut ready)?;
        }
        if ready.trim() != "ready" {
            let Output { stderr, .. } = holder.wait_with_output()?;
            return Err(format!("host {name}: {}", String::from_utf8_lossy(&stderr).trim()).into());
        }
        let pid = child_of(holder.id())?;
        Ok(Self { name: name.into(), holder, pid })
    }

    /// The command that starts a program here, without its name and arguments.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(NAMESPACES).args(["--target", &self.pid.to_string()]);
        command
    }

    fn sh(&self, script: &str) -> Result<String> {
        run(&mut self.enter(), script).map_err(|error| format!("on {}: {error}", self.name).into())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // This ends the first process, and so all other processes of the host. It may have ended by itself.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Runs a script by a command that takes a program and its arguments.
fn run(command: &mut Command, script: &str) -> Result<String> {
    let output = command.args(["sh", "-ec", script]).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{script:?} ended with {}: {}", output.status, said.trim()).into())
}

/// The only child of a process: the program that `nsenter` or `unshare` has started.
pub(crate) fn child_of(pid: u32) -> Result<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let child = children.split_whitespace().next().ok_or_else(|| format!("process {pid} has no child"))?;
    child.parse().map_err(|error| Box::<dyn Error>::from(format!("{child:?}: {error}")))
}
