//! Connections to hosts by the user's ssh, and what to do if there is none.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, BufRead, BufReader, Read},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        process::CommandExt,
    },
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    sync::mpsc::Sender,
    thread::JoinHandle,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process_group},
};

use super::agent::{self, HELLO};
use crate::{
    invocation,
    run::ranks::{self, Event, HostChannel, HostConnection},
    words,
};

/// The most lines that login scripts may print before the program's own.
const MOST_LINES: usize = 1000;
/// The time to wait for ssh's own messages after its output has ended: a process that ssh leaves behind may keep them open.
const LAST_WORDS: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A host that was called.
pub(super) struct CalledHost {
    pub(super) line: HostChannel,
    child: Child,
    thread: JoinHandle<(BufReader<ChildStdout>, ChildStderr)>,
    end: EndOfCall,
}

/// Ends a call when it is dropped: the host ends what it has begun.
struct EndOfCall(Pid);

impl Drop for EndOfCall {
    fn drop(&mut self) {
        // This fails only if the process has ended.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

/// True if a name is this host's, which needs no ssh.
pub(super) fn is_here(name: &str) -> bool {
    let own = words::host();
    name == "localhost" || name == own || Some(name) == own.split('.').next()
}

impl CalledHost {
    /// Starts the program on a host; its two answers come as events.
    pub(super) fn start(number: u32, name: &str, tell: Sender<Event>) -> io::Result<Self> {
        let mut command = if is_here(name) { here() } else { there(name) };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                error.kind(),
                "there is no program ssh in the directories of PATH; install it (Debian: openssh-client)",
            ),
            kind => io::Error::new(kind, format!("cannot start ssh: {error}")),
        })?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("ssh has no input or output"));
        };
        let line = HostChannel { host: name.to_owned(), input };
        let end = EndOfCall(Pid::from_child(&child));
        let reader = Reader { number, name: name.to_owned(), pid: end.0, errors, tell };
        let thread = std::thread::Builder::new()
            .name(format!("answers of {number}"))
            .spawn(move || reader.read(BufReader::new(output)))?;
        Ok(Self { line, child, thread, end })
    }

    /// The connection, when both answers have come. It lasts longer than the call.
    pub(super) fn finish(self) -> io::Result<HostConnection> {
        let (output, errors) = self.thread.join().map_err(|_| io::Error::other("a thread panicked"))?;
        std::mem::forget(self.end);
        Ok(HostConnection { line: self.line, child: self.child, output, errors })
    }
}

/// The program on this host.
fn here() -> Command {
    let mut command = invocation::command();
    command.arg(agent::NAME).env_remove("SSH_CONNECTION");
    command
}

/// The program on another host: where it lies here, or else wherever it is found there.
fn there(name: &str) -> Command {
    let mut words: Vec<OsString> = invocation::words().to_vec();
    if let Some(first) = words.first_mut()
        && let Ok(path) = fs::read_link(&*first)
    {
        *first = path.into();
    }
    let mut script =
        OsString::from("exec sh -c 'command -v \"$1\" >/dev/null 2>&1 || set -- unisono; exec \"$@\" ");
    script.push(agent::NAME);
    script.push("' sh");
    for word in words {
        script.push(" ");
        script.push(quoted(&word));
    }
    let mut command = Command::new("ssh");
    // A user cannot answer questions of several hosts at once; a host that vanishes is noticed after a minute.
    command.args(["-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ControlMaster=no"]);
    command.args(["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "--", name]).arg(script);
    command
}

/// A word as shells take it.
fn quoted(word: &OsStr) -> OsString {
    let parts: Vec<_> = word.as_bytes().split(|&byte| byte == b'\'').collect();
    OsString::from_vec([b"'", &parts.join(&b"'\\''"[..])[..], b"'"].concat())
}

/// Reads a host's answers.
struct Reader {
    number: u32,
    name: String,
    pid: Pid,
    errors: ChildStderr,
    tell: Sender<Event>,
}

impl Reader {
    fn read(mut self, mut output: BufReader<ChildStdout>) -> (BufReader<ChildStdout>, ChildStderr) {
        for first in [HELLO, "["] {
            let line = self.line(first, &mut output);
            let goes_on = line.is_ok();
            drop(self.tell.send(Event::Answered(self.number, line)));
            if !goes_on {
                break;
            }
        }
        (output, self.errors)
    }

    /// The next line that begins with `first`.
    fn line(&mut self, first: &str, output: &mut BufReader<ChildStdout>) -> Result<String, String> {
        let mut line = Vec::new();
        for _ in 0..MOST_LINES {
            line.clear();
            // As long as a line of a rank may be.
            match output.by_ref().take(1 << 20).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if line.starts_with(first.as_bytes()) {
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
        }
        Err(self.silent())
    }

    /// Why a host does not answer.
    fn silent(&mut self) -> String {
        let said = last_words(&mut self.errors);
        let status = ranks::wait(self.pid).words();
        let advice = advice(&self.name, &said, &status);
        let said: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let shown = said[said.len().saturating_sub(3)..].join(" | ");
        match shown.is_empty() {
            true => format!("ssh ended with {status} and said nothing; {advice}"),
            false => format!("{shown} (ssh's {status}); {advice}"),
        }
    }
}

/// Advice to the user on ssh's message.
fn advice(name: &str, said: &str, status: &str) -> String {
    let has = |words: &str| words.split('|').any(|words| said.contains(words));
    if status == "status 127" || status == "status 126" {
        let place = fs::read_link(&invocation::words()[0])
            .map_or_else(|_| invocation::shown(), |path| path.display().to_string());
        format!(
            "no unisono can be started there: install it there as {place}, or in a directory of the PATH that `ssh {name} env` shows"
        )
    } else if has("Could not resolve|Name or service not known") {
        "correct the name, or add the host to /etc/hosts, DNS or ~/.ssh/config".to_owned()
    } else if has("Host key verification failed|HOST IDENTIFICATION HAS CHANGED|authenticity of host") {
        format!("its key is not known here: run `ssh {name} true` once, and check the key")
    } else if has("Permission denied|Too many authentication failures|passphrase") {
        format!(
            "`ssh {name} true` must work without a question: `ssh-copy-id {name}`, and ssh-agent for a key with a passphrase"
        )
    } else if has("refused|timed out|No route|unreachable|Connection closed|Connection reset") {
        "check that the host is up, that sshd runs there, and that no firewall blocks the connection"
            .to_owned()
    } else {
        format!("see what `ssh {name} unisono --version` says")
    }
}

/// The text that can be read without long waits.
fn last_words(source: &mut ChildStderr) -> String {
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    while said.len() < 1 << 16
        && matches!(poll(&mut [PollFd::new(&*source, PollFlags::IN)], Some(&LAST_WORDS)), Ok(1..))
    {
        match source.read(&mut buffer) {
            Ok(count @ 1..) => said.extend_from_slice(&buffer[..count]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_a_shell_as_they_are() {
        for word in ["plain", "with space", "a'b", "$HOME `id` \"x\" \\", ""] {
            let mut script = OsString::from("printf %s ");
            script.push(quoted(word.as_ref()));
            let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }

    #[test]
    fn what_ssh_says_is_answered() {
        for (said, status, wanted) in [
            ("ssh: Could not resolve hostname h9: Name or service not known", 255, "correct the name"),
            ("root@h1: Permission denied (publickey).", 255, "ssh-copy-id h9"),
            ("Host key verification failed.", 255, "ssh h9 true"),
            ("ssh: connect to host h9 port 22: Connection refused", 255, "sshd runs"),
            ("ssh: connect to host h9 port 22: Connection timed out", 255, "firewall"),
            ("sh: 1: exec: unisono: not found", 127, "install it there"),
            ("sh: 1: exec: /x/unisono: Permission denied", 126, "install it there"),
            ("", 1, "unisono --version"),
        ] {
            let advice = advice("h9", said, &format!("status {status}"));
            assert!(advice.contains(wanted), "{said}: {advice}");
        }
    }
}
