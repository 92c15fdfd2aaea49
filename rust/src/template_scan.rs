//! Checks a chat template's tokens before it is parsed. The parser, the compiler and their
//! destructors recurse, and constants are computed while compiling: both are limited here. Also
//! rewrites `{% generation %}` ... `{% endgeneration %}`, a tag that transformers adds to Jinja to
//! mark the model's own output, to plain Jinja that prints two marks.

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

/// An open expression, or the inside of one of its brackets.
#[derive(Default)]
struct Level {
    /// Operators since the last comma; each may wrap the expression before it.
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

/// An open block.
struct Block<'s> {
    keyword: &'s str,
    /// Each `elif` adds one.
    levels: usize,
    /// Its `else` has been seen; in a loop, this part runs after the loop.
    has_else: bool,
}

/// Returns why a `continue` or `break` has no enclosing loop; None if it has one.
fn no_loop(blocks: &[Block]) -> Option<String> {
    for block in blocks.iter().rev() {
        match block.keyword {
            "for" if !block.has_else => return None,
            // In transformers each is a function of its own.
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

/// A tag, `{{ ... }}` or `{% ... %}`.
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
    /// Bytes of constants, and the factor by which multiplication can grow one.
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

/// Returns the line of `at`, from 1.
fn line_of(source: &str, at: usize) -> usize {
    1 + source.as_bytes()[..at.min(source.len())].iter().filter(|&&b| b == b'\n').count()
}

/// Returns the replacement of a `{% generation %}` tag by `with`; keeps the signs for white space
/// control.
///
/// A scope of its own (`with`), as in transformers, where the block is a macro. The marks sit
/// between tags, so that white space control sees the same neighbours as before.
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

/// The blocks that are open at a place of the template, and the template rewritten so far.
struct Scan<'s> {
    source: &'s str,
    /// The variables that replace generation tags.
    begin: &'s str,
    end: &'s str,
    blocks: Vec<Block<'s>>,
    block_depth: usize,
    rewritten: Option<String>,
    /// The end of the part of `source` that `rewritten` contains.
    copied: usize,
}

impl<'s> Scan<'s> {
    fn open(&mut self, keyword: &'s str, levels: usize) {
        self.blocks.push(Block { keyword, levels, has_else: false });
        self.block_depth += levels;
    }

    fn close(&mut self) {
        self.block_depth -= self.blocks.pop().map_or(0, |block| block.levels);
    }

    /// Handles an `elif` or `else` of the innermost block.
    fn branch(&mut self, keyword: &str) {
        if let Some(open) = self.blocks.last_mut() {
            open.has_else = keyword == "else";
            let levels = usize::from(keyword == "elif");
            open.levels += levels;
            self.block_depth += levels;
        }
    }

    fn rewrite(&mut self, tag: &Tag, is_begin: bool) {
        let mark = if is_begin { self.begin } else { self.end };
        if let Some((from, to, text)) = replace_tag(self.source, tag, mark, is_begin) {
            let out = self.rewritten.get_or_insert_default();
            out.push_str(&self.source[self.copied..from]);
            out.push_str(&text);
            self.copied = to;
        }
    }

    /// Handles a tag that opens, closes or marks a block. Refuses one with too large constants or
    /// too deep nesting.
    fn take(&mut self, tag: &Tag<'s>, is_block: bool) -> Result<()> {
        let source = self.source;
        let line = || line_of(source, tag.begin.start_offset as usize);
        if tag.multiplies && tag.constants * tag.factor > MAX_CONSTANT {
            return Err(UserError(format!(
                "Chat template, line {}: it multiplies a constant text or list to more than {} MiB.",
                line(),
                MAX_CONSTANT as usize >> 20
            )));
        }
        let keyword = if is_block { tag.keyword.map_or("", |(name, _)| name) } else { "" };
        match keyword {
            "for" | "if" | "with" | "macro" | "call" | "filter" | "autoescape" => {
                self.open(keyword, 1);
            }
            "set" if !tag.assigns => self.open(keyword, 1),
            "elif" | "else" => self.branch(keyword),
            "continue" | "break" => {
                if let Some(why) = no_loop(&self.blocks) {
                    return Err(UserError(format!(
                        "Chat template, line {}: {{% {keyword} %}} stands {why}",
                        line()
                    )));
                }
            }
            "generation" | "endgeneration" if tag.num_tokens == 1 => {
                let is_begin = keyword == "generation";
                self.rewrite(tag, is_begin);
                if is_begin {
                    self.open(keyword, 2);
                } else {
                    self.close();
                }
            }
            name if name.starts_with("end") => self.close(),
            _ => {}
        }
        if tag.deepest.max(self.block_depth) > MAX_DEPTH {
            return Err(UserError(format!(
                "Chat template, line {}: nested deeper than {MAX_DEPTH} levels (each operator, \
                 filter, bracket, elif and block is one).",
                line()
            )));
        }
        Ok(())
    }
}

/// Refuses templates that are too large or too deeply nested. Returns the template with its
/// generation tags rewritten to print the variables `begin` and `end`; None if it has no such tag.
pub fn scan(source: &str, begin: &str, end: &str) -> Result<Option<String>> {
    if source.len() > MAX_SOURCE {
        return Err(UserError(format!(
            "The chat template is {} bytes long; {MAX_SOURCE} are the most.",
            source.len()
        )));
    }
    let (blocks, block_depth, rewritten, copied) = (Vec::new(), 0, None, 0);
    let mut scan = Scan { source, begin, end, blocks, block_depth, rewritten, copied };
    let mut tag: Option<Tag> = None;
    for token in tokenize(source, false, syntax()) {
        // Errors of the lexer are left to the parser, which reports the line.
        let Ok((token, span)) = token else { break };
        match token {
            Token::VariableStart | Token::BlockStart => tag = Some(Tag::new(span)),
            Token::VariableEnd | Token::BlockEnd => {
                let Some(tag) = tag.take() else { continue };
                scan.take(&tag, matches!(token, Token::BlockEnd))?;
            }
            token => {
                if let Some(tag) = &mut tag {
                    tag.take(&token, span);
                }
            }
        }
    }
    // An unclosed tag is parsed too.
    if tag.is_some_and(|tag| tag.deepest > MAX_DEPTH) {
        return Err(UserError(format!(
            "Chat template: its last tag is nested deeper than {MAX_DEPTH} levels."
        )));
    }
    if let Some(out) = &mut scan.rewritten {
        out.push_str(&source[scan.copied..]);
    }
    Ok(scan.rewritten)
}
