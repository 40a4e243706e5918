//! A rank's output as this process passes it on: as soon as it is written, behind a prefix, and in whole lines between those of
//! other ranks.
//!
//! A line that has not ended, such as a prompt or a progress bar, is shown as far as it goes ([`Lines::show_begun`]). If another rank
//! writes meanwhile, its output begins on a new line, and the line that has not ended is written again as a whole when it continues.

/// The longest line that is kept, in bytes. A longer line is broken, so that a program that never ends its line does not fill the
/// memory.
const LONGEST: usize = 1 << 20;

/// A part of a line is shown only up to this length, in bytes: prompts and progress bars are short, and a longer part belongs to a line
/// that its rank is still writing.
const SHORT: usize = 1 << 10;

/// The source whose line is open on a terminal, pipe or file: the number of the one that has written a part of a line last.
pub(super) type OpenLine = Option<usize>;

/// Cuts the bytes of one source into lines and puts a prefix before each.
pub(super) struct Lines<'a> {
    /// The number of the source.
    source: usize,
    prefix: &'a [u8],
    /// The line that has not ended: what follows the last line end or carriage return.
    begun: Vec<u8>,
    /// How many bytes of it were written.
    shown: usize,
    /// True if a carriage return has ended an earlier text of this line.
    returned: bool,
}

impl<'a> Lines<'a> {
    pub(super) fn new(source: usize, prefix: &'a [u8]) -> Self {
        Self { source, prefix, begun: Vec::new(), shown: 0, returned: false }
    }

    /// True if there is a part of a line that was not written, and is to be shown if nothing follows it.
    pub(super) fn has_begun(&self) -> bool {
        (self.shown + 1..=SHORT).contains(&self.begun.len())
    }

    /// Appends to `out` the lines that `bytes` completes. A text that a carriage return ends counts as complete; the next one is to be
    /// written over it.
    pub(super) fn feed(&mut self, bytes: &[u8], open: &mut OpenLine, out: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|&byte| matches!(byte, b'\n' | b'\r')) {
            if self.begun.ends_with(b"\r") && piece != b"\n" {
                self.turn_back(open, out);
            }
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LONGEST {
                self.end_line(open, out);
            }
        }
    }

    /// Appends the line that has not ended to `out`, as far as it was not written.
    pub(super) fn show_begun(&mut self, open: &mut OpenLine, out: &mut Vec<u8>) {
        if self.begun.ends_with(b"\r") {
            self.turn_back(open, out);
        } else if self.begun.len() > self.shown {
            self.show(open, out);
        }
    }

    /// The source has ended: appends what it has left to `out`, with a line end if it has none.
    pub(super) fn end(&mut self, open: &mut OpenLine, out: &mut Vec<u8>) {
        self.show_begun(open, out);
        if *open == Some(self.source) {
            out.push(b'\n');
            *open = None;
        }
        self.forget_line();
    }

    fn show(&mut self, open: &mut OpenLine, out: &mut Vec<u8>) {
        if *open != Some(self.source) {
            if open.is_some() {
                out.push(b'\n');
            }
            *open = Some(self.source);
            self.shown = 0;
        }
        if self.shown == 0 {
            out.extend_from_slice(self.prefix);
        }
        out.extend_from_slice(&self.begun[self.shown..]);
        self.shown = self.begun.len();
    }

    /// Ends the text before a carriage return.
    fn turn_back(&mut self, open: &mut OpenLine, out: &mut Vec<u8>) {
        // At the beginning of a line it would do nothing.
        if self.begun.len() > 1 {
            // Another source's output may have ended the line after its text.
            if *open == Some(self.source) || self.shown + 1 < self.begun.len() {
                self.show(open, out);
            }
            self.returned = true;
        }
        (self.begun, self.shown) = (Vec::new(), 0);
    }

    /// Ends the line, whose text is all there.
    fn end_line(&mut self, open: &mut OpenLine, out: &mut Vec<u8>) {
        let mine = *open == Some(self.source);
        let text = self.begun.strip_suffix(b"\n").unwrap_or(&self.begun);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let written = if text.is_empty() { self.returned } else { self.shown >= text.len() };
        match (written, mine) {
            // Another source's output has ended the line.
            (true, false) => {}
            (true, true) => out.extend_from_slice(&self.begun[self.shown..]),
            (false, _) => {
                self.show(open, out);
                if !self.begun.ends_with(b"\n") {
                    out.push(b'\n');
                }
            }
        }
        if *open == Some(self.source) {
            *open = None;
        }
        self.forget_line();
    }

    fn forget_line(&mut self) {
        self.begun.clear();
        (self.shown, self.returned) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The output for these pieces. After the pieces for which `shows` is true, the line is shown as far as it goes.
    fn all(pieces: &[&[u8]], shows: impl Fn(usize) -> bool) -> Vec<u8> {
        let (mut lines, mut open, mut out) = (Lines::new(0, b"[3] "), None, Vec::new());
        for (index, piece) in pieces.iter().enumerate() {
            lines.feed(piece, &mut open, &mut out);
            if shows(index) {
                lines.show_begun(&mut open, &mut out);
            }
        }
        lines.end(&mut open, &mut out);
        assert_eq!(open, None);
        out
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    #[test]
    fn the_cuts_between_reads_do_not_show() {
        let bytes = b"one\n\n\xff\0two\r\nlast";
        let wanted = b"[3] one\n[3] \n[3] \xff\0two\r\n[3] last\n";
        for first in 0..bytes.len() {
            for second in first..bytes.len() {
                for shows in 0..4 {
                    let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                    let out = all(&pieces, |index| shows >> index & 1 == 1);
                    // A carriage return that was shown is followed by the line end alone.
                    assert_eq!(text(&out), text(wanted), "{first} {second} {shows}");
                }
            }
        }
        assert_eq!(all(&[], |_| true), b"");
        assert_eq!(all(&[b"\n"], |_| true), b"[3] \n");
    }

    #[test]
    fn a_line_without_end_is_broken() {
        let piece = vec![b'x'; LONGEST / 4];
        for shows in [false, true] {
            let out = all(&[&piece[..]; 6], |_| shows);
            let lines: Vec<_> = out.split(|&byte| byte == b'\n').map(<[u8]>::len).collect();
            assert_eq!(lines, [LONGEST + 4, LONGEST / 2 + 4, 0]);
        }
    }

    #[test]
    fn progress_bars_and_prompts_are_shown_as_they_are_written() {
        let (mut lines, mut open, mut out) = (Lines::new(0, b"[3] "), None, Vec::new());
        let mut write = |bytes: &[u8]| {
            lines.feed(bytes, &mut open, &mut out);
            lines.show_begun(&mut open, &mut out);
            text(&std::mem::take(&mut out))
        };
        // The carriage return comes first, as tqdm writes it.
        assert_eq!(write(b"\rstep 1/3"), "[3] step 1/3");
        assert_eq!(write(b"\rstep 2/3"), "\r[3] step 2/3");
        assert_eq!(write(b"\rstep 3/3"), "\r[3] step 3/3");
        assert_eq!(write(b"\n"), "\n");
        // Or it comes last.
        assert_eq!(write(b"10 %\r"), "[3] 10 %\r");
        assert_eq!(write(b"20 %\r30 %\r"), "[3] 20 %\r[3] 30 %\r");
        assert_eq!(write(b"\n"), "\n");
        assert_eq!(write(b"Go on? "), "[3] Go on? ");
        assert_eq!(write(b"yes\nDone"), "yes\n[3] Done");
        assert_eq!(write(b"."), ".");
    }

    #[test]
    fn a_line_that_another_source_interrupts_is_written_again() {
        let (mut one, mut other) = (Lines::new(0, b"[0] "), Lines::new(1, b"[1] "));
        let (mut open, mut out) = (None, Vec::new());
        for (source, bytes) in
            [(0, "Go "), (1, "x\n"), (0, "on"), (1, "a"), (0, "?\n"), (1, "\n"), (0, "\r1 %")]
        {
            let lines = if source == 0 { &mut one } else { &mut other };
            lines.feed(bytes.as_bytes(), &mut open, &mut out);
            lines.show_begun(&mut open, &mut out);
        }
        other.feed(b"b\n", &mut open, &mut out);
        one.feed(b"\r2 %\r", &mut open, &mut out);
        one.end(&mut open, &mut out);
        other.end(&mut open, &mut out);
        let wanted = "[0] Go \n[1] x\n[0] Go on\n[1] a\n[0] Go on?\n[0] 1 %\n[1] b\n[0] 2 %\r\n";
        assert_eq!(text(&out), wanted);
    }

    /// Lines as a terminal shows them: of the texts between carriage returns, the last one.
    fn shown(bytes: &[u8]) -> Vec<String> {
        let line =
            |line: &str| line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default().to_owned();
        text(bytes).lines().map(line).collect()
    }

    proptest! {
        /// However the outputs of two ranks come in pieces, every output line is one rank's alone, and every line that a rank has
        /// written is there as a whole, in its order.
        #[test]
        fn no_line_is_torn(pieces in prop::collection::vec((0_usize..2, "[ab\n\r]{0,4}", any::<bool>()), 0..60)) {
            let mut sources = [Lines::new(0, b"[0] "), Lines::new(1, b"[1] ")];
            let (mut open, mut out) = (None, Vec::new());
            let mut written = [Vec::new(), Vec::new()];
            for (source, bytes, shows) in &pieces {
                written[*source].extend_from_slice(bytes.as_bytes());
                sources[*source].feed(bytes.as_bytes(), &mut open, &mut out);
                if *shows {
                    sources[*source].show_begun(&mut open, &mut out);
                }
            }
            sources.iter_mut().for_each(|lines| lines.end(&mut open, &mut out));
            prop_assert_eq!(open, None);
            for (rank, written) in written.iter().enumerate() {
                let prefix = format!("[{rank}] ");
                let mut printed = Vec::new();
                for line in shown(&out) {
                    prop_assert!(line.starts_with("[0] ") || line.starts_with("[1] "), "{line:?} of {:?}", text(&out));
                    printed.extend(line.strip_prefix(&prefix).map(str::to_owned));
                }
                let mut printed = printed.iter();
                for line in shown(written).iter().filter(|line| !line.is_empty()) {
                    prop_assert!(printed.any(|it| it == line), "{line:?} of {:?} in {:?}", text(written), text(&out));
                }
            }
        }
    }
}
