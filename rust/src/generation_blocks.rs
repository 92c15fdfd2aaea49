//! `{% generation %}` ... `{% endgeneration %}`, a tag that transformers adds to Jinja to mark what
//! the model itself writes. The tags are rewritten into plain Jinja that prints two marks, which are
//! taken out of the rendering again.

/// Marks that occur in no text: private-use characters around a number that the text lacks.
pub struct Marks {
    pub begin: String,
    pub end: String,
}

impl Marks {
    pub fn absent_from(texts: &[&str]) -> Marks {
        for i in 0u64.. {
            let marks = Marks { begin: format!("\u{f8f0}{i}<"), end: format!("\u{f8f0}{i}>") };
            if texts.iter().all(|t| !t.contains(&marks.begin) && !t.contains(&marks.end)) {
                return marks;
            }
        }
        unreachable!("a text of finite length lacks some number")
    }
}

/// The end of a tag's inside: the position of `close` outside of string literals.
fn find_close(source: &str, from: usize, close: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let mut quote = None;
    let mut i = from;
    while i < bytes.len() {
        match quote {
            Some(_) if bytes[i] == b'\\' => i += 1,
            Some(q) if bytes[i] == q => quote = None,
            Some(_) => {}
            None if source.as_bytes()[i..].starts_with(close.as_bytes()) => return Some(i),
            None if bytes[i] == b'"' || bytes[i] == b'\'' => quote = Some(bytes[i]),
            None => {}
        }
        i += 1;
    }
    None
}

/// The template with its generation tags rewritten, printing the variables `begin` and `end`;
/// None when it has no such tag.
///
/// A scope of its own (`with`) as in transformers, where the block is a macro. The marks sit between
/// tags, so that white space control sees the same neighbours as before.
pub fn rewrite(source: &str, begin: &str, end: &str) -> Option<String> {
    let mut out = String::with_capacity(source.len() + 256);
    let mut found = false;
    let mut raw = false;
    let mut at = 0;
    while let Some(open) = source[at..].find('{').map(|i| at + i) {
        out.push_str(&source[at..open]);
        let close = match source.as_bytes().get(open + 1) {
            Some(b'%') => find_close(source, open + 2, "%}"),
            Some(b'{') if !raw => find_close(source, open + 2, "}}"),
            Some(b'#') if !raw => source[open + 2..].find("#}").map(|i| open + 2 + i),
            _ => None,
        };
        let Some(close) = close else {
            out.push('{');
            at = open + 1;
            continue;
        };
        at = close + 2;
        let tag = &source[open..at];
        let inside = &source[open + 2..close];
        let left = if inside.starts_with(['-', '+']) { &inside[..1] } else { "" };
        let right = if inside.ends_with(['-', '+']) { &inside[inside.len() - 1..] } else { "" };
        let name = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        if !tag.starts_with("{%") {
            out.push_str(tag);
        } else if raw {
            raw = name != "endraw";
            out.push_str(tag);
        } else if name == "generation" {
            found = true;
            out += &format!("{{%{left} if true %}}{{{{ {begin} }}}}{{% with {right}%}}");
        } else if name == "endgeneration" {
            out += &format!("{{%{left} endwith %}}{{{{ {end} }}}}{{% endif {right}%}}");
        } else {
            raw = name == "raw";
            out.push_str(tag);
        }
    }
    out.push_str(&source[at..]);
    found.then_some(out)
}

/// Takes the marks out of a rendering; byte offsets of the marked spans, in the order they end.
pub fn take_marks(rendered: &str, marks: &Marks) -> (String, Vec<(usize, usize)>) {
    let mut text = String::with_capacity(rendered.len());
    let mut spans = Vec::new();
    let mut open = Vec::new();
    let mut rest = rendered;
    loop {
        let begin = rest.find(&marks.begin);
        let end = rest.find(&marks.end);
        match (begin, end) {
            (Some(b), e) if e.is_none_or(|e| b < e) => {
                text.push_str(&rest[..b]);
                open.push(text.len());
                rest = &rest[b + marks.begin.len()..];
            }
            (_, Some(e)) => {
                text.push_str(&rest[..e]);
                if let Some(begin) = open.pop() {
                    spans.push((begin, text.len()));
                }
                rest = &rest[e + marks.end.len()..];
            }
            _ => break,
        }
    }
    text.push_str(rest);
    (text, spans)
}
