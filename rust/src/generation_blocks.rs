//! Marks in a rendering around the model's own output (see template_scan), and their removal.

/// Begins a mark: a private-use character, which does not occur in real text.
const SIGN: char = '\u{f8f0}';

/// Marks that occur in no text: a private-use character and a number that the texts lack.
pub struct Marks {
    pub begin: String,
    pub end: String,
}

impl Marks {
    pub fn absent_from(texts: &[&str]) -> Marks {
        let mut taken = std::collections::HashSet::new();
        for text in texts {
            for part in text.split(SIGN).skip(1) {
                let digits = part.bytes().take(20).take_while(u8::is_ascii_digit).count();
                taken.extend(part[..digits].parse::<u64>().ok());
            }
        }
        let free = (0u64..).find(|i| !taken.contains(i)).expect("a finite set lacks some number");
        Marks { begin: format!("{SIGN}{free}<"), end: format!("{SIGN}{free}>") }
    }
}

/// Removes the marks from a rendering. Returns the byte offsets of the marked spans, in the order
/// of their ends.
pub fn take_marks(rendered: &str, marks: &Marks) -> (String, Vec<(usize, usize)>) {
    let mut text = String::with_capacity(rendered.len());
    let mut spans = Vec::new();
    let mut open = Vec::new();
    let mut rest = rendered;
    while let Some(at) = rest.find(SIGN) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix(&marks.begin) {
            open.push(text.len());
            rest = after;
        } else if let Some(after) = rest.strip_prefix(&marks.end) {
            spans.extend(open.pop().map(|begin| (begin, text.len())));
            rest = after;
        } else {
            text.push(SIGN);
            rest = &rest[SIGN.len_utf8()..];
        }
    }
    text.push_str(rest);
    (text, spans)
}
