//! Compiles templates with guards: every operator that may make or read much passes through one of
//! our filters (see template_guards), all output passes through the formatter, and values that get
//! a name are checked. So a rendering cannot exceed its limits between two checks.

use std::collections::HashMap;

use minijinja::machinery::{CodeGenerator, Instruction, Instructions};
use minijinja::value::Value;
use minijinja::Error;

use crate::template_scan::syntax;

/// Filters that a program stores by index, as in minijinja.
const MAX_LOCALS: usize = 50;
const NO_LOCAL: u8 = !0;

/// Names of the filters that stand for operators; a template cannot spell them.
pub const STEPS: &str = "!steps";
pub const KEPT: &str = "!kept";
pub const LISTED: &str = "!listed";
pub const SLICED: &str = "!sliced";
pub const INDEXED: &str = "!indexed";

/// A construct that one instruction begins and a later one ends.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    Loop,
    Scope,
    Capture,
    AutoEscape,
}

/// The blocks that are open before each instruction. `continue` and `break` inside `with`,
/// `filter`, `set` and `autoescape` leave them by a mere jump, as minijinja compiles it.
struct OpenBlocks {
    /// Each block has its enclosing block; the first stands for none.
    blocks: Vec<(Block, usize)>,
    innermost: Vec<usize>,
}

impl OpenBlocks {
    fn of(code: &Instructions) -> OpenBlocks {
        use Instruction::*;
        let mut open = OpenBlocks { blocks: vec![(Block::Loop, 0)], innermost: Vec::new() };
        let mut inner = 0;
        while let Some(instruction) = code.get(open.innermost.len() as u32) {
            open.innermost.push(inner);
            let begun = match instruction {
                PushLoop(_) => Block::Loop,
                PushWith => Block::Scope,
                BeginCapture(_) => Block::Capture,
                PushAutoEscape => Block::AutoEscape,
                PopLoopFrame | PopFrame | EndCapture | PopAutoEscape => {
                    inner = open.blocks[inner].1;
                    continue;
                }
                _ => continue,
            };
            open.blocks.push((begun, inner));
            inner = open.blocks.len() - 1;
        }
        open.innermost.push(inner);
        open
    }

    /// Returns the blocks around `at`, innermost first, that are not around `target`.
    fn left_by_jump(&self, at: u32, target: u32) -> Vec<Block> {
        let end = self.innermost[target as usize];
        let mut inner = self.innermost[at as usize];
        let mut left = Vec::new();
        // An enclosing block was begun before its inner one.
        while inner > end {
            left.push(self.blocks[inner].0);
            inner = self.blocks[inner].1;
        }
        left
    }
}

struct Program<'s> {
    code: Vec<(Instruction<'s>, u32)>,
    locals: HashMap<&'static str, u8>,
    num_locals: usize,
}

impl<'s> Program<'s> {
    fn filter(&mut self, name: &'static str, num_args: u16, at: u32) {
        let local = *self.locals.entry(name).or_insert_with(|| {
            let free = self.num_locals;
            self.num_locals += 1;
            if free < MAX_LOCALS { free as u8 } else { NO_LOCAL }
        });
        self.code.push((Instruction::ApplyFilter(name, Some(num_args), local), at));
    }

    /// Counts steps; the stack stays unchanged.
    fn steps(&mut self, count: u32, at: u32) {
        self.code.push((Instruction::LoadConst(Value::from(count)), at));
        self.filter(STEPS, 1, at);
        self.code.push((Instruction::DiscardTop, at));
    }

    fn copy(&mut self, instruction: &Instruction<'s>, at: u32) {
        self.code.push((instruction.clone(), at));
    }

    fn guard(&mut self, old: &Instructions<'s>, at: u32, blocks: &OpenBlocks) {
        use Instruction::*;
        let instruction = old.get(at).expect("in range");
        let before = at.checked_sub(1).and_then(|before| old.get(before));
        match instruction {
            Jump(target) => {
                for block in blocks.left_by_jump(at, *target) {
                    match block {
                        Block::Loop => {}
                        Block::Scope => self.code.push((PopFrame, at)),
                        Block::AutoEscape => self.code.push((PopAutoEscape, at)),
                        Block::Capture => {
                            self.code.push((EndCapture, at));
                            self.code.push((DiscardTop, at));
                        }
                    }
                }
                self.copy(instruction, at);
            }
            // All backward jumps come here, so the steps of the loop body are counted at once.
            Iterate(end) => {
                self.steps(end.saturating_sub(at), at);
                self.copy(instruction, at);
            }
            // Marked safe, so that an autoescape block does not change it.
            EmitRaw(text) => {
                self.code.push((LoadConst(Value::from_safe_string(text.to_string())), at));
                self.code.push((Emit, at));
            }
            Add => self.filter("!+", 2, at),
            Mul => self.filter("!*", 2, at),
            StringConcat => self.filter("!~", 2, at),
            Eq => self.filter("!==", 2, at),
            Ne => self.filter("!!=", 2, at),
            Gt => self.filter("!>", 2, at),
            Gte => self.filter("!>=", 2, at),
            Lt => self.filter("!<", 2, at),
            Lte => self.filter("!<=", 2, at),
            In => self.filter("!in", 2, at),
            Slice => {
                // Returns its four arguments, the last first, as they were on the stack.
                self.filter(SLICED, 4, at);
                self.code.push((UnpackList(4), at));
                self.copy(instruction, at);
                self.filter(LISTED, 1, at);
            }
            GetItem if !matches!(before, Some(LoadConst(key)) if key.as_str().is_some()) => {
                self.code.push((Swap, at));
                self.filter(INDEXED, 1, at);
                self.code.push((Swap, at));
                self.copy(instruction, at);
            }
            SetAttr(_) => {
                self.code.push((Swap, at));
                self.filter(KEPT, 1, at);
                self.code.push((Swap, at));
                self.copy(instruction, at);
            }
            // An item of a loop is part of a checked value.
            StoreLocal(_) if !matches!(before, Some(Iterate(_))) => {
                self.filter(KEPT, 1, at);
                self.copy(instruction, at);
            }
            CompareAndPreserve(_) => {
                self.filter("!both", 2, at);
                self.code.push((UnpackList(2), at));
                self.copy(instruction, at);
            }
            _ => self.copy(instruction, at),
        }
    }
}

/// Returns the end of the macro whose declaration begins with the instruction.
fn macro_end(old: &Instructions, at: u32) -> Option<u32> {
    match old.get(at)? {
        Instruction::Jump(end) if *end > at => {
            matches!(old.get(end - 1), Some(Instruction::Return)).then_some(*end)
        }
        _ => None,
    }
}

fn guarded<'s>(old: &Instructions<'s>, name: &'s str, source: &'s str) -> Instructions<'s> {
    use Instruction::*;
    let mut num_locals = 0;
    let mut length = 0;
    while let Some(instruction) = old.get(length) {
        if let ApplyFilter(_, _, local) = instruction {
            if *local != NO_LOCAL {
                num_locals = num_locals.max(*local as usize + 1);
            }
        }
        length += 1;
    }
    let blocks = OpenBlocks::of(old);
    let mut program = Program { code: Vec::new(), locals: HashMap::new(), num_locals };
    let mut places = Vec::with_capacity(length as usize + 1);
    for at in 0..length {
        places.push(program.code.len() as u32);
        // A macro's body, which the jump before it skips.
        if let Some(end) = at.checked_sub(1).and_then(|before| macro_end(old, before)) {
            program.steps(end.saturating_sub(at), at);
        }
        program.guard(old, at, &blocks);
    }
    places.push(program.code.len() as u32);

    let mut out = Instructions::new(name, source);
    for (mut instruction, at) in program.code {
        match &mut instruction {
            Iterate(target) | Jump(target) | JumpIfFalse(target) | JumpIfFalseOrPop(target)
            | JumpIfTrueOrPop(target) | BuildMacro(_, target, _) => {
                *target = places[*target as usize];
            }
            _ => {}
        }
        match (old.get_span(at), old.get_line(at)) {
            (Some(span), _) => out.add_with_span(instruction, span),
            (None, Some(line)) => out.add_with_line(instruction, line as u16),
            (None, None) => out.add(instruction),
        };
    }
    out
}

/// Parses and compiles a template that passed `scan`.
pub fn compile<'s>(name: &'s str, source: &'s str) -> Result<Instructions<'s>, Error> {
    let tree = minijinja::machinery::parse(source, name, syntax())?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    Ok(guarded(&generator.finish().0, name, source))
}
