//! A look at a chat template's tokens before it is parsed. The parser, the compiler and their
//! destructors recurse, and what is constant is computed while compiling: both are bounded here.
//! And `{% generation %}` ... `{% endgeneration %}`, a tag that transformers adds to Jinja to mark
//! what the model itself writes, becomes plain Jinja that prints two marks.

use minijinja::machinery::{tokenize, Span, Token};
use minijinja::syntax::SyntaxConfig;

use crate::budget::MAX_DEPTH;
use crate::{Result, UserError};

const MAX_SOURCE: usize = 1 << 20;
/// Bytes of constants that one tag may make while it is compiled.
const MAX_CONSTANT: f64 = (16 << 20) as f64;

/// As transformers: trim_blocks, lstrip_blocks.
pub fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().expect("valid")
}

/// An expression that is open, or the inside of one of its brackets.
#[derive(Default)]
struct Level {
    /// Operators since the last comma: each may wrap what stands before it.
    operators: usize,
    /// The deepest bracket closed since then, and the deepest item before.
    inner: usize,
    item: usize,
}

impl Level {
    fn depth(&self) -> usize {
        self.operators + self.inner
    }
    fn end_item(&mut self) {
        self.item = self.item.max(self.depth());
        (self.operators, self.inner) = (0, 0);
    }
}

/// A block that is open.
struct Block<'s> {
    keyword: &'s str,
    /// An `elif` is one more.
    levels: usize,
    /// Its `else` has been: of a loop, that is behind the loop.
    has_else: bool,
}

/// Why a `continue` or `break` has no loop to go to, if it has none.
fn no_loop(blocks: &[Block]) -> Option<String> {
    for block in blocks.iter().rev() {
        match block.keyword {
            "for" if !block.has_else => return None,
            // To transformers each is a function of its own.
            keyword @ ("generation" | "call" | "macro") => {
                return Some(format!(
                    "in no loop inside of {{% {keyword} %}}, which it cannot leave. Put the whole \
                     loop inside, or write {{% if %}} instead."
                ));
            }
            _ => {}
        }
    }
    Some("in no loop. Put it into a {% for %}, or remove it.".into())
}

/// One tag, `{{ ... }}` or `{% ... %}`.
struct Tag<'s> {
    begin: Span,
    keyword: Option<(&'s str, Span)>,
    num_tokens: usize,
    levels: Vec<Level>,
    /// Levels around the innermost bracket.
    outer: usize,
    deepest: usize,
    assigns: bool,
    multiplies: bool,
    /// Bytes of constants, and what multiplication can make of one.
    constants: f64,
    factor: f64,
}

impl<'s> Tag<'s> {
    fn new(begin: Span) -> Tag<'s> {
        Tag {
            begin,
            keyword: None,
            num_tokens: 0,
            levels: vec![Level::default()],
            outer: 0,
            deepest: 0,
            assigns: false,
            multiplies: false,
            constants: 0.0,
            factor: 1.0,
        }
    }

    fn number(&mut self, value: f64) {
        let value = value.abs();
        self.factor *= 1.0 + if value < 1.0 && value > 0.0 { 1.0 / value } else { value };
    }

    fn take(&mut self, token: &Token<'s>, span: Span) {
        use Token::*;
        if let (0, Ident(name)) = (self.num_tokens, token) {
            self.keyword = Some((*name, span));
        }
        self.num_tokens += 1;
        let in_bracket = self.levels.len() > 1;
        let level = self.levels.last_mut().expect("one is always open");
        match token {
            Int(value) => self.number(*value as f64),
            Int128(value) => self.number(**value as f64),
            Float(value) => self.number(*value),
            Str(text) => self.constants += text.len() as f64,
            String(text) => self.constants += text.len() as f64,
            Comma | Colon => {
                self.constants += size_of::<minijinja::Value>() as f64;
                level.end_item();
            }
            BracketOpen | ParenOpen | BraceOpen => {
                level.operators += 1;
                self.outer += level.depth();
                self.levels.push(Level::default());
            }
            BracketClose | ParenClose | BraceClose if in_bracket => {
                level.end_item();
                let inner = level.item;
                self.levels.pop();
                let level = self.levels.last_mut().expect("one is always open");
                self.outer -= level.depth();
                level.inner = level.inner.max(inner + 1);
            }
            Assign => self.assigns |= !in_bracket,
            Mul | Pow => {
                self.multiplies = true;
                if matches!(token, Pow) {
                    self.factor = f64::INFINITY;
                }
                level.operators += 1;
            }
            Plus | Minus | Div | FloorDiv | Mod | Dot | Tilde | Pipe | Eq | Ne | Gt | Gte | Lt
            | Lte | Ident("not" | "and" | "or" | "in" | "is" | "if" | "else") => {
                level.operators += 1;
            }
            _ => {}
        }
        let level = self.levels.last().expect("one is always open");
        self.deepest = self.deepest.max(self.outer + level.depth());
    }
}

/// Lines up to `at`, from 1.
fn line_of(source: &str, at: usize) -> usize {
    1 + source.as_bytes()[..at.min(source.len())].iter().filter(|&&b| b == b'\n').count()
}

/// A `{% generation %}` tag in place of which `with` stands; the signs that control white space are
/// kept.
///
/// A scope of its own (`with`) as in transformers, where the block is a macro. The marks sit between
/// tags, so that white space control sees the same neighbours as before.
fn replace_tag(source: &str, tag: &Tag, mark: &str, is_begin: bool) -> Option<(usize, usize, String)> {
    let bytes = source.as_bytes();
    let from = tag.begin.start_offset as usize;
    let open = from + bytes.get(from..)?.windows(2).position(|two| two == b"{%")?;
    let sign = |at: usize| match bytes.get(at) {
        Some(b'-') => "-",
        Some(b'+') => "+",
        _ => "",
    };
    let left = sign(open + 2);
    let name_end = tag.keyword?.1.end_offset as usize;
    let after = name_end + source.get(name_end..)?.find(|c: char| !c.is_whitespace())?;
    let right = sign(after);
    let end = after + right.len() + 2;
    if bytes.get(end - 2..end) != Some(b"%}") {
        return None;
    }
    let text = if is_begin {
        format!("{{%{left} if true %}}{{{{ {mark} }}}}{{% with {right}%}}")
    } else {
        format!("{{%{left} endwith %}}{{{{ {mark} }}}}{{% endif {right}%}}")
    };
    Some((open, end, text))
}

/// Refuses templates that are too large or too deep. The template with its generation tags
/// rewritten, printing the variables `begin` and `end`; None when it has no such tag.
pub fn scan(source: &str, begin: &str, end: &str) -> Result<Option<String>> {
    if source.len() > MAX_SOURCE {
        return Err(UserError(format!(
            "The chat template is {} bytes long; {MAX_SOURCE} are the most.",
            source.len()
        )));
    }
    let mut rewritten: Option<String> = None;
    let mut copied = 0;
    let mut tag: Option<Tag> = None;
    let mut blocks: Vec<Block> = Vec::new();
    let mut block_depth = 0;
    for token in tokenize(source, false, syntax()) {
        // What the lexer refuses, the parser refuses with a line.
        let Ok((token, span)) = token else { break };
        match token {
            Token::VariableStart | Token::BlockStart => tag = Some(Tag::new(span)),
            Token::VariableEnd | Token::BlockEnd => {
                let Some(tag) = tag.take() else { continue };
                let line = || line_of(source, tag.begin.start_offset as usize);
                if tag.multiplies && tag.constants * tag.factor > MAX_CONSTANT {
                    return Err(UserError(format!(
                        "Chat template, line {}: it multiplies a constant text or list to more \
                         than {} MiB.",
                        line(),
                        MAX_CONSTANT as usize >> 20
                    )));
                }
                let keyword = match token {
                    Token::BlockEnd => tag.keyword.map_or("", |(name, _)| name),
                    _ => "",
                };
                let mut begin_block = |levels| {
                    blocks.push(Block { keyword, levels, has_else: false });
                    block_depth += levels;
                };
                match keyword {
                    "for" | "if" | "with" | "macro" | "call" | "filter" | "autoescape" => {
                        begin_block(1);
                    }
                    "set" if !tag.assigns => begin_block(1),
                    "elif" | "else" => {
                        if let Some(open) = blocks.last_mut() {
                            open.has_else = keyword == "else";
                            let levels = usize::from(keyword == "elif");
                            open.levels += levels;
                            block_depth += levels;
                        }
                    }
                    "continue" | "break" => {
                        if let Some(why) = no_loop(&blocks) {
                            return Err(UserError(format!(
                                "Chat template, line {}: {{% {keyword} %}} stands {why}",
                                line()
                            )));
                        }
                    }
                    "generation" | "endgeneration" if tag.num_tokens == 1 => {
                        let is_begin = keyword == "generation";
                        let mark = if is_begin { begin } else { end };
                        if let Some((from, to, text)) = replace_tag(source, &tag, mark, is_begin) {
                            let out = rewritten.get_or_insert_default();
                            out.push_str(&source[copied..from]);
                            out.push_str(&text);
                            copied = to;
                        }
                        if is_begin {
                            begin_block(2);
                        } else {
                            block_depth -= blocks.pop().map_or(0, |block| block.levels);
                        }
                    }
                    name if name.starts_with("end") => {
                        block_depth -= blocks.pop().map_or(0, |block| block.levels);
                    }
                    _ => {}
                }
                if tag.deepest.max(block_depth) > MAX_DEPTH {
                    return Err(UserError(format!(
                        "Chat template, line {}: nested deeper than {MAX_DEPTH} levels (each \
                         operator, filter, bracket, elif and block is one).",
                        line()
                    )));
                }
            }
            token => {
                if let Some(tag) = &mut tag {
                    tag.take(&token, span);
                }
            }
        }
    }
    // A tag that never ends is parsed too.
    if tag.is_some_and(|tag| tag.deepest > MAX_DEPTH) {
        return Err(UserError(format!(
            "Chat template: its last tag is nested deeper than {MAX_DEPTH} levels."
        )));
    }
    if let Some(out) = &mut rewritten {
        out.push_str(&source[copied..]);
    }
    Ok(rewritten)
}
